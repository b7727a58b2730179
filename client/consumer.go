package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	errNoBootstrap = errors.New("no bootstrap server is given")
	errNoTopics    = errors.New("neither topics nor partitions are given")
	errBoth        = errors.New("partitions are chosen by the group; give Topics with Group, or Partitions without")
)

// ErrNoGroup says that a consumer without a group has nowhere to keep offsets: its program keeps them.
var ErrNoGroup = errors.New("the consumer has no group")

// Delivery is when a group's offsets are committed.
type Delivery int8

// The values of Delivery.
const (
	// AtLeastOnce commits records after they were handled: when the next Poll comes, or by Commit. Whoever dies in between
	// leaves records that another member handles again.
	AtLeastOnce Delivery = iota
	// AtMostOnce commits records before Poll returns them. Whoever dies while handling them loses them.
	AtMostOnce
	// Manual commits by Commit only.
	Manual
)

// ConsumerOptions is how a consumer works. Bootstrap and either Topics or Partitions must be given.
type ConsumerOptions struct {
	Bootstrap []string // host:port of some brokers (bootstrap.servers)
	ClientID  string   // client.id; "": karst

	Topics     []string           // all partitions of these, divided among the members when there is a group
	Partitions map[string][]int32 // without a group: just these partitions
	// Group is the group to join (group.id). "": the consumer reads by offset, alone, and nothing is committed.
	Group    string
	Member   string // group.instance.id: a member that restarts within SessionTimeout gets its partitions back without a rebalance
	Delivery Delivery

	Start           Position      // where to begin when the group has no offset yet, and without a group; zero: Earliest
	CommitInterval  time.Duration // at the latest (auto.commit.interval.ms); 0: 5 s
	SessionTimeout  time.Duration // until a silent member is replaced (session.timeout.ms); 0: 45 s
	RebalanceWithin time.Duration // how long a rebalance waits for a member that handles records (max.poll.interval.ms); 0: 5 min

	// MinBytes and MaxWait make Poll's requests long: brokers answer when so much is there or the time is over
	// (fetch.min.bytes, fetch.max.wait.ms). 0: one byte, 500 ms.
	MinBytes int
	MaxWait  time.Duration

	ReadCommitted bool // hold back records of open transactions, leave out aborted ones (isolation.level)

	Extra []kgo.Opt // options of franz-go, which win over those above
}

// Consumer reads records. Poll, Run, Commit and the rewinding methods are for one goroutine; Close may come from another.
type Consumer struct {
	cl       *kgo.Client
	group    string
	delivery Delivery
	handled  []*Record // returned by the last Poll; handled once the next one comes
	held     []*Record // polled and not committed, with AtMostOnce
	mu       struct {
		sync.Mutex
		assigned map[string]map[int32]bool
		changed  chan struct{} // closed and renewed when assigned changes
	}
}

// NewConsumer makes a consumer, which begins to fetch at once. It does not wait for a broker: Poll finds out.
func NewConsumer(o ConsumerOptions) (*Consumer, error) {
	switch {
	case len(o.Bootstrap) == 0:
		return nil, errNoBootstrap
	case len(o.Topics) == 0 && len(o.Partitions) == 0:
		return nil, errNoTopics
	case o.Group != "" && len(o.Partitions) > 0 || len(o.Topics) > 0 && len(o.Partitions) > 0:
		return nil, errBoth
	}
	c := &Consumer{group: o.Group, delivery: o.Delivery}
	c.mu.assigned, c.mu.changed = map[string]map[int32]bool{}, make(chan struct{})
	start := o.Start.offset()
	opts := []kgo.Opt{
		kgo.SeedBrokers(o.Bootstrap...), kgo.ClientID(cmp.Or(o.ClientID, "karst")),
		kgo.ConsumeTopics(o.Topics...), kgo.ConsumeStartOffset(start),
		kgo.FetchMinBytes(int32(cmp.Or(o.MinBytes, 1))), kgo.FetchMaxWait(cmp.Or(o.MaxWait, 500*time.Millisecond)),
	}
	if o.ReadCommitted {
		opts = append(opts, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	if len(o.Partitions) > 0 {
		offsets := map[string]map[int32]kgo.Offset{}
		for topic, partitions := range o.Partitions {
			offsets[topic] = map[int32]kgo.Offset{}
			for _, p := range partitions {
				offsets[topic][p] = start
			}
			c.assign(map[string][]int32{topic: partitions})
		}
		opts = append(opts, kgo.ConsumePartitions(offsets))
	}
	if o.Group != "" {
		opts = append(opts, c.groupOpts(o)...)
	}
	var err error
	c.cl, err = kgo.NewClient(slices.Concat(opts, o.Extra)...)
	return c, err
}

func (c *Consumer) groupOpts(o ConsumerOptions) []kgo.Opt {
	forget := func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { c.unassign(lost) }
	opts := []kgo.Opt{
		kgo.ConsumerGroup(o.Group),
		kgo.SessionTimeout(cmp.Or(o.SessionTimeout, 45*time.Second)),
		kgo.RebalanceTimeout(cmp.Or(o.RebalanceWithin, 5*time.Minute)),
		kgo.BlockRebalanceOnPoll(), // no partition goes while its records are being handled
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, got map[string][]int32) { c.assign(got) }),
		kgo.OnPartitionsLost(forget),
		kgo.OnPartitionsRevoked(func(ctx context.Context, cl *kgo.Client, lost map[string][]int32) {
			if o.Delivery == AtLeastOnce {
				_ = cl.CommitMarkedOffsets(ctx) // what cannot be committed is handled again by who gets the partition
			}
			c.unassign(lost)
		}),
	}
	if o.Member != "" {
		opts = append(opts, kgo.InstanceID(o.Member))
	}
	if o.Delivery == AtLeastOnce {
		return append(opts, kgo.AutoCommitMarks(), kgo.AutoCommitInterval(cmp.Or(o.CommitInterval, 5*time.Second)))
	}
	return append(opts, kgo.DisableAutoCommit())
}

func (c *Consumer) assign(got map[string][]int32) { c.change(got, true) }

func (c *Consumer) unassign(lost map[string][]int32) { c.change(lost, false) }

func (c *Consumer) change(partitions map[string][]int32, have bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for topic, ps := range partitions {
		if c.mu.assigned[topic] == nil {
			c.mu.assigned[topic] = map[int32]bool{}
		}
		for _, p := range ps {
			if have {
				c.mu.assigned[topic][p] = true
			} else {
				delete(c.mu.assigned[topic], p)
			}
		}
	}
	close(c.mu.changed)
	c.mu.changed = make(chan struct{})
}

// Poll returns up to limit records (0: what is there), waiting for one until ctx ends, which is no error: it returns none.
// With AtLeastOnce, the records of the Poll before count as handled from here on. Errors of single partitions come
// together with the records of others; after an error, Poll may be called again.
func (c *Consumer) Poll(ctx context.Context, limit int) ([]*Record, error) {
	if c.group != "" {
		if c.delivery == AtLeastOnce {
			c.cl.MarkCommitRecords(c.handled...)
		}
		c.cl.AllowRebalance()
	}
	records, err := c.held, error(nil)
	if len(records) == 0 {
		fetches := c.cl.PollRecords(ctx, limit)
		if fetches.IsClientClosed() {
			return nil, kgo.ErrClientClosed
		}
		records = fetches.Records()
		fetches.EachError(func(topic string, partition int32, e error) {
			if ctx.Err() == nil || !errors.Is(e, ctx.Err()) {
				err = errors.Join(err, fmt.Errorf("%s-%d: %w", topic, partition, e))
			}
		})
	}
	if c.group != "" && c.delivery == AtMostOnce && len(records) > 0 {
		c.held = records // nobody has seen them: they come again if they cannot be committed
		if e := c.cl.CommitRecords(ctx, records...); e != nil {
			return nil, fmt.Errorf("commit before handling: %w", e)
		}
		c.held = nil
	}
	c.handled = records
	return records, err
}

// Run polls and has handle work on what came, until ctx ends (it returns nil then) or handle returns an error (it returns
// that). It commits what was handled before it returns.
func (c *Consumer) Run(ctx context.Context, handle func(context.Context, []*Record) error) error {
	for {
		records, err := c.Poll(ctx, 0)
		if ctx.Err() == nil && err != nil {
			return err
		}
		if len(records) > 0 {
			if err := handle(ctx, records); err != nil {
				c.handled = nil // they come again, here or elsewhere
				return errors.Join(err, c.commitAtEnd(ctx))
			}
		}
		if ctx.Err() != nil {
			return c.commitAtEnd(ctx)
		}
	}
}

// commitAtEnd commits although ctx is over.
func (c *Consumer) commitAtEnd(ctx context.Context) error {
	if c.group == "" || c.delivery != AtLeastOnce {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return c.Commit(ctx)
}

// Commit commits every record that Poll has returned and waits for the answer. Errors: ErrNoGroup, and Kafka's, of which
// a member that was replaced gets ILLEGAL_GENERATION or UNKNOWN_MEMBER_ID.
func (c *Consumer) Commit(ctx context.Context) error {
	if c.group == "" {
		return ErrNoGroup
	}
	if c.delivery == AtLeastOnce {
		c.cl.MarkCommitRecords(c.handled...)
		c.handled = nil
		return c.cl.CommitMarkedOffsets(ctx)
	}
	return c.cl.CommitUncommittedOffsets(ctx)
}

// Close leaves the group and ends the consumer. What the last Poll returned is not committed by it: Run does so, or Commit.
func (c *Consumer) Close() {
	c.cl.CloseAllowingRebalance()
}
