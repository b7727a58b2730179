package forming

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/karstlog/karst/cluster/gossip"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
)

func id(n byte) uuid.UUID { return uuid.UUID{0: n, 15: 9} }

// town is a network of brokers that start, crash and call each other. Its mutex guards all below, hosts included.
type town struct {
	sync.Mutex
	t      *testing.T
	random *rand.Rand
	hosts  []*host
	loss   float64              // of calls
	begun  map[uuid.UUID]string // clusters whose first entry was written, and by whom
}

// host is a broker's disk and what runs on it.
type host struct {
	town   *town
	n      int
	fs     *vfs.Mem
	wish   Wish
	seeds  []string
	run    *life // nil: down
	errs   []error
	member *Outcome
}

type life struct {
	host    *host
	forming *Forming
	stop    context.CancelFunc
	done    chan struct{}
}

func newTown(t *testing.T, seed uint64, n int, wish func(int) Wish) *town {
	w := &town{t: t, random: rand.New(rand.NewPCG(seed, 1)), begun: map[uuid.UUID]string{}}
	for i := range n {
		h := &host{town: w, n: i, fs: vfs.NewMem(seed), wish: wish(i)}
		h.wish.Addr = fmt.Sprint("host", i)
		h.seeds = []string{"seed"}
		w.hosts = append(w.hosts, h)
	}
	return w
}

// start runs Find until the host crashes or belongs to a cluster; a member then does what a node would.
func (h *host) start() {
	h.town.t.Helper()
	l := &life{host: h, done: make(chan struct{})}
	f, err := New(Options{FS: h.fs, Dir: "/data", Wish: h.wish, Seeds: h.seeds, Gossip: l, Peers: peers{l}})
	if err != nil {
		h.town.t.Fatalf("host %d: %v", h.n, err)
	}
	l.forming = f
	var ctx context.Context
	ctx, l.stop = context.WithCancel(context.Background())
	h.town.Lock()
	h.run = l
	h.town.Unlock()
	go func() {
		defer close(l.done)
		out, err := f.Find(ctx)
		h.town.Lock()
		defer h.town.Unlock()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			h.errs = append(h.errs, err)
			return
		}
		if out.Bootstrap != nil {
			h.town.begun[out.ClusterID] = h.wish.Addr
		}
		h.member = &out
	}()
}

func (h *host) crash() {
	if h.run == nil {
		return
	}
	l := h.run
	h.town.Lock()
	h.run = nil
	h.town.Unlock()
	l.stop()
	<-l.done
	h.town.Lock()
	h.member = nil
	h.town.Unlock()
	h.fs.LoseUnsynced()
}

// Members is part of Gossip: everybody who is up is seen by everybody.
func (l *life) Members() []gossip.Member {
	l.host.town.Lock()
	defer l.host.town.Unlock()
	var out []gossip.Member
	for _, h := range l.host.town.hosts {
		if h.run == nil || h == l.host {
			continue
		}
		r := h.run.forming.Record()
		m := gossip.Member{Name: h.wish.Addr, Meta: gossip.Meta{
			Broker: int32(h.wish.Node), Directory: r.Directory, ClusterAddr: h.wish.Addr, Expect: h.wish.Expect, ClusterID: r.ClusterID,
		}}
		if h.member != nil {
			m.ClusterID, m.Broker = h.member.ClusterID, int32(h.member.Node)
		}
		out = append(out, m)
	}
	return out
}

// Join is part of Gossip.
func (l *life) Join(context.Context, []string) (int, error) { return 1, nil }

// at finds who runs at an address; nil: nobody. What it returns is used after the mutex is let go.
func (w *town) at(addr string) *life {
	w.Lock()
	defer w.Unlock()
	i := slices.IndexFunc(w.hosts, func(h *host) bool { return h.wish.Addr == addr })
	if i < 0 || w.hosts[i].run == nil {
		return nil
	}
	return w.hosts[i].run
}

// lose tells whether a message gets lost.
func (w *town) lose() bool {
	w.Lock()
	defer w.Unlock()
	return w.random.Float64() < w.loss
}

// intN is a random number.
func (w *town) intN(n int) int {
	w.Lock()
	defer w.Unlock()
	return w.random.IntN(n)
}

var errLost = errors.New("lost")

// Form is part of Peers. Question and answer may get lost.
func (l *life) Form(_ context.Context, addr string, p Promise) error {
	w := l.host.town
	time.Sleep(time.Millisecond)
	other := w.at(addr)
	if other == nil || w.lose() {
		return errLost
	}
	p.Members = slices.Clone(p.Members)
	err := other.forming.Promise(p)
	if w.lose() {
		return errLost
	}
	return err
}

// join: a member that has an image takes everybody in.
func (p *life) join(addr string, q JoinRequest) (JoinAnswer, error) {
	w := p.host.town
	time.Sleep(time.Millisecond)
	other := w.at(addr)
	if other == nil || w.lose() {
		return JoinAnswer{}, errLost
	}
	a := other.forming.Answer()
	w.Lock()
	m := other.host.member
	ready := m != nil && w.begun[m.ClusterID] != ""
	w.Unlock()
	if !ready {
		return a, nil
	}
	if q.Node == metadata.NoBroker {
		q.Node = metadata.BrokerID(100 + p.host.n)
	}
	a.Node, a.Wait = q.Node, ""
	return a, nil
}

// peers gives life the second Join.
type peers struct{ *life }

// Join is part of Peers.
func (p peers) Join(_ context.Context, addr string, q JoinRequest) (JoinAnswer, error) {
	return p.join(addr, q)
}

// TestOneClusterHoweverTheyStart lets brokers start in any order, crash and lose messages while they form a cluster of the
// size that all expect, with more of them than that.
func TestOneClusterHoweverTheyStart(t *testing.T) {
	seeds := 150
	if testing.Short() {
		seeds = 30
	}
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) { race(t, seed) })
	}
}

func race(t *testing.T, seed uint64) {
	expect := []int32{2, 3, 5}[seed%3]
	extra := int(seed / 3 % 2)
	w := newTown(t, seed, int(expect)+extra, func(i int) Wish {
		wish := Wish{Node: metadata.NoBroker, Expect: expect}
		if seed%5 == 0 && i < int(expect) {
			wish.Node = metadata.BrokerID(10 + i)
		}
		return wish
	})
	w.loss = 0.3
	// The first act: anything may happen.
	for range 60 {
		h := w.hosts[w.intN(len(w.hosts))]
		switch {
		case h.run == nil:
			h.start()
		case w.intN(10) < 3:
			h.crash()
		}
		time.Sleep(time.Duration(w.intN(120)) * time.Millisecond)
	}
	// The second: all are up, and nothing gets lost any more.
	w.Lock()
	w.loss = 0
	w.Unlock()
	for _, h := range w.hosts {
		if h.run == nil {
			h.start()
		}
	}
	time.Sleep(10 * time.Minute)
	w.Lock()
	if len(w.begun) != 1 {
		t.Errorf("seed %d: %d clusters were begun: %v", seed, len(w.begun), w.begun)
	}
	nodes := map[metadata.BrokerID]int{}
	for _, h := range w.hosts {
		if h.member == nil || w.begun[h.member.ClusterID] == "" {
			t.Errorf("seed %d: host %d belongs to no cluster: %v %+v", seed, h.n, h.errs, h.run.forming.Record())
			continue
		}
		if other, taken := nodes[h.member.Node]; taken {
			t.Errorf("seed %d: hosts %d and %d are both broker %d", seed, other, h.n, h.member.Node)
		}
		nodes[h.member.Node] = h.n
	}
	w.Unlock()
	for _, h := range w.hosts {
		h.crash()
	}
}

func TestDecisions(t *testing.T) {
	me := Record{Directory: id(5), Node: metadata.NoBroker}
	other := func(dir byte, m gossip.Meta) gossip.Member {
		m.Directory = id(dir)
		if m.ClusterAddr == "" {
			m.ClusterAddr = fmt.Sprint("host", dir)
		}
		return gossip.Member{Name: fmt.Sprint(dir), Meta: m}
	}
	none := metadata.NoBroker
	for _, c := range []struct {
		name    string
		record  Record
		wish    Wish
		seen    []gossip.Member
		dialled bool
		want    kind
		reason  string // part of it
	}{
		{"bootstrap alone", me, Wish{Node: none, Bootstrap: true}, nil, true, begin, ""},
		{"bootstrap before the seeds were asked", me, Wish{Node: none, Bootstrap: true}, nil, false, wait, ""},
		{"bootstrap beside a cluster", me, Wish{Node: none, Bootstrap: true}, []gossip.Member{other(1, gossip.Meta{ClusterID: id(9)})}, true, refuse, "leave --bootstrap out"},
		{"join, nobody there", me, Wish{Node: none}, nil, true, wait, "no broker"},
		{"join, only others that join", me, Wish{Node: none}, []gossip.Member{other(1, gossip.Meta{Broker: -1})}, true, wait, ""},
		{"join a cluster", me, Wish{Node: none}, []gossip.Member{other(1, gossip.Meta{ClusterID: id(9)})}, true, join, ""},
		{"expecting, a cluster is there", me, Wish{Node: none, Expect: 3}, []gossip.Member{other(1, gossip.Meta{ClusterID: id(9)})}, true, join, ""},
		{"too few", me, Wish{Node: none, Expect: 3}, []gossip.Member{other(9, gossip.Meta{Broker: -1, Expect: 3})}, true, wait, "2 of the 3"},
		{"an earlier life of the same broker", me, Wish{Node: none, Expect: 3}, []gossip.Member{other(9, gossip.Meta{Broker: -1, Expect: 3}), other(9, gossip.Meta{Broker: -1, Expect: 3}), other(5, gossip.Meta{Broker: -1, Expect: 3})}, true, wait, "2 of the 3"},
		{"lowest directory", me, Wish{Node: none, Expect: 2}, []gossip.Member{other(9, gossip.Meta{Broker: -1, Expect: 2})}, true, ask, ""},
		{"not the lowest", me, Wish{Node: none, Expect: 2}, []gossip.Member{other(1, gossip.Meta{Broker: -1, Expect: 2})}, true, wait, "host1 forms"},
		{"an id wins over the directory", me, Wish{Node: 7, Expect: 2}, []gossip.Member{other(1, gossip.Meta{Broker: -1, Expect: 2})}, true, ask, ""},
		{"same id twice", me, Wish{Node: 7, Expect: 2}, []gossip.Member{other(1, gossip.Meta{Broker: 7, Expect: 2})}, true, refuse, "--id 7"},
		{"other size", me, Wish{Node: none, Expect: 2}, []gossip.Member{other(1, gossip.Meta{Broker: -1, Expect: 3})}, true, refuse, "must be the same"},
		{
			"promised",
			Record{Directory: id(5), Promise: &Promise{ClusterID: id(8), From: id(1), Members: []Candidate{{Directory: id(1), Addr: "host1"}}}},
			Wish{Expect: 3},
			nil, true,
			follow, "--forget-promise",
		},
		{"asked before", Record{Directory: id(5), Promise: &Promise{ClusterID: id(8), From: id(5)}}, Wish{Expect: 3}, nil, true, ask, ""},
		{
			"asked before, another cluster is there",
			Record{Directory: id(5), Promise: &Promise{ClusterID: id(8), From: id(5)}},
			Wish{Expect: 3},
			[]gossip.Member{other(1, gossip.Meta{ClusterID: id(9)})},
			true, join, "",
		},
	} {
		got := decide(c.record, c.wish, c.seen, c.dialled)
		if got.kind != c.want || !strings.Contains(got.reason, c.reason) {
			t.Errorf("%s: %d %q, want %d %q", c.name, got.kind, got.reason, c.want, c.reason)
		}
	}
}

func TestIDsAreAllottedWhereNoneIsGiven(t *testing.T) {
	got := allot([]Candidate{{Directory: id(1), Node: 2}, {Directory: id(2), Node: -1}, {Directory: id(3), Node: -1}})
	want := []Candidate{{Directory: id(2), Node: 1}, {Directory: id(1), Node: 2}, {Directory: id(3), Node: 3}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestPromiseIsGivenOnce(t *testing.T) {
	f, err := New(Options{FS: vfs.NewMem(1), Dir: "/d", Wish: Wish{Node: -1, Expect: 2, Addr: "me"}})
	if err != nil {
		t.Fatal(err)
	}
	mine := f.Record().Directory
	p := Promise{ClusterID: id(1), Members: []Candidate{{Directory: id(7), Node: 1}, {Directory: mine, Node: 2}}}
	if err := f.Promise(p); err != nil {
		t.Fatal(err)
	}
	if err := f.Promise(p); err != nil {
		t.Errorf("the same again: %v", err)
	}
	q := p
	q.ClusterID = id(2)
	var refused *RefusedError
	var promised *PromisedError
	if err := f.Promise(q); !errors.As(err, &promised) {
		t.Errorf("another cluster: %v", err)
	}
	q = Promise{ClusterID: id(2), Members: []Candidate{{Directory: id(7), Node: 1}, {Directory: id(8), Node: 2}}}
	if err := f.Promise(q); !errors.As(err, &refused) {
		t.Errorf("for other data: %v", err)
	}
}

func TestPromiseSurvivesEveryCrash(t *testing.T) {
	for seed := range uint64(50) {
		mem := vfs.NewMem(seed)
		f, err := New(Options{FS: mem, Dir: "/d", Wish: Wish{Node: -1, Expect: 1}})
		if err != nil {
			t.Fatal(err)
		}
		mine := f.Record().Directory
		if err := f.Promise(Promise{ClusterID: id(1), Members: []Candidate{{Directory: mine, Node: 4}}}); err != nil {
			t.Fatal(err)
		}
		mem.LoseUnsynced()
		r, found, err := Load(mem, "/d")
		if err != nil || !found || r.Promise == nil || r.Promise.ClusterID != id(1) || r.Node != 4 || r.Directory != mine {
			t.Fatalf("after a crash: %+v, %v, %v", r, found, err)
		}
	}
}

func TestDataOfAnotherIDIsRefused(t *testing.T) {
	mem := vfs.NewMem(1)
	f, err := New(Options{FS: mem, Dir: "/d", Wish: Wish{Node: 4}})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Known(id(1), 4); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{FS: mem, Dir: "/d", Wish: Wish{Node: 5}}); err == nil || !strings.Contains(err.Error(), "belongs to broker 4") {
		t.Errorf("another id: %v", err)
	}
	if err := f.Known(id(2), 4); err == nil {
		t.Error("another cluster is taken")
	}
}

func FuzzRecord(f *testing.F) {
	full := Record{
		Directory: id(1), ClusterID: id(2), Node: 3, Settled: true,
		Promise: &Promise{ClusterID: id(2), From: id(1), Members: []Candidate{{Directory: id(1), Node: 3, Addr: "a:1"}}},
	}
	b, err := full.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(b)
		if err != nil {
			return
		}
		again, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := decodeRecord(again); err != nil || cmp.Diff(r, back) != "" {
			t.Errorf("%v %s", err, cmp.Diff(r, back))
		}
	})
}
