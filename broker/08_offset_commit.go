package broker

import (
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol"
)

// OffsetCommit, key 8, versions 0-10. Answered when the offsets are below the high watermark.
// v0 stored in ZooKeeper once, here in the group like the others · v1 generation and member, a timestamp that is ignored
// v2-v4 retention of its own · v6 leader epoch (KIP-320) · v7 static members (KIP-345) · v10 topic ids (KIP-848)
func (h *groupAPI) offsetCommit(c *protocol.Call, req *kmsg.OffsetCommitRequest) {
	if !proper(c, req.Group, req.MemberID, text(req.InstanceID)) {
		return
	}
	o := &offsetCommit{call: c, req: req, resp: kmsg.NewPtrOffsetCommitResponse()}
	r := &group.Commit{
		MemberID: req.MemberID, InstanceID: text(req.InstanceID), Generation: req.Generation, Retention: -1,
	}
	if req.RetentionTimeMillis >= 0 && req.Version >= 2 && req.Version <= 4 {
		r.Retention = time.Duration(min(req.RetentionTimeMillis, maxRetentionMillis)) * time.Millisecond
	}
	im := h.set.Image()
	for i := range req.Topics {
		o.topic(im, &req.Topics[i], r)
	}
	if len(r.Offsets) == 0 {
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
	req  *kmsg.OffsetCommitRequest
	resp *kmsg.OffsetCommitResponse
	at   []commitPlace // where the offsets that the group decides on stand in resp
}

type commitPlace struct{ topic, partition int }

// topic answers for partitions that do not exist and adds the others to r.
func (o *offsetCommit) topic(im *metadata.Image, t *kmsg.OffsetCommitRequestTopic, r *group.Commit) {
	out := kmsg.NewOffsetCommitResponseTopic()
	out.Topic, out.TopicID = t.Topic, t.TopicID
	name, missing := t.Topic, error(nil)
	if o.req.Version >= 10 {
		if name, missing = nameOf(im, t.TopicID); missing == nil {
			out.Topic = name
		}
	}
	for _, p := range t.Partitions {
		a := kmsg.NewOffsetCommitResponseTopicPartition()
		a.Partition = p.Partition
		id, err := uuid.UUID{}, missing
		if err == nil {
			id, err = known(im, name, p.Partition)
		}
		if a.ErrorCode = codeOf(err); err == nil {
			o.at = append(o.at, commitPlace{len(o.resp.Topics), len(out.Partitions)})
			r.Offsets = append(r.Offsets, group.CommitOffset{
				Topic: name, TopicID: id, Partition: p.Partition, Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, Metadata: text(p.Metadata),
			})
		}
		out.Partitions = append(out.Partitions, a)
	}
	o.resp.Topics = append(o.resp.Topics, out)
}

// nameOf finds the topic with an id.
func nameOf(im *metadata.Image, id [16]byte) (string, error) {
	t, ok := im.TopicByID(id)
	if !ok {
		return "", &metadata.UnknownTopicIDError{ID: id}
	}
	return t.Name, nil
}

// done answers. What the group refuses as a whole is the error of each partition that it was asked about.
func (o *offsetCommit) done(a group.Answer, err error) {
	for i, at := range o.at {
		each := err
		if err == nil {
			each = a.(*group.CommitAnswer).Errs[i]
		}
		o.resp.Topics[at.topic].Partitions[at.partition].ErrorCode = codeOf(each)
	}
	o.call.Reply(o.resp)
}
