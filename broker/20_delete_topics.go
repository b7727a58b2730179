package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol"
)

// DeleteTopics, key 20, versions 0-6. The topic is gone from Metadata when this answers; its files go later.
// v5 messages · v6 by id (KIP-516)
func (a *adminAPI) deleteTopics(c *protocol.Call, req *kmsg.DeleteTopicsRequest) {
	ctx, cancel := within(c, req.TimeoutMillis)
	defer cancel()
	im := a.admin.Image()
	resp := req.ResponseKind().(*kmsg.DeleteTopicsResponse)
	for i := range req.TopicNames {
		req.Topics = append(req.Topics, kmsg.DeleteTopicsRequestTopic{Topic: &req.TopicNames[i]})
	}
	var doomed []uuid.UUID
	var rows []int // of doomed in resp.Topics
	seen := map[uuid.UUID]int{}
	for _, t := range req.Topics {
		row := len(resp.Topics)
		rt := kmsg.NewDeleteTopicsResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		topic, err := a.deletable(im, t)
		if err == nil {
			if first, twice := seen[topic.ID]; twice {
				refuse(&resp.Topics[first], errDuplicateTopic)
				continue
			}
			seen[topic.ID] = row
			rt.Topic, rt.TopicID = &topic.Name, topic.ID
			doomed, rows = append(doomed, topic.ID), append(rows, row)
		}
		refuse(&rt, err)
		resp.Topics = append(resp.Topics, rt)
	}
	a.deleteAll(doomed, rows, resp, func(ids []uuid.UUID) []error {
		errs := a.admin.DeleteTopics(ctx, ids)
		a.settled(ctx)
		return errs
	})
	c.Reply(resp)
}

// deleteAll deletes what was not found to be named twice, and notes what came of it.
func (a *adminAPI) deleteAll(doomed []uuid.UUID, rows []int, resp *kmsg.DeleteTopicsResponse, del func([]uuid.UUID) []error) {
	var ids []uuid.UUID
	var at []int
	for i, row := range rows {
		if resp.Topics[row].ErrorCode == codeNone {
			ids, at = append(ids, doomed[i]), append(at, row)
		}
	}
	if len(ids) == 0 {
		return
	}
	for i, err := range del(ids) {
		refuse(&resp.Topics[at[i]], err)
	}
}

func refuse(t *kmsg.DeleteTopicsResponseTopic, err error) {
	t.ErrorCode, t.ErrorMessage = codeOf(err), message(err)
}

func (a *adminAPI) deletable(im *metadata.Image, t kmsg.DeleteTopicsRequestTopic) (*metadata.Topic, error) {
	if !a.deleteEnabled {
		return nil, errDeletionDisabled
	}
	id := uuid.UUID(t.TopicID)
	switch {
	case t.Topic != nil && !id.IsZero(), t.Topic == nil && id.IsZero():
		return nil, errBadRequest
	case t.Topic == nil:
		topic, ok := im.TopicByID(id)
		if !ok {
			return nil, &metadata.UnknownTopicIDError{ID: id}
		}
		return topic, nil
	}
	topic, ok := im.Topic(*t.Topic)
	if !ok {
		return nil, &metadata.UnknownTopicError{Name: *t.Topic}
	}
	return topic, nil
}
