package broker

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/group/coordinator"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol"
)

// groupAPI is the handlers of consumer groups. A call that waits for others (JoinGroup, SyncGroup) or for a write holds
// no goroutine: the coordinator calls back.
type groupAPI struct {
	id     metadata.BrokerID
	groups *coordinator.Coordinator
	set    *replica.Set
	admin  Admin
	conf   config.Groups
	txns   bool // transactions are served
}

func newGroupAPI(o Options) *groupAPI {
	return &groupAPI{id: o.ID, groups: o.Groups, set: o.Set, admin: o.Admin, conf: o.GroupConfig, txns: o.Txns != nil}
}

func (h *groupAPI) apis() []protocol.API {
	join, sync := protocol.Route(0, 9, h.joinGroup), protocol.Route(0, 5, h.syncGroup)
	join.MaxBodyBytes, sync.MaxBodyBytes = maxGroupBody, maxGroupBody
	return []protocol.API{
		join, sync,
		protocol.Route(0, 10, h.offsetCommit),
		protocol.Route(0, 10, h.offsetFetch),
		protocol.Route(0, 6, h.findCoordinator),
		protocol.Route(0, 4, h.heartbeat),
		protocol.Route(0, 5, h.leaveGroup),
		protocol.Route(0, 6, h.describeGroups),
		protocol.Route(0, 5, h.listGroups),
		protocol.Route(0, 3, h.deleteGroups),
		protocol.Route(0, 0, h.offsetDelete),
	}
}

// maxGroupBody is the largest JoinGroup and SyncGroup that is answered: the leader of a large group brings everybody's
// assignment. What cannot be stored is refused.
const maxGroupBody = 16 << 20

// groupOperations is what a client may do to a group when nobody restricts it (KIP-430): read, delete, describe,
// describe configs, alter configs.
const groupOperations = 1<<3 | 1<<6 | 1<<8 | 1<<10 | 1<<11

var (
	errNoTxnCoordinator   = errors.New("transactions are not served by this broker")
	errNoShareCoordinator = errors.New("share groups are not served by this broker")
	errShareKey           = errors.New("the key of a share coordinator is group:topicId:partition")
	errNameTooLong        = errors.New("a string is longer than 32767 bytes")
	errInternalPartitions = errors.New("the number of partitions of the broker's own topics is fixed: it says where a group is kept")
	errNoSuchGroup        = errors.New("the group does not exist")
)

// maxName is the longest string that the protocol's types allow. Compact strings could say more; Kafka closes the
// connection then.
const maxName = 1<<15 - 1

// proper closes the connection of a client that sends names which no other field of the protocol could carry.
func proper(c *protocol.Call, names ...string) bool {
	for _, n := range names {
		if len(n) > maxName {
			c.Fail(errNameTooLong)
			return false
		}
	}
	return true
}

func (h *groupAPI) ensureTopic() { ensureGroupTopic(h.admin, h.conf) }

// ensureGroupTopic has the topic of the groups created if it is not there yet; that takes a moment, in which clients are
// told to come again.
func ensureGroupTopic(admin Admin, conf config.Groups) {
	im := admin.Image()
	if _, ok := im.Topic(coordinator.Topic); ok {
		return
	}
	value := func(v string) *string { return &v }
	admin.CreateLater(controller.NewTopic{
		Name: coordinator.Topic, Partitions: conf.Partitions, ReplicationFactor: conf.Replicas(len(im.Brokers())),
		Configs: []controller.ConfigValue{
			{Name: "cleanup.policy", Value: value("compact")},
			{Name: "compression.type", Value: value("producer")},
			{Name: "segment.bytes", Value: value(fmt.Sprint(conf.SegmentBytes))},
		},
	})
}

// call passes a request on to the group. done gets the answer, or the error as a code's cause.
func (h *groupAPI) call(id string, r group.Request, done coordinator.Done) {
	if h.groups.Partitions() == 0 {
		h.ensureTopic()
	}
	h.groups.Call(id, r, done)
}

// freshID is the random part of a member id, in the form of Kafka's: clients and people know it.
func freshID() (string, error) {
	id, err := uuid.New(rand.Reader)
	if err != nil {
		return "", err
	}
	x := hex.EncodeToString(id[:])
	return x[:8] + "-" + x[8:12] + "-" + x[12:16] + "-" + x[16:20] + "-" + x[20:], nil
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// known checks that a partition exists and returns the id of its topic.
func known(im *metadata.Image, topic string, partition int32) (uuid.UUID, error) {
	t, ok := im.Topic(topic)
	if !ok {
		return uuid.UUID{}, &metadata.UnknownTopicError{Name: topic}
	}
	if partition < 0 || int(partition) >= len(t.Partitions) {
		return uuid.UUID{}, &replica.UnknownPartitionError{Topic: topic, Partition: partition}
	}
	return t.ID, nil
}
