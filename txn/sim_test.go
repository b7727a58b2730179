package txn

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

var seeds = flag.Int("seeds", 150, "runs of the simulation")

// TestSimulation runs transactional producers, their zombies, coordinators that change at any step and the real logs of
// partitions against each other: writes and markers are late, doubled and lost, every broker's image is as old as it
// likes, and between a question about a transaction and the append that follows anything may happen. What must hold:
// readers of committed records see all of a committed transaction or nothing, never an aborted record, and in the end
// every log is stable to its end.
func TestSimulation(t *testing.T) {
	for seed := range *seeds {
		s := newSim(t, uint64(seed))
		for range 400 {
			s.step()
		}
		s.drain()
		s.check(true)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

const (
	simBrokers    = 3
	simPartitions = 4
	simProducers  = 3
)

type sim struct {
	t     *testing.T
	rand  *rand.Rand
	rules Rules
	index uint64
	log   []*metadata.Image // every image there was
	at    [simBrokers]int   // which of them a broker has
	set   [simBrokers]int   // which of them its partitions have: the same, or an older one
	lead  int               // broker that coordinates
	term  int32
	nowMs int64
	ids   int64

	parts   [simPartitions]*storage.Log
	leads   [simPartitions]int      // broker that can append
	moves   [simPartitions]*simMove // of leaderships, under way
	clients []*simClient
	writes  []*simWrite
	marks   []*simMark
	acked   map[string]map[metadata.TxnPartition]bool // markers known to be written, by decision
	txns    map[string]*simTxn                        // by name
}

// simTxn is one transaction as its producer knows it.
type simTxn struct {
	name      string
	acked     []string // records it was told are written, in time
	committed bool     // the producer was told so
	decided   string   // what the image said when it was decided: "", commit, abort
	old       bool     // of the old protocol
	producer  Producer
	late      map[string]bool
}

// simClient is one producer process; several may have the same transactional id.
type simClient struct {
	id       string
	old      bool // transaction version 0
	producer Producer
	seq      [simPartitions]int32
	txn      *simTxn
	n        int
	dead     bool
	recovers bool // it asks for a new epoch until it has one
}

type simWrite struct {
	client   *simClient
	txn      *simTxn
	producer Producer
	part     int
	seq      int32
	value    string
	guard    *storage.TxnGuard // asked already
	at       int               // broker with the guard
	image    int               // that the answer is of: the broker's partitions have it before the write
	late     bool              // nobody waits for it any more
}

// simMove makes a broker leader of a partition, in the metadata from an image on. The one before goes on until its own
// partitions have that image, and all it writes until the new one's have it is copied.
type simMove struct{ broker, at int }

type simMark struct {
	id       string
	revision uint64
	term     int32
	part     metadata.TxnPartition
	guard    *storage.TxnGuard
	at       int // broker with the guard
	txn      *metadata.Txn
}

func topicID() uuid.UUID { return uuid.UUID{1} }

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{
		t: t, rand: rand.New(rand.NewPCG(seed, 7)), rules: Rules{MaxEpoch: 6}, term: 1, ids: 100,
		acked: map[string]map[metadata.TxnPartition]bool{}, txns: map[string]*simTxn{}, log: []*metadata.Image{metadata.Empty()},
	}
	for i := range s.parts {
		l, err := storage.Open(storage.Options{
			FS: vfs.NewMem(seed), Dir: "/t-0", Topic: "t", TopicID: topicID(), Config: storage.Config{
				SegmentBytes: 1 << 20, SegmentIndexBytes: 1 << 16, IndexIntervalBytes: 4096, SegmentAge: time.Hour, RetentionAge: -1,
				RetentionBytes: -1, ProducerExpiry: time.Hour, MaxProducers: 1000,
			}, Wall: func() time.Time { return time.UnixMilli(s.nowMs) },
		})
		if err != nil {
			t.Fatal(err)
		}
		s.parts[i], s.leads[i] = l, i%simBrokers
	}
	for i := range simProducers {
		s.spawn(fmt.Sprint("x", i), i == 0)
	}
	return s
}

func (s *sim) spawn(id string, old bool) { s.clients = append(s.clients, &simClient{id: id, old: old}) }

func (s *sim) image(broker int) *metadata.Image { return s.log[s.at[broker]] }

func (s *sim) latest() *metadata.Image { return s.log[len(s.log)-1] }

// propose applies a command, after which the broker that proposed it has the newest image.
func (s *sim) propose(broker int, c metadata.Command) error {
	s.index++
	s.nowMs++
	if p, ok := c.(metadata.PrepareTxn); ok {
		defer s.note(p)
	}
	im, _, err := s.latest().Apply(s.index, c)
	s.log = append(s.log, im)
	s.at[broker] = len(s.log) - 1
	return err
}

// note remembers what was decided of whom.
func (s *sim) note(p metadata.PrepareTxn) {
	t, ok := s.latest().Txn(p.ID)
	if !ok || !t.State.Prepared() || t.Revision != s.index && t.Revision != p.Revision+1 {
		return
	}
	for _, x := range s.txns {
		if x.decided == "" && strings.HasPrefix(x.name, fmt.Sprintf("%s/", p.ID)) && x.of(t) {
			x.decided = map[bool]string{true: "commit", false: "abort"}[p.Commit]
		}
	}
}

// of tells that the decision is about this transaction: it has the epoch of it, or the one before.
func (x *simTxn) of(t *metadata.Txn) bool {
	return x.producer.ID == t.ProducerID && (x.producer.Epoch == t.Epoch || x.producer.Epoch == t.Epoch-1)
}

// ask is the shell's loop: decide on a broker's image, again after a conflict, and with a fresh image before an answer that
// needs no command.
func (s *sim) ask(broker int, id string, decide func(t *metadata.Txn, fresh int64) (Decision, error)) (Producer, error) {
	fresh, certain := int64(-1), false
	for range 20 {
		t, _ := s.image(broker).Txn(id)
		d, err := decide(t, fresh)
		switch {
		case err != nil && certain:
			return Producer{}, err
		case err != nil:
			s.at[broker], certain = len(s.log)-1, true
		case d.NeedID:
			s.ids++
			fresh = s.ids
		case d.Wait:
			s.at[broker] = len(s.log) - 1
			if t, _ := s.latest().Txn(id); t != nil && t.State.Prepared() {
				return Producer{}, ErrBusy
			}
		case d.Command == nil && !certain:
			s.at[broker], certain = len(s.log)-1, true
		case d.Command == nil:
			return d.Answer, nil
		default:
			if err := s.propose(broker, d.Command); err == nil && !d.Again {
				return d.Answer, nil
			}
		}
	}
	return Producer{}, ErrBusy
}

func (s *sim) step() {
	switch n := s.rand.IntN(100); {
	case n < 35:
		s.client(s.clients[s.rand.IntN(len(s.clients))])
	case n < 60 && len(s.writes) > 0:
		s.write(s.rand.IntN(len(s.writes)))
	case n < 85 && len(s.marks) > 0:
		s.mark(s.rand.IntN(len(s.marks)))
	case n < 89:
		b := s.rand.IntN(simBrokers)
		s.at[b] += s.rand.IntN(len(s.log) - s.at[b])
		s.set[b] += s.rand.IntN(s.at[b] + 1 - s.set[b])
	case n < 90:
		s.move(s.rand.IntN(simPartitions))
	case n < 92:
		s.lead, s.term = s.rand.IntN(simBrokers), s.term+1
	case n < 93 && len(s.clients) < 12:
		s.spawn(fmt.Sprint("x", s.rand.IntN(simProducers)), s.rand.IntN(3) == 0)
	case n < 94:
		s.timeout()
	default:
		s.coordinate()
	}
	s.check(false)
}

// move gives a partition another leader.
func (s *sim) move(part int) {
	if s.moves[part] == nil {
		_ = s.propose(s.lead, metadata.SyncTxns{})
		s.moves[part] = &simMove{broker: s.rand.IntN(simBrokers), at: len(s.log) - 1}
	}
}

// leader is the broker that leads a partition; false while the one before knows that it does no more, and the next one does
// not yet know that it does.
func (s *sim) leader(part int) (int, bool) {
	m := s.moves[part]
	switch {
	case m == nil:
	case s.set[m.broker] >= m.at:
		s.leads[part], s.moves[part] = m.broker, nil
	case s.set[s.leads[part]] >= m.at:
		s.at[m.broker] = max(s.at[m.broker], s.set[m.broker]+1)
		s.set[m.broker]++
		return 0, false
	}
	return s.leads[part], true
}

// coordinate sends markers for what the coordinator's image says is decided, and completes what has all of them.
func (s *sim) coordinate() {
	for t := range s.image(s.lead).BusyTxns() {
		if !t.State.Prepared() {
			continue
		}
		key := fmt.Sprint(t.ID, t.Revision)
		missing := 0
		for _, p := range t.Partitions {
			if !s.acked[key][p] {
				missing++
				s.marks = append(s.marks, &simMark{id: t.ID, revision: t.Revision, term: s.term, part: p})
			}
		}
		if missing == 0 {
			_ = s.propose(s.lead, metadata.CompleteTxn{ID: t.ID, Revision: t.Revision, NowMillis: s.nowMs})
		}
	}
}

func (s *sim) timeout() {
	for t := range s.image(s.lead).BusyTxns() {
		if t.State == metadata.TxnOngoing && s.rand.IntN(2) == 0 {
			_ = s.propose(s.lead, fence(t, t.Epoch, s.nowMs))
		}
	}
}

// mark takes one step of a marker at the partition's leader: guard and image, then the append.
func (s *sim) mark(i int) {
	m := s.marks[i]
	l := s.parts[m.part.Partition]
	broker, ok := s.leader(int(m.part.Partition))
	if !ok {
		return
	}
	if m.guard == nil || m.at != broker {
		m.guard, m.at = nil, broker
		g, err := l.TxnGuard(s.producerOf(broker, m))
		if err != nil {
			s.t.Fatal(err)
		}
		t, ok := s.log[s.set[broker]].Txn(m.id)
		switch {
		case !ok || t.Revision < m.revision: // waits for the image
			s.at[broker] += min(1, len(s.log)-1-s.at[broker])
			s.set[broker] += min(1, s.at[broker]-s.set[broker])
		case t.Revision > m.revision:
			s.answered(i)
		default:
			m.guard, m.txn = &g, t
		}
		return
	}
	b := batch.EndTxnMarker(batch.Marker{
		ProducerID: m.txn.ProducerID, ProducerEpoch: m.txn.Epoch, Commit: m.txn.State == metadata.TxnPrepareCommit,
		CoordinatorEpoch: m.term, Timestamp: s.nowMs,
	})
	_, err := l.AppendMarkerGuarded(b, 0, time.UnixMilli(s.nowMs), *m.guard)
	switch {
	case err == nil:
		l.SetHighWatermark(l.End())
		s.answered(i)
	case errors.As(err, new(*storage.TxnMovedError)):
		m.guard = nil
	case errors.As(err, new(*storage.CoordinatorEpochError)):
		s.marks = slices.Delete(s.marks, i, i+1)
	case errors.As(err, new(*storage.ProducerEpochError)):
		s.answered(i)
	default: // tried again
	}
}

func (s *sim) producerOf(broker int, m *simMark) int64 {
	if t, ok := s.log[s.set[broker]].Txn(m.id); ok && t.Revision == m.revision {
		return t.ProducerID
	}
	return -1
}

// answered tells the coordinator, unless the answer is lost; the marker itself may come again.
func (s *sim) answered(i int) {
	m := s.marks[i]
	if s.rand.IntN(10) > 0 {
		key := fmt.Sprint(m.id, m.revision)
		if s.acked[key] == nil {
			s.acked[key] = map[metadata.TxnPartition]bool{}
		}
		s.acked[key][m.part] = true
	}
	if s.rand.IntN(4) == 0 {
		m.guard = nil
		return
	}
	s.marks = slices.Delete(s.marks, i, i+1)
}

// client takes the next step of a producer.
func (s *sim) client(c *simClient) {
	switch {
	case c.dead:
	case c.producer.ID == 0:
		s.init(c, Producer{-1, -1})
	case c.recovers:
		s.init(c, c.producer)
	case c.txn == nil:
		c.n++
		c.txn = &simTxn{name: fmt.Sprintf("%s/%p/%d", c.id, c, c.n), old: c.old, producer: c.producer, late: map[string]bool{}}
		s.txns[c.txn.name] = c.txn
	case s.rand.IntN(3) > 0:
		s.send(c)
	default:
		s.end(c)
	}
}

func (s *sim) init(c *simClient, before Producer) {
	p, err := s.ask(s.lead, c.id, func(t *metadata.Txn, fresh int64) (Decision, error) {
		return s.rules.Init(t, Init{ID: c.id, TimeoutMillis: 1000, Producer: before, FreshID: fresh, NowMillis: s.nowMs})
	})
	switch {
	case errors.Is(err, ErrBusy):
	case err != nil:
		c.dead = true
	default:
		c.producer, c.seq, c.recovers = p, [simPartitions]int32{}, false
	}
}

// send writes a record to a partition: the old protocol adds it first. The write is delivered now, later, or both.
func (s *sim) send(c *simClient) {
	part := s.rand.IntN(simPartitions)
	at := metadata.TxnPartition{Topic: topicID(), Partition: int32(part)}
	if c.old {
		_, err := s.ask(s.lead, c.id, func(t *metadata.Txn, _ int64) (Decision, error) {
			return s.rules.Add(t, Add{Producer: c.producer, Partitions: []metadata.TxnPartition{at}, NowMillis: s.nowMs})
		})
		if errors.Is(err, ErrBusy) {
			return
		}
		if err != nil {
			s.lost(c)
			return
		}
	}
	w := &simWrite{
		client: c, txn: c.txn, producer: c.producer, part: part, seq: c.seq[part],
		value: fmt.Sprintf("%s#%d", c.txn.name, len(c.txn.acked)+len(c.txn.late)),
	}
	if s.rand.IntN(6) == 0 { // the producer gives up waiting; the write may come at any time
		w.late = true
		c.txn.late[w.value] = true
		s.writes = append(s.writes, w)
		s.abandon(c)
		return
	}
	for range 30 {
		switch err := s.deliver(w); {
		case err == nil:
			c.seq[part]++
			c.txn.acked = append(c.txn.acked, w.value)
			if s.rand.IntN(6) == 0 { // the network repeats it
				again := *w
				again.late, again.guard = true, nil
				s.writes = append(s.writes, &again)
			}
			return
		case errors.Is(err, errLater):
		case errors.Is(err, ErrBusy):
			return
		default:
			s.lost(c)
			return
		}
	}
}

var errLater = errors.New("not yet")

// deliver takes one step of a write at the partition's leader.
func (s *sim) deliver(w *simWrite) error {
	l := s.parts[w.part]
	broker, ok := s.leader(w.part)
	if !ok {
		return errLater
	}
	at := metadata.TxnPartition{Topic: topicID(), Partition: int32(w.part)}
	b := s.record(w)
	now := time.UnixMilli(s.nowMs)
	if w.guard == nil || w.at != broker {
		w.guard, w.at = nil, broker
		g, err := l.TxnGuard(w.producer.ID)
		if err != nil {
			s.t.Fatal(err)
		}
		if g.First >= 0 && g.Epoch == w.producer.Epoch {
			_, err := l.Append(b, 0, now)
			l.SetHighWatermark(l.End())
			return err
		}
		if w.client.old {
			err = s.verify(broker, w, at)
		} else {
			_, err = s.ask(broker, w.client.id, func(t *metadata.Txn, _ int64) (Decision, error) {
				return s.rules.Add(t, Add{Producer: w.producer, Partitions: []metadata.TxnPartition{at}, Version: 2, NowMillis: s.nowMs})
			})
		}
		if err != nil {
			return err
		}
		w.guard, w.image = &g, s.at[broker]
		return errLater
	}
	if s.set[broker] < w.image {
		s.set[broker] += 1 + s.rand.IntN(w.image-s.set[broker])
		return errLater
	}
	_, err := l.AppendGuarded(b, 0, now, *w.guard)
	l.SetHighWatermark(l.End())
	if errors.As(err, new(*storage.TxnMovedError)) {
		w.guard = nil
		return errLater
	}
	return err
}

func (s *sim) verify(broker int, w *simWrite, at metadata.TxnPartition) error {
	t, _ := s.image(broker).Txn(w.client.id)
	if s.rules.Verify(t, w.producer, at) == nil {
		return nil
	}
	s.at[broker] = len(s.log) - 1
	t, _ = s.latest().Txn(w.client.id)
	return s.rules.Verify(t, w.producer, at)
}

func (s *sim) record(w *simWrite) batch.Batch {
	build := batch.NewBuilder(batch.BuilderOptions{
		HasProducer: true, ProducerID: w.producer.ID, ProducerEpoch: w.producer.Epoch, BaseSequence: w.seq, Transactional: true,
	})
	if err := build.Append(batch.Record{Timestamp: s.nowMs, Value: []byte(w.value)}); err != nil {
		s.t.Fatal(err)
	}
	b, err := build.Build()
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// write delivers a late or repeated write.
func (s *sim) write(i int) {
	w := s.writes[i]
	if err := s.deliver(w); errors.Is(err, errLater) {
		return
	}
	s.writes = slices.Delete(s.writes, i, i+1)
}

func (s *sim) end(c *simClient) {
	commit := s.rand.IntN(3) > 0 && len(c.txn.late) == 0
	x := c.txn
	p, err := s.ask(s.lead, c.id, func(t *metadata.Txn, fresh int64) (Decision, error) {
		return s.rules.End(t, End{Producer: c.producer, Commit: commit, Bump: !c.old, FreshID: fresh, NowMillis: s.nowMs})
	})
	switch {
	case errors.Is(err, ErrBusy):
		return
	case errors.Is(err, ErrState) && len(x.acked) == 0: // an empty one
		c.txn = nil
		return
	case err != nil:
		s.lost(c)
		return
	}
	x.committed = commit
	c.txn = nil
	if p != c.producer {
		c.producer, c.seq = p, [simPartitions]int32{}
	}
}

// abandon aborts the transaction after a write without an answer, and goes on with a new epoch, as clients do.
func (s *sim) abandon(c *simClient) {
	if !c.old {
		return // the next end is an abort
	}
	for range 3 {
		_, err := s.ask(s.lead, c.id, func(t *metadata.Txn, _ int64) (Decision, error) {
			return s.rules.End(t, End{Producer: c.producer, NowMillis: s.nowMs, FreshID: -1})
		})
		if !errors.Is(err, ErrBusy) {
			break
		}
	}
	s.lost(c)
}

// lost: the producer asks for a new epoch, or finds out that it is a zombie.
func (s *sim) lost(c *simClient) {
	c.txn, c.recovers = nil, true
	s.init(c, c.producer)
}

// drain lets everything that is under way arrive, with no more faults.
func (s *sim) drain() {
	for _, c := range s.clients {
		c.dead = true
	}
	for range 200 {
		s.refresh()
		for len(s.writes) > 0 {
			s.write(0)
		}
		s.timeoutAll()
		s.coordinate()
		for n := 0; len(s.marks) > 0 && n < 500; n++ {
			s.mark(0)
			s.refresh()
		}
		s.marks = nil
	}
}

// refresh gives everybody the newest image.
func (s *sim) refresh() {
	for i := range s.at {
		s.at[i] = len(s.log) - 1
		s.set[i] = s.at[i]
	}
}

func (s *sim) timeoutAll() {
	for t := range s.latest().BusyTxns() {
		if t.State == metadata.TxnOngoing {
			_ = s.propose(s.lead, fence(t, t.Epoch, s.nowMs))
		}
	}
}
