package broker

import (
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/protocol"
)

// OffsetCommit, key 8, versions 0-10. Answered when the offsets are below the high watermark.
// v0 stored in ZooKeeper once, here in the group like the others · v1 generation and member, a timestamp that is ignored
// v2-v4 retention of its own · v6 leader epoch (KIP-320) · v7 static members (KIP-345) · v10 topic ids (KIP-848)
func (h *groupAPI) offsetCommit(c *protocol.Call, req *kmsg.OffsetCommitRequest) {
	if !proper(c, req.Group, req.MemberID, text(req.InstanceID)) {
		return
	}
	o := &offsetCommit{call: c, resp: kmsg.NewPtrOffsetCommitResponse(), set: commitSet{im: h.set.Image(), byID: req.Version >= 10}}
	r := &group.Commit{
		MemberID: req.MemberID, InstanceID: text(req.InstanceID), Generation: req.Generation, Retention: -1,
	}
	if req.RetentionTimeMillis >= 0 && req.Version >= 2 && req.Version <= 4 {
		r.Retention = time.Duration(min(req.RetentionTimeMillis, maxRetentionMillis)) * time.Millisecond
	}
	for i := range req.Topics {
		o.topic(&req.Topics[i])
	}
	if r.Offsets = o.set.offsets; len(r.Offsets) == 0 {
		c.Reply(o.resp)
		return
	}
	h.call(req.Group, r, o.done)
}

// maxRetentionMillis keeps a client's retention within what a time.Duration can hold.
const maxRetentionMillis = 1 << 40

// offsetCommit is one request on its way.
type offsetCommit struct {
	call *protocol.Call
	resp *kmsg.OffsetCommitResponse
	set  commitSet
}

// topic answers for partitions that do not exist and leaves the others to the group.
func (o *offsetCommit) topic(t *kmsg.OffsetCommitRequestTopic) {
	out := kmsg.NewOffsetCommitResponseTopic()
	name, missing := o.set.name(t.Topic, t.TopicID)
	out.Topic, out.TopicID = name, t.TopicID
	for _, p := range t.Partitions {
		a := kmsg.NewOffsetCommitResponseTopicPartition()
		a.Partition = p.Partition
		a.ErrorCode = o.set.add(missing, commitPlace{len(o.resp.Topics), len(out.Partitions)}, group.CommitOffset{
			Topic: name, Partition: p.Partition, Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, Metadata: text(p.Metadata),
		})
		out.Partitions = append(out.Partitions, a)
	}
	o.resp.Topics = append(o.resp.Topics, out)
}

// done answers.
func (o *offsetCommit) done(a group.Answer, err error) {
	o.set.answer(a, err, func(at commitPlace, code int16) { o.resp.Topics[at.topic].Partitions[at.partition].ErrorCode = code })
	o.call.Reply(o.resp)
}
