package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/karstlog/karst/internal/check"
	"github.com/karstlog/karst/test/internal/proc"
)

const (
	copyTopic = "copy"
	copyGroup = "copiers"
	copied    = int64(1) << 40 // what an output's value is above its input's
)

// TestCopyExactlyOnceUnderKills copies one topic into another in transactions that commit the offsets too, by members of a
// group that join, leave and die all the time, while brokers are killed one by one and all at once. In the end each input
// has one output, in order (KIP-98, KIP-447).
func TestCopyExactlyOnceUnderKills(t *testing.T) {
	c, l := transactional(t, 4, "group.min.session.timeout.ms=1000", "group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=4")
	c.MustKctl("topic", "create", copyTopic, "-p", "4", "-r", "3", "-c", "min.insync.replicas=2")
	c.AwaitHealth()
	l.start(loadOptions{Producers: 2, Pace: 4 * time.Millisecond})
	seed := schedule(t)
	g := &copiers{load: l, cluster: c, random: rand.New(rand.NewPCG(seed, 1)), eager: seed%2 == 0, log: clientLog(t)}
	for range 2 {
		g.join()
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	churned := make(chan struct{})
	go func() {
		defer close(churned)
		g.churn(ctx)
	}()
	a := newAssailant(t, c, l, seed)
	a.inRounds()
	calm()
	l.end()
	stop()
	<-churned
	s := check.Stage{Source: func(out int64) int64 { return out - copied }}
	for p := range l.partitions {
		s.In = append(s.In, check.Partition{Topic: topic, Index: p})
		s.Out = append(s.Out, check.Partition{Topic: copyTopic, Index: p})
	}
	s.Offsets = g.arrived()
	g.end()
	h, err := l.recorder.History()
	if err != nil {
		t.Fatal(err)
	}
	h.Final = l.committed(topic)
	outputs := 0
	for p, es := range l.committed(copyTopic) {
		h.Final[p] = es
		outputs += len(es)
	}
	for i, anomaly := range check.Pipeline(h, s) {
		if i == 20 {
			t.Error("and more")
			break
		}
		t.Error(anomaly)
	}
	if outputs == 0 {
		t.Error("nothing was copied: the load did not run")
	}
	t.Logf("%d kills of brokers; members (eager: %t): %d joined, %d left, %d died; %d transactions committed, %d not; %d records copied",
		a.kills, g.eager, g.joined, g.left, g.died, g.commits.Load(), g.aborts.Load(), outputs)
}

// copiers are the members of the group.
type copiers struct {
	*load
	cluster            *proc.Cluster
	random             *rand.Rand
	eager              bool // they give up all partitions before each rebalance
	members            []*copier
	joined, left, died int
	commits, aborts    atomic.Int64
	running            sync.WaitGroup
	log                io.Writer // of all members' clients
}

// churn lets a member join, leave or die again and again.
func (g *copiers) churn(ctx context.Context) {
	for {
		select {
		case <-time.After(500*time.Millisecond + time.Duration(g.random.IntN(1000))*time.Millisecond): // the pace of the load
		case <-ctx.Done():
			return
		}
		switch n := g.random.IntN(3); {
		case n == 0 && len(g.members) < 4 || len(g.members) < 2:
			g.join()
		case n == 1:
			g.leave()
		default:
			g.die()
			g.join() // its successor has the same transactional id, or that of one which left
		}
	}
}

func (g *copiers) join() {
	free := map[int]bool{0: true, 1: true, 2: true, 3: true}
	for _, m := range g.members {
		delete(free, m.id)
	}
	for id := range 4 {
		if free[id] {
			ctx, cancel := context.WithCancel(context.Background())
			m := &copier{copiers: g, id: id, ctx: ctx, cancel: cancel, asked: make(chan struct{})}
			g.members = append(g.members, m)
			g.running.Go(m.run)
			g.joined++
			return
		}
	}
}

func (g *copiers) pick() *copier {
	i := g.random.IntN(len(g.members))
	m := g.members[i]
	g.members = append(g.members[:i], g.members[i+1:]...)
	return m
}

func (g *copiers) leave() {
	close(g.pick().asked)
	g.left++
}

func (g *copiers) die() {
	g.pick().die()
	g.died++
}

// arrived waits until the group has committed the ends of its inputs, and returns what it has committed.
func (g *copiers) arrived() map[check.Partition]int64 {
	g.t.Helper()
	ends := g.stableEnds(topic)
	cl := g.client()
	defer cl.Close()
	adm := kadm.NewClient(cl)
	at := map[check.Partition]int64{}
	for deadline := time.Now().Add(90 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(g.t.Context(), 10*time.Second) // one answer that does not come is no end
		offsets, err := adm.FetchOffsets(ctx, copyGroup)
		cancel()
		if err != nil {
			continue
		}
		there := true
		for p, end := range ends {
			o, _ := offsets.Lookup(topic, p)
			at[check.Partition{Topic: topic, Index: p}] = o.At
			there = there && o.At >= end
		}
		if there {
			return at
		}
	}
	g.t.Logf("the copying does not come to its end: it is at %v, the inputs end at %v", at, ends)
	explain(g.t, g.cluster)
	return at
}

func (g *copiers) end() {
	for len(g.members) > 0 {
		g.leave()
	}
	g.running.Wait()
}

// copier is one member. It dies like a process that is killed: its connections are gone at once and nothing is said.
type copier struct {
	*copiers
	id     int
	ctx    context.Context //nolint:containedctx // of the member's life
	cancel context.CancelFunc
	asked  chan struct{} // closed: it should leave

	mu struct {
		sync.Mutex
		dead  bool
		conns []net.Conn
	}
}

var errDead = errors.New("this member is dead")

func (m *copier) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.dead {
		_ = c.Close()
		return nil, errDead
	}
	m.mu.conns = append(m.mu.conns, c)
	return c, nil
}

func (m *copier) die() {
	m.mu.Lock()
	m.mu.dead = true
	conns := m.mu.conns
	m.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
	m.cancel()
}

// run is a member's life: what its client gives up on is begun anew by the next client.
func (m *copier) run() {
	defer m.cancel()
	polling, stop := context.WithCancel(m.ctx)
	defer stop()
	go func() {
		select {
		case <-m.asked:
			stop()
		case <-polling.Done():
		}
	}()
	for polling.Err() == nil {
		s, err := kgo.NewGroupTransactSession(m.sessionOptions()...)
		if err != nil {
			m.t.Error(err)
			return
		}
		for polling.Err() == nil && m.copy(polling, s) {
		}
		s.Close()
	}
}

func (m *copier) sessionOptions() []kgo.Opt {
	opts := []kgo.Opt{
		kgo.WithContext(m.ctx), kgo.Dialer(m.dial), kgo.TransactionalID(fmt.Sprint("copy-", m.id)), kgo.TransactionTimeout(5 * time.Second),
		kgo.ConsumerGroup(copyGroup), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.SessionTimeout(3 * time.Second), kgo.HeartbeatInterval(300 * time.Millisecond),
		kgo.RebalanceTimeout(10 * time.Second), kgo.FetchMaxWait(100 * time.Millisecond),
	}
	if m.eager {
		opts = append(opts, kgo.Balancers(kgo.RangeBalancer()))
	}
	return m.patientSession(opts...)
}

// patientSession is patient without the dial timeout, which excludes a dialer.
func (m *copier) patientSession(more ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{
		kgo.WithLogger(kgo.BasicLogger(m.log, kgo.LogLevelDebug, func() string { return fmt.Sprintf("%s copy-%d ", m.now(), m.id) })),
		kgo.SeedBrokers(m.seeds...), kgo.MetadataMinAge(50 * time.Millisecond), kgo.MetadataMaxAge(5 * time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }), kgo.RetryTimeout(30 * time.Second),
		kgo.RequestTimeoutOverhead(time.Second), kgo.ProduceRequestTimeout(time.Second), kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}, more...)
}

// copy is one transaction. False: the client is of no use any more.
func (m *copier) copy(ctx context.Context, s *kgo.GroupTransactSession) bool {
	fetches := s.PollRecords(ctx, 100)
	if fetches.NumRecords() == 0 {
		return ctx.Err() == nil
	}
	if err := s.Begin(); err != nil {
		return false
	}
	var failed atomic.Bool // not a promise that is waited for: a dead client answers nobody
	fetches.EachRecord(func(r *kgo.Record) {
		v, err := check.Value(r.Value)
		if err != nil {
			m.t.Error(err)
		}
		s.Produce(m.ctx, &kgo.Record{Topic: copyTopic, Partition: r.Partition, Value: check.Payload(v + copied)}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.Store(true)
			}
		})
	})
	limited, cancel := context.WithTimeout(m.ctx, time.Minute)
	defer cancel()
	if s.Client().Flush(limited) != nil {
		failed.Store(true)
	}
	committed, err := s.End(limited, kgo.TransactionEndTry(!failed.Load()))
	if committed {
		m.commits.Add(1)
	} else {
		m.aborts.Add(1)
	}
	return err == nil
}
