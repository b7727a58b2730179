package broker

import (
	"cmp"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/protocol"
)

// ListOffsets, key 2, versions 0-11.
// v0 a list of segment bases · v1 one offset and its timestamp (KIP-79) · v2 isolation level (KIP-98)
// v4 leader epoch (KIP-320) · v7 max timestamp (KIP-734) · v8 earliest local (KIP-405) · v9 latest tiered (KIP-1005)
// v11 earliest pending upload (KIP-1023)

// The timestamps that ask for something else than a time.
const (
	tsLatest          = -1
	tsEarliest        = -2
	tsMax             = -3 // v7
	tsEarliestLocal   = -4 // v8
	tsLatestTiered    = -5 // v9
	tsEarliestPending = -6 // v11
)

// offsetsAPI answers and moves the ends of partitions.
type offsetsAPI struct{ set *replica.Set }

func (h *offsetsAPI) apis() []protocol.API {
	return []protocol.API{
		protocol.Route(0, 11, h.listOffsets),
		protocol.Route(0, 2, h.deleteRecords),
		protocol.Route(0, 4, h.offsetForLeaderEpoch),
		protocol.Route(0, 0, h.describeProducers),
	}
}

func (h *offsetsAPI) listOffsets(c *protocol.Call, r *kmsg.ListOffsetsRequest) {
	resp := kmsg.NewPtrListOffsetsResponse()
	twice := map[fetchKey]int{}
	for i := range r.Topics {
		for j := range r.Topics[i].Partitions {
			twice[fetchKey{name: r.Topics[i].Topic, partition: r.Topics[i].Partitions[j].Partition}]++
		}
	}
	for i := range r.Topics {
		t := &r.Topics[i]
		out := kmsg.NewListOffsetsResponseTopic()
		out.Topic = t.Topic
		for j := range t.Partitions {
			q := &t.Partitions[j]
			var a kmsg.ListOffsetsResponseTopicPartition
			var err error = errTwice
			if twice[fetchKey{name: t.Topic, partition: q.Partition}] == 1 {
				a, err = h.listOffset(r, t.Topic, q)
			}
			if err != nil {
				a = kmsg.NewListOffsetsResponseTopicPartition()
				a.ErrorCode = codeOf(err)
				if r.Version < 4 {
					a.ErrorCode = oldCodeOf(err)
				}
			}
			a.Partition = q.Partition
			out.Partitions = append(out.Partitions, a)
		}
		resp.Topics = append(resp.Topics, out)
	}
	c.Reply(resp)
}

func (h *offsetsAPI) listOffset(r *kmsg.ListOffsetsRequest, topic string, q *kmsg.ListOffsetsRequestTopicPartition) (
	a kmsg.ListOffsetsResponseTopicPartition, err error,
) {
	a = kmsg.NewListOffsetsResponseTopicPartition()
	if err := checkSpecial(r.Version, q.Timestamp); err != nil {
		return a, err
	}
	p, err := h.set.Get(topic, q.Partition)
	if err != nil {
		return a, err
	}
	ends, err := p.Ends(metadata.LeaderEpoch(q.CurrentLeaderEpoch))
	if err != nil {
		return a, err
	}
	if r.Version == 0 {
		a.OldStyleOffsets = oldStyleOffsets(p, ends, q)
		return a, nil
	}
	visible := ends.HighWatermark
	if r.IsolationLevel == 1 {
		visible = ends.Stable
	}
	return a, h.resolve(p, ends, visible, q.Timestamp, &a)
}

// checkSpecial refuses a timestamp below 0 that the request's version does not know.
func checkSpecial(version int16, ts int64) error {
	from := int16(0)
	switch {
	case ts >= tsEarliest:
	case ts == tsMax:
		from = 7
	case ts == tsEarliestLocal:
		from = 8
	case ts == tsLatestTiered:
		from = 9
	case ts == tsEarliestPending:
		from = 11
	default:
		return errTooOld
	}
	if version < from {
		return errTooOld
	}
	return nil
}

// resolve fills in the answer to versions from 1 on. What is not found stays -1.
func (h *offsetsAPI) resolve(p *replica.Partition, ends replica.Ends, visible, ts int64,
	a *kmsg.ListOffsetsResponseTopicPartition,
) error {
	switch ts {
	case tsLatest:
		if ends.Behind != nil {
			return ends.Behind
		}
		a.Offset, a.LeaderEpoch = visible, int32(ends.Epoch)
	case tsEarliest, tsEarliestLocal: // nothing is tiered
		a.Offset, a.LeaderEpoch = ends.Start, int32(ends.Epoch)
		if ends.Start < ends.End {
			a.LeaderEpoch = int32(p.EpochAt(ends.Start))
		}
	case tsLatestTiered, tsEarliestPending:
	case tsMax:
		at, ok, err := p.MaxTimestamp()
		if err != nil || !ok || at.Offset >= visible {
			return cmp.Or(err, ends.Behind)
		}
		a.Offset, a.Timestamp, a.LeaderEpoch = at.Offset, at.Timestamp, at.Epoch
	default:
		at, ok, err := p.OffsetForTime(ts, visible)
		if err != nil || !ok {
			return cmp.Or(err, ends.Behind)
		}
		a.Offset, a.Timestamp, a.LeaderEpoch = at.Offset, at.Timestamp, at.Epoch
	}
	return nil
}

// oldStyleOffsets answers version 0: offsets at which segments begin, newest first, before them the high watermark when
// everything is older than asked. Kafka goes by the files' modification time, here it is the largest timestamp in them.
func oldStyleOffsets(p *replica.Partition, ends replica.Ends, q *kmsg.ListOffsetsRequestTopicPartition) []int64 {
	var list []int64
	if q.Timestamp == tsEarliest {
		list = []int64{ends.Start}
	} else {
		whole := true // everything that comes later is older than asked
		for _, s := range p.Segments() {
			if q.Timestamp != tsLatest && s.MaxTimestamp > q.Timestamp {
				whole = false
				break
			}
			list = append(list, max(s.Base, ends.Start))
		}
		if whole && (len(list) == 0 || list[len(list)-1] < ends.HighWatermark) {
			list = append(list, ends.HighWatermark)
		}
		slices.Reverse(list)
	}
	return list[:min(len(list), max(int(q.MaxNumOffsets), 0))]
}
