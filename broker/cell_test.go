package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

// cell is several brokers that replicate over loopback sockets. Their metadata is one image that the test, and their
// proposals, change; there is no quorum, and nobody is fenced or elected but by the test.
type cell struct {
	t     testing.TB
	o     cellOptions
	nodes map[metadata.BrokerID]*cellNode
	mu    struct {
		sync.Mutex
		im    *metadata.Image
		subs  []*cellSub
		cut   map[metadata.BrokerID]bool // cannot be reached
		conns map[net.Conn]metadata.BrokerID
		holds bool // proposals get no answer
		dials int  // connections made
	}
}

type cellOptions struct {
	maxLag time.Duration
	disk   bool
	racks  bool // each broker has its own, and clients are sent to them
}

type cellNode struct {
	c      *cell
	id     metadata.BrokerID
	inc    uuid.UUID
	starts []uuid.UUID
	fs     vfs.FS
	path   string
	dirs   *storage.Dirs
	set    *replica.Set
	srv    *protocol.Server
	counts *prometheus.Registry
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func newCell(t testing.TB, n int, o cellOptions) *cell {
	t.Helper()
	c := &cell{t: t, o: o, nodes: map[metadata.BrokerID]*cellNode{}}
	c.mu.im, c.mu.cut, c.mu.conns = metadata.Empty(), map[metadata.BrokerID]bool{}, map[net.Conn]metadata.BrokerID{}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			n.stop()
		}
	})
	for id := metadata.BrokerID(1); int(id) <= n; id++ {
		node := &cellNode{c: c, id: id, fs: vfs.NewMem(uint64(id)), path: "/log"}
		if o.disk {
			node.fs, node.path = vfs.OS(), t.TempDir()
		}
		c.nodes[id] = node
		node.start()
	}
	return c
}

// start starts a node in a new incarnation on the disk it has.
func (n *cellNode) start() {
	t := n.c.t
	t.Helper()
	var err error
	n.inc = newID()
	n.dirs, err = storage.OpenDirs(storage.DirsOptions{
		FS: n.fs, Paths: []string{n.path}, ClusterID: "c", NodeID: int32(n.id), BootID: func() string { return "boot" },
		OnSynced:  func(l *storage.Log, _ int64) { n.set.Synced(l) },
		OnDamaged: func(l *storage.Log, d storage.Damage) { n.set.Damaged(l, d) }, HighWatermarkInterval: 50 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	inc := n.inc
	n.counts = prometheus.NewRegistry()
	n.set = replica.NewSet(replica.Options{
		Registry: n.counts,
		BrokerID: n.id, Dirs: n.dirs, Logger: slog.New(slog.DiscardHandler),
		Subscribe:   func() replica.Subscription { return n.c.subscribe() },
		Incarnation: func() uuid.UUID { return inc }, Dial: n.c.dial, MaxLag: n.c.o.maxLag, RackAware: n.c.o.racks,
		ChangeISR: func(ctx context.Context, cs []controller.ISRChange) []error { return n.c.changeISR(n.id, inc, cs) },
		GiveUp:    func(_ context.Context, of []controller.Partition) error { return n.c.giveUp(n.id, of) },
	})
	n.srv, err = protocol.NewServer(protocol.ServerOptions{
		APIs:      InternalAPIs(InternalOptions{Set: n.set}),
		Listeners: []protocol.ListenerOptions{{Name: "CLUSTER", Addr: "127.0.0.1:0"}}, Internal: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	for _, run := range []func(context.Context) error{n.srv.Run, n.set.Run, n.dirs.Run} {
		n.done.Go(func() {
			if err := run(ctx); err != nil {
				t.Errorf("broker %d: %v", n.id, err)
			}
		})
	}
	n.starts = append(n.starts, inc)
	n.c.apply(metadata.RegisterBroker{
		Broker: metadata.Broker{ID: n.id, Incarnation: inc, Rack: fmt.Sprintf("rack-%d", n.id)}, Starts: n.starts, Proof: metadata.ProofFull,
	})
}

// stop stops a node cleanly.
func (n *cellNode) stop() {
	if n.cancel == nil {
		return
	}
	n.cancel()
	n.done.Wait()
	n.cancel = nil
	if err := n.dirs.Close(); err != nil {
		n.c.t.Errorf("broker %d: %v", n.id, err)
	}
}

func (c *cell) dial(ctx context.Context, id metadata.BrokerID) (net.Conn, error) {
	c.mu.Lock()
	cut, node := c.mu.cut[id], c.nodes[id]
	c.mu.Unlock()
	if cut || node == nil {
		return nil, errors.New("unreachable")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", node.srv.Addr("CLUSTER").String())
	if err == nil {
		c.mu.Lock()
		c.mu.conns[conn] = id
		c.mu.dials++
		c.mu.Unlock()
	}
	return conn, err
}

// isolate makes a node unreachable for its followers, or reachable again.
func (c *cell) isolate(id metadata.BrokerID, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.cut[id] = cut
	for conn, to := range c.mu.conns {
		if cut && to == id {
			conn.Close()
			delete(c.mu.conns, conn)
		}
	}
}

func (c *cell) changeISR(self metadata.BrokerID, inc uuid.UUID, changes []controller.ISRChange) []error {
	errs := make([]error, len(changes))
	for i, ch := range changes {
		c.mu.Lock()
		if c.mu.holds {
			c.mu.Unlock()
			errs[i] = context.DeadlineExceeded
			continue
		}
		cmd, err := controller.View{Image: c.mu.im, Self: self}.ChangeISR(metadata.Member{Broker: self, Incarnation: inc}, ch)
		if err == nil {
			err = c.applyLocked(cmd)
		}
		c.mu.Unlock()
		errs[i] = err
	}
	return errs
}

func (c *cell) giveUp(self metadata.BrokerID, of []controller.Partition) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range of {
		ch, ok := controller.View{Image: c.mu.im, Self: self}.GiveUp(self, p)
		if !ok {
			continue
		}
		if err := c.applyLocked(metadata.AlterPartitions{Broker: metadata.NoBroker, Changes: []metadata.PartitionChange{ch}}); err != nil {
			return err
		}
	}
	return nil
}

func (c *cell) apply(cmd metadata.Command) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.applyLocked(cmd); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cell) applyLocked(cmd metadata.Command) error {
	im, delta, err := c.mu.im.Apply(c.mu.im.Index()+1, cmd)
	if err != nil {
		return err
	}
	c.mu.im = im
	for _, s := range c.mu.subs {
		s.add(im, delta)
	}
	return nil
}

func (c *cell) image() *metadata.Image {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.im
}

// cellSub is a node's subscription to the image.
type cellSub struct {
	mu struct {
		sync.Mutex
		im     *metadata.Image
		merger metadata.Merger
		dirty  bool
	}
	more chan struct{}
}

func (c *cell) subscribe() *cellSub {
	s := &cellSub{more: make(chan struct{}, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.subs = append(c.mu.subs, s)
	s.add(c.mu.im, metadata.Delta{})
	return s
}

func (s *cellSub) add(im *metadata.Image, d metadata.Delta) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.im, s.mu.dirty = im, true
	s.mu.merger.Add(d)
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *cellSub) Next(ctx context.Context) (*metadata.Image, metadata.Delta, error) {
	for {
		s.mu.Lock()
		if s.mu.dirty {
			defer s.mu.Unlock()
			s.mu.dirty = false
			return s.mu.im, s.mu.merger.Take(), nil
		}
		s.mu.Unlock()
		select {
		case <-s.more:
		case <-ctx.Done():
			return nil, metadata.Delta{}, ctx.Err()
		}
	}
}

// topic creates a topic of one partition on the given brokers, the leader first.
func (c *cell) topic(name string, configs map[string]string, replicas ...metadata.BrokerID) uuid.UUID {
	c.t.Helper()
	return c.topics(name, 1, configs, replicas...)
}

func (c *cell) topics(name string, partitions int, configs map[string]string, replicas ...metadata.BrokerID) uuid.UUID {
	c.t.Helper()
	cmd := metadata.CreateTopic{ID: newID(), Name: name, Configs: configs}
	for range partitions {
		cmd.Partitions = append(cmd.Partitions, replicas)
	}
	c.apply(cmd)
	for _, id := range replicas {
		c.settle(id)
	}
	return cmd.ID
}

// settle waits until a node has applied the newest image.
func (c *cell) settle(id metadata.BrokerID) {
	c.t.Helper()
	if n := c.nodes[id]; n.cancel != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := n.set.WaitApplied(ctx, c.image().Index()); err != nil {
			c.t.Fatal(err)
		}
	}
}

// change changes partition 0 of a topic.
func (c *cell) change(topic string, f func(*metadata.PartitionChange)) {
	c.t.Helper()
	t, _ := c.image().Topic(topic)
	p := t.Partitions[0]
	ch := metadata.PartitionChange{
		TopicID: t.ID, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch, Leader: p.Leader, ELR: p.ELR,
		Replicas: p.Replicas, Adding: p.Adding, Removing: p.Removing, MinInsync: 1,
	}
	for _, id := range p.ISR {
		ch.ISR = append(ch.ISR, metadata.Member{Broker: id})
	}
	f(&ch)
	c.apply(metadata.AlterPartitions{Broker: metadata.NoBroker, Changes: []metadata.PartitionChange{ch}})
	for id := range c.nodes {
		c.settle(id)
	}
}

// elect makes a member of the in-sync set the leader.
func (c *cell) elect(topic string, id metadata.BrokerID) {
	c.t.Helper()
	c.change(topic, func(ch *metadata.PartitionChange) { ch.Leader, ch.NewEpoch = id, true })
}

func (c *cell) part(id metadata.BrokerID, topic string) *replica.Partition {
	c.t.Helper()
	p, err := c.nodes[id].set.Get(topic, 0)
	if err != nil {
		c.t.Fatalf("broker %d: %v", id, err)
	}
	return p
}

func (c *cell) meta(topic string) metadata.Partition {
	t, _ := c.image().Topic(topic)
	return t.Partitions[0]
}

// commit is how an acks=all append ended.
type commit struct {
	wait replica.CommitWait
	done chan error
}

func (c *commit) Committed(_ *replica.CommitWait, err error) { c.done <- err }

// append appends n records with acks=all and does not wait.
func (c *cell) append(id metadata.BrokerID, topic string, n int) (*commit, error) {
	c.t.Helper()
	return appendTo(c.part(id, topic), cellRecords(c.t, n))
}

func appendTo(p *replica.Partition, set batch.Batch) (*commit, error) {
	a, err := p.Append(set, replica.AppendOptions{Acks: -1, Now: testTime, Records: 1})
	if err != nil {
		return nil, err
	}
	w := &commit{done: make(chan error, 1)}
	w.wait = replica.CommitWait{End: a.Last + 1, Epoch: a.Epoch, Done: w}
	p.Await(&w.wait)
	return w, nil
}

func cellRecords(t testing.TB, n int) batch.Batch {
	t.Helper()
	w := batch.NewBuilder(batch.BuilderOptions{})
	for range n {
		if err := w.Append(batch.Record{Timestamp: testTime.UnixMilli(), Value: newIDBytes()}); err != nil {
			t.Fatal(err)
		}
	}
	b, err := w.Build()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newIDBytes() []byte {
	id := newID()
	return id[:]
}

// mustCommit appends and waits for the answer.
func (c *cell) mustCommit(id metadata.BrokerID, topic string, n int) {
	c.t.Helper()
	w, err := c.append(id, topic, n)
	if err != nil {
		c.t.Fatal(err)
	}
	c.wait(w)
}

func (c *cell) wait(w *commit) {
	c.t.Helper()
	select {
	case err := <-w.done:
		if err != nil {
			c.t.Fatalf("not committed: %v", err)
		}
	case <-time.After(time.Minute):
		c.t.Fatal("not committed within a minute")
	}
}

// until waits for a condition.
func (c *cell) until(what string, ok func() bool) {
	c.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("not within a minute: %s", what)
		}
	}
}

// untilISR waits for an in-sync set.
func (c *cell) untilISR(topic string, isr ...metadata.BrokerID) {
	c.t.Helper()
	c.until(fmt.Sprintf("in-sync set %v", isr), func() bool { return slices.Equal(c.meta(topic).ISR, isr) })
	for id := range c.nodes {
		c.settle(id)
	}
}

// contents is a replica's whole log.
func (c *cell) contents(id metadata.BrokerID, topic string) []byte {
	c.t.Helper()
	p, ok := c.nodes[id].dirs.Get(storage.TopicPartition{Topic: topic})
	if !ok {
		c.t.Fatalf("broker %d has no log of %s", id, topic)
	}
	var all []byte
	for at := p.Start(); at < p.End(); {
		s, err := p.Read(storage.ReadOptions{From: at, Before: p.End(), MaxBytes: 1 << 30})
		if err != nil {
			c.t.Fatal(err)
		}
		had := len(all)
		all, err = s.Append(all)
		s.Release()
		if err != nil {
			c.t.Fatal(err)
		}
		for rest := all[had:]; len(rest) > 0; {
			var b batch.Batch
			if b, rest, err = batch.Next(rest); err != nil {
				c.t.Fatal(err)
			}
			at = b.NextOffset()
		}
	}
	return all
}

// untilEqual waits until all replicas have the same log and know the same high watermark.
func (c *cell) untilEqual(topic string) {
	c.t.Helper()
	m := c.meta(topic)
	c.until("equal logs", func() bool {
		want := c.contents(m.Leader, topic)
		for _, id := range m.Replicas {
			if !slices.Equal(c.contents(id, topic), want) {
				return false
			}
		}
		return true
	})
}

func tp(topic string) storage.TopicPartition { return storage.TopicPartition{Topic: topic} }
