package broker

import (
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/group/coordinator"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol"
)

// FindCoordinator, key 10, versions 0-6: who coordinates a group. The first one has the topic of the groups created and
// is told to ask again.
// v1 transactions · v4 several keys at once (KIP-699) · v6 share groups (KIP-932)

// Kinds of keys.
const (
	keyGroup = 0
	keyTxn   = 1
	keyShare = 2
)

func (h *groupAPI) findCoordinator(c *protocol.Call, req *kmsg.FindCoordinatorRequest) {
	if !proper(c, req.CoordinatorKey) || !proper(c, req.CoordinatorKeys...) {
		return
	}
	resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
	if req.Version < 4 {
		k := h.locate(c, req.CoordinatorType, req.CoordinatorKey)
		resp.ErrorCode, resp.ErrorMessage, resp.NodeID, resp.Host, resp.Port = k.ErrorCode, k.ErrorMessage, k.NodeID, k.Host, k.Port
		if k.ErrorCode == codeNone {
			none := "NONE"
			resp.ErrorMessage = &none
		}
		c.Reply(resp)
		return
	}
	for _, key := range req.CoordinatorKeys {
		resp.Coordinators = append(resp.Coordinators, h.locate(c, req.CoordinatorType, key))
	}
	c.Reply(resp)
}

func (h *groupAPI) locate(c *protocol.Call, kind int8, key string) kmsg.FindCoordinatorResponseCoordinator {
	k := kmsg.NewFindCoordinatorResponseCoordinator()
	k.Key, k.NodeID, k.Port = key, -1, -1
	none := ""
	k.ErrorMessage = &none
	id, at, err := h.coordinatorOf(c.Conn().Listener, kind, key)
	if err != nil {
		k.ErrorCode, k.ErrorMessage = codeOf(err), message(err)
		return k
	}
	k.NodeID, k.Host, k.Port = int32(id), at.Host, at.Port
	return k
}

func (h *groupAPI) coordinatorOf(listener string, kind int8, key string) (metadata.BrokerID, metadata.Endpoint, error) {
	switch kind {
	case keyGroup:
	case keyTxn:
		return h.txnCoordinator(listener)
	case keyShare:
		return -1, metadata.Endpoint{}, checkShareKey(key)
	default:
		return -1, metadata.Endpoint{}, errInvalidRequest
	}
	// What the partitions here have applied, so that a broker is named only when it will not deny it.
	im := h.set.Image()
	t, ok := im.Topic(coordinator.Topic)
	if !ok {
		h.ensureTopic()
		return -1, metadata.Endpoint{}, coordinator.ErrNotAvailable
	}
	leader := t.Partitions[group.PartitionFor(key, int32(len(t.Partitions)))].Leader
	b, ok := im.Broker(leader)
	if !ok {
		return -1, metadata.Endpoint{}, coordinator.ErrNotAvailable
	}
	at, ok := endpoint(b, listener)
	if !ok {
		return -1, metadata.Endpoint{}, coordinator.ErrNotAvailable
	}
	return leader, at, nil
}

// txnCoordinator is the broker that leads the metadata log, for every transactional id.
func (h *groupAPI) txnCoordinator(listener string) (metadata.BrokerID, metadata.Endpoint, error) {
	none := metadata.Endpoint{}
	leader, ok := h.admin.Leader()
	if !ok || !h.txns {
		return -1, none, errNoTxnCoordinator
	}
	b, ok := h.set.Image().Broker(leader)
	if !ok || b.Fenced {
		return -1, none, errNoTxnCoordinator
	}
	at, ok := endpoint(b, listener)
	if !ok {
		return -1, none, errNoTxnCoordinator
	}
	return leader, at, nil
}

// checkShareKey tells what is wrong with a key, or that there is no coordinator for it.
func checkShareKey(key string) error {
	i := strings.LastIndexByte(key, ':')
	if i < 0 {
		return errShareKey
	}
	rest, partition := key[:i], key[i+1:]
	j := strings.LastIndexByte(rest, ':')
	if j <= 0 {
		return errShareKey
	}
	if _, err := uuid.Parse(rest[j+1:]); err != nil {
		return errShareKey
	}
	if _, err := strconv.ParseInt(partition, 10, 32); err != nil {
		return errShareKey
	}
	return errNoShareCoordinator
}
