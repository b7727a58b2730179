package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol"
)

// Metadata, key 3, versions 0-13. Answered from the image that this broker has applied.
// v0 no list of topics means all · v1 controller, rack, internal topics; null means all · v2 cluster id · v4 auto creation may
// be turned off · v5 offline replicas · v7 leader epoch · v8 authorized operations (KIP-430) · v10 topic ids (KIP-516)
// v12 topics by id · v13 top-level error
func (a *adminAPI) metadata(c *protocol.Call, req *kmsg.MetadataRequest) {
	im := a.set.Image()
	resp := req.ResponseKind().(*kmsg.MetadataResponse)
	clusterID := im.ClusterID().String()
	resp.ClusterID = &clusterID
	resp.ControllerID = a.controllerID()
	resp.AuthorizedOperations = operations(req.IncludeClusterAuthorizedOperations, clusterOperations)
	for _, b := range im.Brokers() {
		if e, ok := endpoint(b, c.Conn().Listener); ok && !b.Fenced {
			rb := kmsg.NewMetadataResponseBroker()
			rb.NodeID, rb.Host, rb.Port, rb.Rack = int32(b.ID), e.Host, e.Port, optional(b.Rack)
			resp.Brokers = append(resp.Brokers, rb)
		}
	}
	all := req.Topics == nil || c.Version() == 0 && len(req.Topics) == 0
	switch {
	case all:
		for t := range im.Topics() {
			resp.Topics = append(resp.Topics, describe(im, t, req.IncludeTopicAuthorizedOperations))
		}
	case byIDTooEarly(req):
		for _, t := range req.Topics {
			resp.Topics = append(resp.Topics, unknownTopic(t.Topic, t.TopicID, codeInvalidRequest))
		}
	default:
		resp.Topics = a.asked(im, req)
	}
	c.Reply(resp)
}

// byIDTooEarly: versions 10 and 11 have a field for the id but do not look topics up by it (KAFKA-10774).
func byIDTooEarly(req *kmsg.MetadataRequest) bool {
	if req.Version > 11 {
		return false
	}
	for _, t := range req.Topics {
		if t.Topic == nil || t.TopicID != [16]byte{} {
			return true
		}
	}
	return false
}

// asked describes the topics that the request names, each once.
func (a *adminAPI) asked(im *metadata.Image, req *kmsg.MetadataRequest) []kmsg.MetadataResponseTopic {
	out := []kmsg.MetadataResponseTopic{}
	type wanted struct {
		name string
		id   uuid.UUID
	}
	seen := make(map[wanted]struct{}, len(req.Topics))
	var create []string
	for _, r := range req.Topics {
		w := wanted{id: r.TopicID}
		if r.Topic != nil && w.id.IsZero() {
			w.name = *r.Topic
		}
		if _, twice := seen[w]; twice {
			continue
		}
		seen[w] = struct{}{}
		var t *metadata.Topic
		var ok bool
		code := codeUnknownTopicID
		switch {
		case !w.id.IsZero():
			t, ok = im.TopicByID(w.id)
		case r.Topic == nil:
			code = codeUnknown
		default:
			t, ok = im.Topic(w.name)
			code = codeUnknownTopic
			if metadata.CheckTopicName(w.name) != nil {
				code = codeInvalidTopic
			} else if !ok && a.mayCreate(req) {
				create = append(create, w.name)
			}
		}
		if ok {
			out = append(out, describe(im, t, req.IncludeTopicAuthorizedOperations))
		} else if w.id.IsZero() {
			out = append(out, unknownTopic(r.Topic, w.id, code))
		} else {
			out = append(out, unknownTopic(nil, w.id, code))
		}
	}
	if len(create) > 0 {
		a.admin.AutoCreate(create)
	}
	return out
}

// mayCreate: before version 4 a client could not say that it does not want topics created.
func (a *adminAPI) mayCreate(req *kmsg.MetadataRequest) bool {
	return a.autoCreate && (req.Version < 4 || req.AllowAutoTopicCreation)
}

func unknownTopic(name *string, id uuid.UUID, code int16) kmsg.MetadataResponseTopic {
	t := kmsg.NewMetadataResponseTopic()
	t.ErrorCode, t.Topic, t.TopicID = code, name, id
	if name != nil {
		t.IsInternal = internalTopic(*name)
	}
	return t
}

func describe(im *metadata.Image, t *metadata.Topic, withOperations bool) kmsg.MetadataResponseTopic {
	out := kmsg.NewMetadataResponseTopic()
	name := t.Name
	out.Topic, out.TopicID, out.IsInternal = &name, t.ID, internalTopic(t.Name)
	out.AuthorizedOperations = operations(withOperations, topicOperations)
	out.Partitions = make([]kmsg.MetadataResponseTopicPartition, len(t.Partitions))
	for i, p := range t.Partitions {
		rp := kmsg.NewMetadataResponseTopicPartition()
		rp.Partition, rp.Leader, rp.LeaderEpoch = int32(i), int32(p.Leader), int32(p.LeaderEpoch)
		rp.Replicas, rp.ISR, rp.OfflineReplicas = ids(p.Replicas), inSync(im, p), offline(im, p)
		if p.Leader == metadata.NoBroker {
			rp.ErrorCode = codeLeaderNotAvailable
		}
		out.Partitions[i] = rp
	}
	return out
}
