package gossip

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/goleak"

	"github.com/karstlog/karst/internal/uuid"
)

// A probe that is under way when memberlist is shut down ends by itself, at its timeout; there is nothing to wait for.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

func newID(t *testing.T) uuid.UUID {
	t.Helper()
	id, err := uuid.New(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// running is a member that is stopped when the test ends.
type running struct {
	*Gossip
	stop   context.CancelFunc
	events *recorder
}

type recorder struct {
	mu   sync.Mutex
	seen []string
}

func (r *recorder) add(m Member, s State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, fmt.Sprintf("%d %s", m.Broker, s))
}

func (r *recorder) has(want string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.seen {
		if s == want {
			return true
		}
	}
	return false
}

func start(t *testing.T, o Options) *running {
	t.Helper()
	return startWith(t, o, func(*Gossip) {})
}

// startWith starts a member that is prepared before.
func startWith(t *testing.T, o Options, prepare func(*Gossip)) *running {
	t.Helper()
	if o.BindAddr == "" {
		o.BindAddr = "127.0.0.1:0"
	}
	if o.Label == "" {
		o.Label = "karst"
	}
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	prepare(g)
	r := &running{Gossip: g, events: &recorder{}}
	g.OnChange(r.events.add)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("run: %v", err)
			}
		})
	}
	t.Cleanup(r.stop)
	select {
	case <-g.Opened():
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
	return r
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func TestMembersFindEachOtherAndLearnWhatChanges(t *testing.T) {
	cluster := newID(t)
	a := start(t, Options{Meta: Meta{ClusterID: cluster, Broker: 1, ClusterAddr: "a:9093"}})
	b := start(t, Options{Meta: Meta{Broker: NoBroker, ClusterAddr: "b:9093", Expect: 3}})
	if n, err := b.Join(t.Context(), []string{a.Addr()}); n != 1 || err != nil {
		t.Fatalf("join: %d, %v", n, err)
	}
	eventually(t, "both know each other", func() bool { return len(a.Members()) == 1 && len(b.Members()) == 1 })
	if m := a.Members()[0]; m.Broker != NoBroker || m.Expect != 3 || m.ClusterAddr != "b:9093" || m.Addr != b.Addr() {
		t.Errorf("a knows %+v", m)
	}
	if err := b.SetMeta(Meta{ClusterID: cluster, Broker: 2, ClusterAddr: "b:9093"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new id is known", func() bool { m, ok := a.Find(2); return ok && m.Addr == b.Addr() })
	b.Leave()
	eventually(t, "b is known to have left", func() bool { return a.events.has("2 left") })
	if _, ok := a.Find(2); ok {
		t.Error("b is still found")
	}
}

// TestNewsOfAMemberGoesOutAtOnce: it waits for no tick of the library.
func TestNewsOfAMemberGoesOutAtOnce(t *testing.T) {
	never := func(g *Gossip) {
		g.tune = func(c *memberlist.Config) { c.GossipInterval, c.ProbeInterval, c.PushPullInterval = 0, time.Hour, 0 }
	}
	a := startWith(t, Options{Meta: Meta{Broker: 1}}, never)
	b := startWith(t, Options{Meta: Meta{Broker: NoBroker}}, never)
	if _, err := b.Join(t.Context(), []string{a.Addr()}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new id is known", func() bool {
		if err := b.SetMeta(Meta{Broker: 2}); err != nil {
			t.Fatal(err)
		}
		_, ok := a.Find(2)
		return ok
	})
}

func TestMemberThatFallsSilentIsDeclaredDead(t *testing.T) {
	a := start(t, Options{Meta: Meta{Broker: 1}})
	b := start(t, Options{Meta: Meta{Broker: 2}})
	if _, err := b.Join(t.Context(), []string{a.Addr()}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "b is known", func() bool { _, ok := a.Find(2); return ok })
	b.stop()
	eventually(t, "b is declared dead", func() bool { return a.events.has("2 dead") })
}

func TestBrokerComesBackAtAnotherAddressAtOnce(t *testing.T) {
	a := start(t, Options{Meta: Meta{Broker: 1}})
	b := start(t, Options{Meta: Meta{Broker: 2}})
	if _, err := b.Join(t.Context(), []string{a.Addr()}); err != nil {
		t.Fatal(err)
	}
	b.stop() // no goodbye; nobody has noticed yet
	again := start(t, Options{Meta: Meta{Broker: 2}})
	if _, err := again.Join(t.Context(), []string{a.Addr()}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "b is found at its new address", func() bool {
		m, ok := a.Find(2)
		return ok && m.Addr == again.Addr()
	})
}

func TestTwoClustersDoNotMerge(t *testing.T) {
	var log strings.Builder
	one, two := newID(t), newID(t)
	a := start(t, Options{Meta: Meta{ClusterID: one, Broker: 1, ClusterAddr: "a:9093"}, Logger: slog.New(slog.NewTextHandler(&lockedWriter{w: &log}, nil))})
	b := start(t, Options{Meta: Meta{ClusterID: two, Broker: 1, ClusterAddr: "b:9093"}})
	_, err := b.Join(t.Context(), []string{a.Addr()})
	var foreign *ForeignClusterError
	if !errors.As(err, &foreign) || !strings.Contains(err.Error(), "--cluster-name") {
		t.Fatalf("join of another cluster: %v", err)
	}
	if len(a.Members()) != 0 || len(b.Members()) != 0 {
		t.Errorf("members: %v, %v", a.Members(), b.Members())
	}
	// Nor do they by a third that belongs to none and knows both.
	c := start(t, Options{Meta: Meta{Broker: NoBroker, ClusterAddr: "c:9093"}})
	if _, err := c.Join(t.Context(), []string{a.Addr()}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Join(t.Context(), []string{b.Addr()}); err == nil {
		t.Error("a broker joined both clusters")
	}
}

func TestOtherLabelsAndKeysAreNotHeard(t *testing.T) {
	a := start(t, Options{Meta: Meta{Broker: 1}, Keys: [][]byte{[]byte("0123456789abcdef")}})
	for name, o := range map[string]Options{
		"another name":   {Label: "other", Keys: a.o.Keys},
		"no key":         {},
		"another key":    {Keys: [][]byte{[]byte("fedcba9876543210")}},
		"neither of two": {Keys: [][]byte{[]byte("fedcba9876543210"), []byte("fedcba9876543211")}},
	} {
		o.Meta = Meta{Broker: 2}
		b := start(t, o)
		if n, err := b.Join(t.Context(), []string{a.Addr()}); n != 0 || err == nil {
			t.Errorf("%s: joined", name)
		}
	}
	c := start(t, Options{Meta: Meta{Broker: 3}, Keys: [][]byte{[]byte("0123456789abcdef"), []byte("fedcba9876543210")}})
	if _, err := c.Join(t.Context(), []string{a.Addr()}); err != nil {
		t.Errorf("with a second key, as while keys are changed: %v", err)
	}
}

func TestMissingBrokersAreDialledAgain(t *testing.T) {
	a := start(t, Options{Meta: Meta{Broker: 1}})
	asked := make(chan struct{}, 1)
	b := start(t, Options{Meta: Meta{Broker: 2}, Missing: func(known []Member) []string {
		if len(known) > 0 {
			return nil
		}
		select {
		case asked <- struct{}{}:
		default:
		}
		return []string{a.Addr()}
	}})
	eventually(t, "b has dialled a", func() bool { return len(b.Members()) == 1 && len(a.Members()) == 1 })
	<-asked
}

func TestLongestMetadataFits(t *testing.T) {
	m := Meta{ClusterID: newID(t), Broker: 1<<31 - 1, Incarnation: newID(t), Directory: newID(t), Expect: 1<<31 - 1, Leaving: true, ClusterAddr: strings.Repeat("a", 253) + ":65535"}
	b := m.encode()
	if len(b) > memberlist.MetaMaxSize {
		t.Fatalf("%d bytes, at most %d go into a packet", len(b), memberlist.MetaMaxSize)
	}
	got, err := decodeMeta(b)
	if err != nil || got != m {
		t.Errorf("read back as %+v, %v", got, err)
	}
	m.ClusterAddr += "0"
	if _, err := New(Options{BindAddr: "127.0.0.1:0", Meta: m}); err == nil {
		t.Error("an address that is too long is taken")
	}
}

func TestForgedPacketsChangeNothing(t *testing.T) {
	a := start(t, Options{Meta: Meta{ClusterID: newID(t), Broker: 1}})
	conn, err := net.Dial("udp", a.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, p := range [][]byte{{}, {0}, {244, 5, 'k', 'a', 'r', 's', 't', 4, 1, 2, 3}, make([]byte, 1400)} {
		_, _ = conn.Write(p)
	}
	b := start(t, Options{Meta: Meta{Broker: 2}})
	if _, err := b.Join(t.Context(), []string{a.Addr()}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a knows b and nobody else", func() bool { return len(a.Members()) == 1 }) // b's Join does not wait for a
}

func FuzzMeta(f *testing.F) {
	f.Add(Meta{Broker: 3, ClusterAddr: "10.0.0.3:9093"}.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMeta(b)
		if err != nil {
			return
		}
		if again, err := decodeMeta(m.encode()); err != nil || again != m {
			t.Errorf("%+v becomes %+v, %v", m, again, err)
		}
	})
}

type lockedWriter struct {
	mu sync.Mutex
	w  *strings.Builder
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
