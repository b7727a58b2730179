// Package private holds the requests of kctl that Kafka's protocol has no words for: how the cluster itself does. They are
// served on client listeners with keys that Apache Kafka will never use, and listed in ApiVersions to kctl alone. Bodies are
// JSON, so that an older kctl reads what it knows of a newer broker's answer; fields are only ever added.
package private

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/protocol"
)

// The requests.
var (
	DescribeCluster = Method[Empty, Cluster]{10000}
	DescribeNode    = Method[Empty, Node]{10001}
	Drain           = Method[DrainRequest, Done]{10002}
	Decommission    = Method[DecommissionRequest, Progress]{10003}
	Remove          = Method[RemoveRequest, Done]{10004}
	TransferRaft    = Method[Empty, Done]{10005}
)

// Empty asks without saying more.
type Empty struct{}

// Cluster is what the broker that answers knows. Without a leader of the metadata log it may be old.
type Cluster struct {
	ClusterID  string     `json:"cluster_id"`
	Name       string     `json:"name"`
	AnsweredBy int32      `json:"answered_by"`
	Controller int32      `json:"controller"` // -1: the metadata log has no leader, nothing can be changed
	Term       uint64     `json:"term"`
	Commit     uint64     `json:"commit_index"`
	Applied    uint64     `json:"applied_index"` // by the broker that answers
	ContactMs  int64      `json:"last_contact_ms"`
	Brokers    []Broker   `json:"brokers"`
	Servers    []Server   `json:"raft_servers"`
	Partitions Partitions `json:"partitions"`
}

// Broker is a registered broker.
type Broker struct {
	ID          int32  `json:"id"`
	Addr        string `json:"address"` // of its first listener
	Rack        string `json:"rack"`
	State       string `json:"state"`  // alive, fenced, draining
	Gossip      string `json:"gossip"` // alive, or not seen
	Raft        string `json:"raft"`   // leader, voter, nonvoter; none
	ClusterAddr string `json:"cluster_address"`
	Leaders     int    `json:"leaders"`
	Replicas    int    `json:"replicas"`
	OutOfSync   int    `json:"replicas_out_of_sync"`
}

// Server is a member of the metadata log's quorum. Match and ContactMs are known to the leader alone; -1: not known.
type Server struct {
	ID        string `json:"id"`
	Broker    int32  `json:"broker"`
	Addr      string `json:"address"`
	Voter     bool   `json:"voter"`
	Leader    bool   `json:"leader"`
	Match     int64  `json:"match_index"`
	Lag       int64  `json:"lag"`
	ContactMs int64  `json:"last_contact_ms"`
}

// Partitions counts them.
type Partitions struct {
	Total           int `json:"total"`
	Leaderless      int `json:"leaderless"`
	UnderReplicated int `json:"under_replicated"`
	UnderMinISR     int `json:"under_min_isr"`
	Moving          int `json:"moving"`
}

// Node is what a broker says about itself.
type Node struct {
	ID       int32       `json:"id"`
	Version  string      `json:"version"`
	UptimeMs int64       `json:"uptime_ms"`
	Dirs     []Directory `json:"log_dirs"`
	Raft     string      `json:"raft_state"`
	Applied  uint64      `json:"applied_index"`
	Snapshot uint64      `json:"last_index"`
}

// Directory is a log directory.
type Directory struct {
	Path   string `json:"path"`
	Total  int64  `json:"total_bytes"`
	Usable int64  `json:"usable_bytes"`
	Error  string `json:"error,omitempty"` // it is offline
}

// DrainRequest moves the leaderships of a broker away, and keeps them away until it starts again; Undo takes it back.
type DrainRequest struct {
	Broker int32 `json:"broker"`
	Undo   bool  `json:"undo"`
	DryRun bool  `json:"dry_run"`
}

// DecommissionRequest moves all replicas of a broker to others. Cancel stops that, Status only asks.
type DecommissionRequest struct {
	Broker int32 `json:"broker"`
	Cancel bool  `json:"cancel"`
	Status bool  `json:"status"`
	DryRun bool  `json:"dry_run"`
}

// Progress of a decommission.
type Progress struct {
	Left   int `json:"replicas_left"`
	Moving int `json:"replicas_moving"`
	Failure
}

// RemoveRequest forgets a broker that is gone for good.
type RemoveRequest struct {
	Broker int32 `json:"broker"`
	// Force forgets it although partitions still have replicas there.
	Force  bool `json:"force"`
	DryRun bool `json:"dry_run"`
}

// Done is the answer to a change.
type Done struct {
	Failure
	Leaders  int `json:"leaders"`  // that the broker still has, or would lose
	Replicas int `json:"replicas"` // likewise
}

// Failure is why a request was refused; the zero Failure: it was not.
type Failure struct {
	Code   int16  `json:"error_code,omitempty"` // Kafka's number
	Reason string `json:"error,omitempty"`
}

// Err is the refusal as an error.
func (f Failure) Err() error {
	if f.Code == 0 && f.Reason == "" {
		return nil
	}
	return errors.New(f.Reason)
}

// Method is one request with question Q and answer A.
type Method[Q, A any] struct{ key int16 }

// Requester is a broker as a client knows it; *kgo.Broker is one.
type Requester interface {
	Request(ctx context.Context, req kmsg.Request) (kmsg.Response, error)
}

// Call asks a broker.
func (m Method[Q, A]) Call(ctx context.Context, to Requester, q Q) (A, error) {
	var none A
	resp, err := to.Request(ctx, &request[Q, A]{frame[Q]{key: m.key, body: q}})
	if err != nil {
		return none, err
	}
	r, ok := resp.(*response[A])
	if !ok {
		return none, fmt.Errorf("private request %d was answered with a %T", m.key, resp)
	}
	return r.body, nil
}

// Route is the row that serves the method. serve answers with Reply, then or later.
func (m Method[Q, A]) Route(serve func(*protocol.Call, Q)) protocol.API {
	return protocol.RouteNew(m.key, 0, 0, func() *request[Q, A] { return &request[Q, A]{frame[Q]{key: m.key}} },
		func(c *protocol.Call, r *request[Q, A]) { serve(c, r.body) })
}

// Reply answers a call.
func (m Method[Q, A]) Reply(c *protocol.Call, a A) {
	c.Reply(&response[A]{frame[A]{key: m.key, body: a}})
}

// frame is what request and response share of kmsg's interfaces: one version, tagged header, JSON body.
type frame[B any] struct {
	key  int16
	body B
}

// Key is part of kmsg.Request and kmsg.Response.
func (f *frame[B]) Key() int16 { return f.key }

// MaxVersion is part of kmsg.Request and kmsg.Response.
func (f *frame[B]) MaxVersion() int16 { return 0 }

// SetVersion is part of kmsg.Request and kmsg.Response.
func (f *frame[B]) SetVersion(int16) {}

// GetVersion is part of kmsg.Request and kmsg.Response.
func (f *frame[B]) GetVersion() int16 { return 0 }

// IsFlexible is part of kmsg.Request and kmsg.Response.
func (f *frame[B]) IsFlexible() bool { return true }

// AppendTo is part of kmsg.Request and kmsg.Response.
func (f *frame[B]) AppendTo(b []byte) []byte {
	text, err := json.Marshal(f.body)
	if err != nil {
		panic(fmt.Sprintf("private: %T does not encode: %v", f.body, err))
	}
	return append(b, text...)
}

// ReadFrom is part of kmsg.Request and kmsg.Response.
func (f *frame[B]) ReadFrom(b []byte) error { return json.Unmarshal(b, &f.body) }

type request[Q, A any] struct{ frame[Q] }

// ResponseKind is part of kmsg.Request.
func (r *request[Q, A]) ResponseKind() kmsg.Response { return &response[A]{frame[A]{key: r.key}} }

type response[A any] struct{ frame[A] }

// RequestKind is part of kmsg.Response. Nobody makes a request from an answer.
func (r *response[A]) RequestKind() kmsg.Request { return nil }
