package coordinator

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/storage"
	"github.com/karstlog/karst/txn"
)

// metalog is a metadata log that several coordinators share. Each sees it through a seat.
type metalog struct {
	t  *testing.T
	mu struct {
		sync.Mutex
		image *metadata.Image
		seats []*seat
		last  int64 // producer id that was handed out
	}
}

// seat is a coordinator's view of the log: a Quorum, ProducerIDs, Peers and a Subscription.
type seat struct {
	log    *metalog
	id     metadata.BrokerID
	set    *replica.Set
	deltas chan update

	behind bool     // its partitions stand still; guarded by the log's mutex, as late is
	late   []update // for them

	mu struct {
		sync.Mutex
		seen      *metadata.Image
		leads     bool
		term      uint64
		stale     bool   // the image stands still until something is proposed
		before    func() // what happens before a proposal
		after     func() // and after it
		lost      error  // what a proposal that is applied is answered with
		full      error  // what a proposal is refused with
		barrier   func() // what happens during a barrier
		barred    error
		barriers  int
		proposals [][]metadata.Command
		mark      func(ctx context.Context, broker metadata.BrokerID, m Marks) ([]error, error)
	}
}

type update struct {
	im    *metadata.Image
	delta metadata.Delta
}

func (s *seat) Image() *metadata.Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.seen
}

func (s *seat) IsLeader() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.leads
}

func (s *seat) Term() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.term
}

func (s *seat) Barrier(context.Context) error {
	s.mu.Lock()
	s.mu.barriers++
	during, err := s.mu.barrier, s.mu.barred
	s.mu.Unlock()
	if during != nil {
		during()
	}
	return err
}

func (s *seat) ProposeEach(_ context.Context, cs []metadata.Command) []error {
	s.mu.Lock()
	s.mu.proposals = append(s.mu.proposals, cs)
	full, lost, before, after := s.mu.full, s.mu.lost, s.mu.before, s.mu.after
	s.mu.Unlock()
	if before != nil {
		before()
	}
	errs := make([]error, len(cs))
	for i, c := range cs {
		if full != nil {
			errs[i] = full
			continue
		}
		s.change(func() { s.mu.stale = false }) // what is proposed is applied here when it is answered
		if errs[i] = s.log.apply(c); errs[i] == nil {
			errs[i] = lost
		}
	}
	if after != nil {
		after()
	}
	return errs
}

func (s *seat) ProducerID(context.Context) (int64, error) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.log.mu.last++
	return s.log.mu.last, nil
}

func (s *seat) Mark(ctx context.Context, broker metadata.BrokerID, m Marks) ([]error, error) {
	s.mu.Lock()
	mark := s.mu.mark
	s.mu.Unlock()
	if mark == nil {
		return make([]error, len(m.Partitions)), nil
	}
	return mark(ctx, broker, m)
}

func (s *seat) Next(ctx context.Context) (*metadata.Image, metadata.Delta, error) {
	select {
	case u := <-s.deltas:
		return u.im, u.delta, nil
	case <-ctx.Done():
		return nil, metadata.Delta{}, ctx.Err()
	}
}

// change changes the seat.
func (s *seat) change(how func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	how()
}

func (s *seat) lead(term uint64) { s.change(func() { s.mu.leads, s.mu.term = true, term }) }

func (s *seat) depose() { s.change(func() { s.mu.leads = false }) }

// proposed is what was proposed of a kind.
func proposed[C metadata.Command](s *seat) []C {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []C
	for _, cs := range s.mu.proposals {
		for _, c := range cs {
			if x, ok := c.(C); ok {
				out = append(out, x)
			}
		}
	}
	return out
}

func (l *metalog) apply(c metadata.Command) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	im, delta, err := l.mu.image.Apply(l.mu.image.Index()+1, c)
	l.mu.image = im
	for _, s := range l.mu.seats {
		s.late = append(s.late, update{im, delta})
		l.showLocked(s)
		s.change(func() {
			if !s.mu.stale {
				s.mu.seen = im
			}
		})
		s.deltas <- update{im, delta}
	}
	return err
}

// showLocked gives the partitions of a seat what they do not have yet, unless they stand still.
func (l *metalog) showLocked(s *seat) {
	if s.behind {
		return
	}
	for _, u := range s.late {
		if err := s.set.Apply(context.Background(), u.im, u.delta); err != nil {
			l.t.Error(err)
		}
	}
	s.late = nil
}

// hold has the partitions of a seat stand still, or go on.
func (l *metalog) hold(s *seat, behind bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.behind = behind
	l.showLocked(s)
}

func (l *metalog) must(cs ...metadata.Command) {
	l.t.Helper()
	for _, c := range cs {
		if err := l.apply(c); err != nil {
			l.t.Fatalf("%#v: %v", c, err)
		}
	}
}

func (l *metalog) txn(id string) *metadata.Txn {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, _ := l.mu.image.Txn(id)
	return t
}

func newMetalog(t *testing.T) *metalog {
	l := &metalog{t: t}
	l.mu.image = metadata.Empty()
	l.must(
		metadata.RegisterBroker{Broker: metadata.Broker{ID: 1, Incarnation: newID(t)}},
		metadata.RegisterBroker{Broker: metadata.Broker{ID: 2, Incarnation: newID(t)}},
		metadata.RegisterBroker{Broker: metadata.Broker{ID: 3, Incarnation: newID(t)}},
	)
	return l
}

func newID(t *testing.T) uuid.UUID {
	id, err := uuid.New(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// topic makes a topic whose partitions are led by brokers.
func (l *metalog) topic(name string, brokers ...metadata.BrokerID) []metadata.TxnPartition {
	l.t.Helper()
	c := metadata.CreateTopic{ID: newID(l.t), Name: name}
	var out []metadata.TxnPartition
	for i, b := range brokers {
		c.Partitions = append(c.Partitions, []metadata.BrokerID{b})
		out = append(out, metadata.TxnPartition{Topic: c.ID, Partition: int32(i)})
	}
	l.must(c)
	return out
}

// open begins transactions of the ids x-0, x-1 and so on, without a coordinator.
func (l *metalog) open(n int, at []metadata.TxnPartition) {
	l.t.Helper()
	for i := range n {
		id := fmt.Sprint("x-", i)
		l.must(metadata.InitTxn{ID: id, ProducerID: int64(1000 + i), LastEpoch: -1, PreviousProducerID: -1, TimeoutMillis: 60_000})
		l.must(metadata.AddToTxn{ID: id, Revision: l.txn(id).Revision, Partitions: at, Version: 2})
	}
}

func (l *metalog) decide(id string) {
	l.t.Helper()
	t := l.txn(id)
	l.must(metadata.PrepareTxn{ID: id, Revision: t.Revision, Commit: true, Epoch: t.Epoch + 1, LastEpoch: t.Epoch, NextProducerID: -1})
}

// join makes a coordinator on a broker that is no leader yet. Run it inside a bubble.
func (l *metalog) join(id metadata.BrokerID, with func(*Options)) (*Coordinator, *seat) {
	l.t.Helper()
	dirs, err := storage.OpenDirs(storage.DirsOptions{
		FS: vfs.NewMem(1), Paths: []string{"/log"}, ClusterID: "c", NodeID: int32(id), BootID: func() string { return "boot" },
		OnSynced: func(*storage.Log, int64) {},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	s := &seat{log: l, id: id, deltas: make(chan update, 100_000), set: replica.NewSet(replica.Options{BrokerID: id, Dirs: dirs})}
	o := Options{
		BrokerID: id, Quorum: s, Set: s.set, IDs: s, Peers: s, Subscribe: func() replica.Subscription { return s },
		Rules: txn.Rules{Expiry: time.Hour},
	}
	if with != nil {
		with(&o)
	}
	l.mu.Lock()
	s.mu.seen = l.mu.image
	l.mu.seats = append(l.mu.seats, s)
	l.mu.Unlock()
	c := New(o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	l.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			l.t.Error(err)
		}
		_ = dirs.Close()
	})
	return c, s
}
