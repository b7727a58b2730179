package protocol

import (
	"encoding/binary"

	"github.com/karstlog/karst/internal/uuid"
)

// FollowerFetchVersion is the version in which followers fetch on the cluster's port: with topic ids, replica state and
// diverging epochs.
const FollowerFetchVersion = 17

// syncedEndTag is the tagged field of a fetched partition in which a follower says up to where its log is on disk. It is
// Karst's own: Kafka's brokers acknowledge without asking for that.
const syncedEndTag = 10000

// AppendFollowerFetch appends the whole frame of a follower's fetch, with its size in front. Topics may be named more
// than once.
func AppendFollowerFetch(dst []byte, correlation int32, r *FetchRequest) []byte {
	start := len(dst)
	dst = appendInt32(dst, 0)
	dst = appendInt16(dst, keyFetch)
	dst = appendInt16(dst, FollowerFetchVersion)
	dst = appendInt32(dst, correlation)
	dst = append(appendInt16(dst, -1), 0) // no client id, no tags
	dst = appendInt32(dst, millis(r.MaxWait))
	dst = appendInt32(dst, r.MinBytes)
	dst = appendInt32(dst, r.MaxBytes)
	dst = append(dst, byte(r.Isolation))
	dst = appendInt32(dst, r.SessionID)
	dst = appendInt32(dst, r.SessionEpoch)
	dst = appendArrayLen(dst, len(r.Topics), true)
	for i := range r.Topics {
		t := &r.Topics[i]
		dst = append(dst, t.ID[:]...)
		dst = appendArrayLen(dst, len(t.Partitions), true)
		for j := range t.Partitions {
			dst = appendFollowed(dst, &t.Partitions[j])
		}
		dst = append(dst, 0)
	}
	dst = appendArrayLen(dst, len(r.Forgotten), true)
	for i := range r.Forgotten {
		t := &r.Forgotten[i]
		dst = append(dst, t.ID[:]...)
		dst = appendArrayLen(dst, len(t.Partitions), true)
		for _, p := range t.Partitions {
			dst = appendInt32(dst, p)
		}
		dst = append(dst, 0)
	}
	dst = appendString(dst, r.Rack, true)
	dst = append(dst, 1, 1, 4+8+1) // one tagged field: replica state
	dst = appendInt32(dst, r.ReplicaID)
	dst = append(appendInt64(dst, r.ReplicaEpoch), 0)
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-4))
	return dst
}

func appendFollowed(dst []byte, p *FetchPartition) []byte {
	dst = appendInt32(dst, p.Index)
	dst = appendInt32(dst, p.CurrentEpoch)
	dst = appendInt64(dst, p.Offset)
	dst = appendInt32(dst, p.LastFetchedEpoch)
	dst = appendInt64(dst, p.LogStart)
	dst = appendInt32(dst, p.MaxBytes)
	if p.SyncedEnd < 0 {
		return append(dst, 0)
	}
	dst = append(dst, 1)
	dst = append(appendUvarint(dst, syncedEndTag), 8)
	return appendInt64(dst, p.SyncedEnd)
}

// FollowerAnswer is the answer to a follower's fetch. It is decoded again and again into the same memory.
type FollowerAnswer struct {
	ErrorCode  int16
	SessionID  int32
	Partitions []FollowedPartition
}

// FollowedPartition is what a leader says about one partition.
type FollowedPartition struct {
	TopicID       uuid.UUID
	Index         int32
	ErrorCode     int16
	HighWatermark int64
	// StableOffset is, with OFFSET_OUT_OF_RANGE, the leader's log end.
	StableOffset int64
	LogStart     int64
	HasDiverging bool
	Diverging    EpochEnd
	Records      []byte // lies in what was decoded
}

// Decode reads a frame without its size: correlation id, tags and body in FollowerFetchVersion.
func (a *FollowerAnswer) Decode(frame []byte) (correlation int32, err error) {
	clear(a.Partitions)
	*a = FollowerAnswer{Partitions: a.Partitions[:0]}
	d := decoder{b: frame}
	correlation = d.int32()
	d.skipTags()
	d.int32() // throttle time
	a.ErrorCode, a.SessionID = d.int16(), d.int32()
	for n := d.array(true, 16+2); n > 0 && !d.bad; n-- {
		id := d.uuid()
		for m := d.array(true, 37); m > 0 && !d.bad; m-- {
			p := decodeFollowed(&d)
			p.TopicID = id
			a.Partitions = append(a.Partitions, p)
		}
		d.skipTags()
	}
	d.skipTags()
	return correlation, d.err()
}

func decodeFollowed(d *decoder) FollowedPartition {
	p := FollowedPartition{Index: d.int32(), ErrorCode: d.int16()}
	p.HighWatermark, p.StableOffset, p.LogStart = d.int64(), d.int64(), d.int64()
	if n := d.uvarint(); n > 0 { // aborted transactions, null to a follower
		d.fail()
	}
	d.int32() // preferred replica
	p.Records = d.bytes(true)
	d.tags(func(tag uint32, f decoder) {
		if tag == 0 {
			p.HasDiverging, p.Diverging = true, EpochEnd{Epoch: f.int32(), End: f.int64()}
			d.bad = d.bad || f.bad
		}
	})
	return p
}
