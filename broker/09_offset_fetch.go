package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/protocol"
)

// OffsetFetch, key 9, versions 0-10. A partition without a commit has offset -1 and no error, in groups that do not exist
// too. An offset that an open transaction has
// committed is not stable: who asks for stable ones is told to come again.
// v0 from ZooKeeper once, here from the group · v2 all topics, error of the whole group · v5 leader epoch (KIP-320)
// v7 require stable (KIP-447) · v8 several groups (KIP-709) · v9 member (KIP-848) · v10 topic ids
func (h *groupAPI) offsetFetch(c *protocol.Call, req *kmsg.OffsetFetchRequest) {
	if !proper(c, req.Group) {
		return
	}
	im := h.set.Image()
	resp := kmsg.NewPtrOffsetFetchResponse()
	if req.Version < 8 {
		h.fetchOne(im, req, resp)
		c.Reply(resp)
		return
	}
	resp.Groups = make([]kmsg.OffsetFetchResponseGroup, 0, len(req.Groups))
	for i := range req.Groups {
		if !proper(c, req.Groups[i].Group) {
			return
		}
		resp.Groups = append(resp.Groups, h.fetchGroup(im, req, &req.Groups[i]))
	}
	c.Reply(resp)
}

// fetchOne answers the versions for one group, by way of those for several.
func (h *groupAPI) fetchOne(im *metadata.Image, req *kmsg.OffsetFetchRequest, resp *kmsg.OffsetFetchResponse) {
	q := kmsg.OffsetFetchRequestGroup{Group: req.Group}
	if req.Topics != nil {
		q.Topics = make([]kmsg.OffsetFetchRequestGroupTopic, len(req.Topics))
	}
	for i, t := range req.Topics {
		q.Topics[i] = kmsg.OffsetFetchRequestGroupTopic{Topic: t.Topic, Partitions: t.Partitions}
	}
	g := h.fetchGroup(im, req, &q)
	resp.ErrorCode = g.ErrorCode
	for _, t := range g.Topics {
		out := kmsg.OffsetFetchResponseTopic{Topic: t.Topic, Partitions: make([]kmsg.OffsetFetchResponseTopicPartition, len(t.Partitions))}
		for i, p := range t.Partitions {
			out.Partitions[i] = kmsg.OffsetFetchResponseTopicPartition{
				Partition: p.Partition, Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, Metadata: p.Metadata, ErrorCode: p.ErrorCode,
			}
		}
		resp.Topics = append(resp.Topics, out)
	}
}

// fetchGroup answers for one group. Versions 0 and 1 have no place for the error of a group but its partitions.
func (h *groupAPI) fetchGroup(im *metadata.Image, req *kmsg.OffsetFetchRequest, q *kmsg.OffsetFetchRequestGroup) kmsg.OffsetFetchResponseGroup {
	version := req.Version
	out := kmsg.NewOffsetFetchResponseGroup()
	out.Group = q.Group
	f := &offsetFetch{image: im, version: version, out: &out}
	err := h.groups.View(q.Group, func(g *group.Group) {
		if version >= 7 && req.RequireStable {
			f.unstable = g.Unstable
		}
		if q.Topics == nil {
			f.all(g)
			return
		}
		for i := range q.Topics {
			f.topic(&q.Topics[i], func(name string, p int32) (group.Offset, bool) { return g.Offset(name, p) })
		}
	})
	if err == nil {
		return out
	}
	out.ErrorCode = codeOf(err)
	if h.groups.Partitions() == 0 {
		h.ensureTopic()
	}
	if version < 2 {
		f.failed = out.ErrorCode
		for i := range q.Topics {
			f.topic(&q.Topics[i], func(string, int32) (group.Offset, bool) { return group.Offset{}, false })
		}
	}
	return out
}

// offsetFetch makes the answer for one group.
type offsetFetch struct {
	image   *metadata.Image
	version int16
	out     *kmsg.OffsetFetchResponseGroup
	failed  int16 // the code of every partition
	// unstable tells of which partitions an open transaction has committed an offset; nil: it does not matter.
	unstable func(topic string, partition int32) bool
}

// all lists every offset of the group.
func (f *offsetFetch) all(g *group.Group) {
	offsets := g.Offsets()
	for len(offsets) > 0 {
		name := offsets[0].Topic
		t := kmsg.NewOffsetFetchResponseGroupTopic()
		t.Topic = name
		now, exists := f.image.Topic(name)
		if exists {
			t.TopicID = now.ID
		}
		for len(offsets) > 0 && offsets[0].Topic == name {
			o := &offsets[0]
			if current(now, &o.Offset) {
				t.Partitions = append(t.Partitions, f.stable(name, o.Partition, &o.Offset))
			}
			offsets = offsets[1:]
		}
		if len(t.Partitions) > 0 && (exists || f.version < 10) {
			f.out.Topics = append(f.out.Topics, t)
		}
	}
}

// topic answers for the partitions that were asked for.
func (f *offsetFetch) topic(q *kmsg.OffsetFetchRequestGroupTopic, offset func(string, int32) (group.Offset, bool)) {
	t := kmsg.NewOffsetFetchResponseGroupTopic()
	t.Topic, t.TopicID = q.Topic, q.TopicID
	failed := f.failed
	now, _ := f.image.Topic(q.Topic)
	if f.version >= 10 {
		var exists bool
		if now, exists = f.image.TopicByID(q.TopicID); exists {
			t.Topic = now.Name
		} else {
			failed = codeUnknownTopicID
		}
	}
	t.Partitions = make([]kmsg.OffsetFetchResponseGroupTopicPartition, len(q.Partitions))
	for i, p := range q.Partitions {
		t.Partitions[i] = f.partition(p, nil)
		t.Partitions[i].ErrorCode = failed
		if failed != codeNone {
			continue
		}
		t.Partitions[i] = f.stable(t.Topic, p, nil)
		if o, ok := offset(t.Topic, p); ok && current(now, &o) {
			t.Partitions[i] = f.stable(t.Topic, p, &o)
		}
	}
	f.out.Topics = append(f.out.Topics, t)
}

// current tells whether an offset is of the topic that has the name now: one that was deleted and made again has none of
// its own.
func current(now *metadata.Topic, o *group.Offset) bool {
	return now == nil || o.TopicID.IsZero() || o.TopicID == now.ID
}

// stable is the answer for a partition, or that its offset is not decided.
func (f *offsetFetch) stable(topic string, index int32, o *group.Offset) kmsg.OffsetFetchResponseGroupTopicPartition {
	if f.unstable != nil && f.unstable(topic, index) {
		a := f.partition(index, nil)
		a.ErrorCode = codeUnstableOffset
		return a
	}
	return f.partition(index, o)
}

func (f *offsetFetch) partition(index int32, o *group.Offset) kmsg.OffsetFetchResponseGroupTopicPartition {
	a := kmsg.NewOffsetFetchResponseGroupTopicPartition()
	a.Partition, a.Offset, a.LeaderEpoch, a.Metadata = index, -1, -1, new(string)
	if o != nil {
		a.Offset, a.LeaderEpoch, a.Metadata = o.Offset, o.LeaderEpoch, &o.Metadata
	}
	return a
}
