package broker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/karstlog/karst/cluster"
	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol"
)

// Admin changes the cluster. *cluster.Cluster is one.
type Admin interface {
	CreateTopics(ctx context.Context, topics []controller.NewTopic, o cluster.CreateOptions) []cluster.CreateResult
	DeleteTopics(ctx context.Context, ids []uuid.UUID) []error
	CreatePartitions(ctx context.Context, more []controller.MorePartitions, validateOnly bool) []error
	AlterConfigs(ctx context.Context, changes []controller.ConfigChange, validateOnly bool) []error
	ElectLeaders(ctx context.Context, of []controller.Partition, unclean bool) []cluster.Election
	Reassign(ctx context.Context, rs []controller.Reassignment) []error
	// RemoveBroker takes a broker out of the cluster and its quorum.
	RemoveBroker(ctx context.Context, id metadata.BrokerID) error
	DescribeQuorum(ctx context.Context) (cluster.QuorumInfo, error)
	// AutoCreate creates topics in the background with the default settings; names that cannot be created are dropped.
	AutoCreate(names []string)
	// CreateLater creates one topic in the background, as described.
	CreateLater(t controller.NewTopic)
	// View is what a decision taken now would be taken on.
	View() controller.View
	Leader() (metadata.BrokerID, bool)
	Image() *metadata.Image
}

// adminAPI is the handlers that look at the cluster or change it.
type adminAPI struct {
	id    metadata.BrokerID
	set   *replica.Set
	admin Admin

	autoCreate    bool  // auto.create.topics.enable
	deleteEnabled bool  // delete.topic.enable
	maxDescribe   int32 // max.request.partition.size.limit
	level         *slog.LevelVar
}

func newAdminAPI(o Options) *adminAPI {
	return &adminAPI{
		id: o.ID, set: o.Set, admin: o.Admin, autoCreate: o.Topics.AutoCreate, deleteEnabled: o.Topics.DeleteEnable,
		maxDescribe: o.Topics.MaxDescribePartitions, level: o.Level,
	}
}

func (a *adminAPI) apis() []protocol.API {
	return []protocol.API{
		protocol.Route(0, 13, a.metadata),
		protocol.Route(0, 7, a.createTopics),
		protocol.Route(0, 6, a.deleteTopics),
		protocol.Route(0, 4, a.describeConfigs),
		protocol.Route(0, 2, a.alterConfigs),
		protocol.Route(0, 3, a.createPartitions),
		protocol.Route(0, 1, a.incrementalAlterConfigs),
		protocol.Route(0, 2, a.electLeaders),
		protocol.Route(0, 1, a.alterReassignments),
		protocol.Route(0, 0, a.listReassignments),
		protocol.Route(0, 2, a.describeQuorum),
		protocol.Route(0, 2, a.updateFeatures),
		protocol.Route(0, 2, a.describeCluster),
		protocol.Route(0, 0, a.unregisterBroker),
		protocol.Route(0, 1, a.listConfigResources),
		protocol.Route(0, 0, a.describeTopicPartitions),
	}
}

// Authorized operations as bit sets (KIP-430): what a client may do when nobody restricts it.
const (
	notAsked        = -2147483648
	topicOperations = 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<8 | 1<<10 | 1<<11
	// create, alter, describe, cluster action, describe configs, alter configs, idempotent write
	clusterOperations = 1<<5 | 1<<7 | 1<<8 | 1<<9 | 1<<10 | 1<<11 | 1<<12
)

func operations(asked bool, all int32) int32 {
	if !asked {
		return notAsked
	}
	return all
}

// internalTopic names topics that belong to the broker.
func internalTopic(name string) bool {
	return name == "__consumer_offsets" || name == "__transaction_state" || name == "__share_group_state"
}

// controllerID is the broker that admin requests end at; any broker may be asked.
func (a *adminAPI) controllerID() int32 {
	if id, ok := a.admin.Leader(); ok {
		return int32(id)
	}
	return -1
}

// endpoint is where a broker listens for clients that came by the given listener.
func endpoint(b *metadata.Broker, listener string) (metadata.Endpoint, bool) {
	i := slices.IndexFunc(b.Endpoints, func(e metadata.Endpoint) bool { return e.Name == listener })
	if i < 0 {
		return metadata.Endpoint{}, false
	}
	return b.Endpoints[i], true
}

func ids(brokers []metadata.BrokerID) []int32 {
	out := make([]int32, len(brokers))
	for i, b := range brokers {
		out[i] = int32(b)
	}
	return out
}

// inSync is the ISR as clients are told it. The last of it stays there while its broker is gone, since it has everything;
// Apache Kafka calls it eligible then.
func inSync(im *metadata.Image, p metadata.Partition) []int32 {
	out := []int32{}
	for _, id := range p.ISR {
		if b, ok := im.Broker(id); ok && !b.Fenced {
			out = append(out, int32(id))
		}
	}
	return out
}

// eligible are those that may lead beside the ISR that clients are told.
func eligible(im *metadata.Image, p metadata.Partition) []int32 {
	isr, out := inSync(im, p), []int32{}
	for _, id := range p.Replicas {
		may := slices.Contains(p.ELR, id) || slices.Contains(p.ISR, id) && !p.Unproven
		if may && !slices.Contains(isr, int32(id)) {
			out = append(out, int32(id))
		}
	}
	return out
}

// offline lists the replicas whose broker is not there.
func offline(im *metadata.Image, p metadata.Partition) []int32 {
	out := []int32{}
	for _, r := range p.Replicas {
		if b, ok := im.Broker(r); !ok || b.Fenced {
			out = append(out, int32(r))
		}
	}
	return out
}

// message is err's text for the answer; nil when there is no error.
func message(err error) *string {
	if err == nil {
		return nil
	}
	text := err.Error()
	return &text
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// within gives an admin request its time: what the client allows, at most a minute, so that a stuck quorum ends it.
func within(c *protocol.Call, millis int32) (context.Context, context.CancelFunc) {
	limit := time.Minute
	if d := time.Duration(millis) * time.Millisecond; d > 0 && d < limit {
		limit = d
	}
	return context.WithTimeout(c.Ctx(), limit)
}

// settled waits until this broker has applied what was just committed, so that the client can use what it is told of. A
// wait that takes too long is no error: the change is made.
func (a *adminAPI) settled(ctx context.Context) {
	_ = a.set.WaitApplied(ctx, a.admin.Image().Index())
}

var (
	errDeletionDisabled = errors.New("topic deletion is disabled")
	errEndpointType     = errors.New("the given endpoint type is not served here")
	errDuplicateTopic   = errors.New("the topic is named twice in the request")
	errElectionType     = errors.New("unknown type of election")
	errFeatureLevel     = errors.New("level refused")
	errBadRequest       = &controller.RequestError{Reason: "The request contradicts itself."}
)
