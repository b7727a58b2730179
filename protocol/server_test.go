package protocol

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestTableRefusesWhatDoesNotExist(t *testing.T) {
	serve := func(c *Call) {}
	tests := []struct {
		name string
		apis []API
	}{
		{"twice", []API{metadataRoute(), metadataRoute()}},
		{"versions beyond the facts", []API{{Key: 3, Min: 0, Max: 14, Serve: serve}}},
		{"a key of brokers among themselves", []API{{Key: 56, Min: 2, Max: 3, Serve: serve}}},
		{"a key of nobody", []API{{Key: 500, Serve: serve}}},
		{"versions the wrong way round", []API{{Key: 3, Min: 2, Max: 1, Serve: serve}}},
		{"nothing to serve it", []API{{Key: 3, Min: 0, Max: 1}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := NewServer(ServerOptions{APIs: tt.apis}); err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestCompareFacts(t *testing.T) {
	var all []API
	for _, f := range Facts() {
		if f.Intent == "serve" && f.Key != keyAPIVersions {
			all = append(all, API{Key: f.Key, Min: f.Min, Max: f.Max})
		}
	}
	if diff := CompareFacts(all); diff != nil {
		t.Errorf("whole table: %v", diff)
	}
	all[0].Max--
	all[1].Key = 56
	want := []string{"0 Produce: versions 0-12, want 0-13", "1 Fetch: missing, want 0-18", "56 AlterPartition: served, want refused"}
	if diff := cmp.Diff(want, CompareFacts(all)); diff != "" {
		t.Error(diff)
	}
}

// The codec of messages knows every version that is to be served, but for what is listed here.
func TestCodecKnowsTheFacts(t *testing.T) {
	for _, f := range Facts() {
		if f.Intent != "serve" {
			continue
		}
		if msg := kmsg.RequestForKey(f.Key); msg == nil || msg.MaxVersion() < f.Max {
			t.Errorf("%d %s: no codec for version %d", f.Key, f.Name, f.Max)
		}
	}
}

func TestAddressInUseIsAnError(t *testing.T) {
	_, addr := serve(t, ServerOptions{APIs: []API{metadataRoute()}})
	_, err := NewServer(ServerOptions{APIs: []API{metadataRoute()}, Listeners: []ListenerOptions{{Name: "B", Addr: addr}}})
	if err == nil || !strings.Contains(err.Error(), "listener B") {
		t.Errorf("error %v", err)
	}
}

func TestAllowRefusesBeforeTheBodyIsRead(t *testing.T) {
	route := metadataRoute()
	route.Allow = func(*Call) error { return errors.New("not you") }
	_, addr := serve(t, ServerOptions{APIs: []API{route}})
	c := dial(t, addr)
	c.send(request(1, metadata()))
	c.closed()
}

func TestMetricsCount(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	p := newParked()
	park := Route(0, 4, func(c *Call, _ *kmsg.HeartbeatRequest) { p.park(c) })
	_, addr := serve(t, ServerOptions{APIs: []API{metadataRoute(), park}, Registry: reg, MaxConnectionsPerIP: 1})
	c := dial(t, addr)
	c.send(request(1, metadata()), request(2, metadata()))
	c.answer()
	c.answer()
	c.send(request(3, kmsg.NewPtrHeartbeatRequest()))
	call := p.wait(t, 1)[0]
	if n := value(t, reg, "karst_requests_inflight"); n != 1 {
		t.Errorf("%v in flight", n)
	}
	call.Reply(kmsg.NewPtrHeartbeatResponse())
	c.answer()
	eventually(t, "three requests are counted", func() bool {
		return value(t, reg, "karst_requests_total", "Heartbeat", "0") == 1
	})
	if n := value(t, reg, "karst_requests_total", "Metadata", "1"); n != 2 {
		t.Errorf("%v metadata requests", n)
	}
	if n := value(t, reg, "karst_request_bytes", "Metadata", "in"); n != float64(2*len(request(1, metadata()))) {
		t.Errorf("%v bytes", n)
	}
	if n := value(t, reg, "karst_connections", "PLAINTEXT"); n != 1 {
		t.Errorf("%v connections", n)
	}
	eventually(t, "none is in flight", func() bool { return value(t, reg, "karst_requests_inflight") == 0 })
	c.Close()
	eventually(t, "the connection has ended", func() bool { return value(t, reg, "karst_protocol_connections_ended_total", "closed_by_peer") == 1 })
}

// value is a counter or gauge with these label values, in the order of the labels' names.
func value(t *testing.T, reg *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetValue())
			}
			if f.GetName() == name && slices.Equal(have, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

func TestPulse(t *testing.T) {
	const s = time.Second
	allow := patience{idle: 100 * s, stall: 10 * s}
	pressed := patience{idle: 100 * s, stall: 10 * s, pressed: true}
	tests := []struct {
		name     string
		set      func(p *pulse)
		now      time.Duration
		inFlight bool
		allow    patience
		want     error
		ask      bool
	}{
		{"quiet", func(p *pulse) { p.framed(1 * s); p.wait(2*s, readingRequest, 0) }, 100 * s, false, allow, nil, false},
		{"idle", func(p *pulse) { p.framed(1 * s); p.wait(2*s, readingRequest, 0) }, 102 * s, false, allow, ErrIdle, false},
		{"a request is parked", func(p *pulse) { p.framed(1 * s); p.wait(2*s, readingRequest, 0) }, 102 * s, true, allow, nil, false},
		{"idle since the last answer", func(p *pulse) { p.wait(2*s, readingRequest, 0); p.write(50*s, 9); p.write(51*s, 0) }, 102 * s, false, allow, nil, false},
		{"works for long", func(p *pulse) { p.framed(1 * s); p.wait(2*s, readingRequest, 0); p.work() }, 500 * s, false, allow, nil, false},
		{"half a frame", func(p *pulse) { p.wait(2*s, readingRest, 100) }, 12 * s, false, allow, nil, false},
		{"half a frame for too long", func(p *pulse) { p.wait(2*s, readingRest, 100) }, 13 * s, false, allow, ErrStalled, false},
		{"half a frame drop by drop", func(p *pulse) { p.wait(2*s, readingRest, 100); p.work(); p.wait(11*s, readingRest, 101) }, 13 * s, false, allow, ErrStalled, false},
		{"much of a frame", func(p *pulse) { p.wait(2*s, readingRest, 100); p.wait(11*s, readingRest, 5*minRate) }, 16 * s, false, allow, nil, false},
		{"much of a frame for too long", func(p *pulse) { p.wait(2*s, readingRest, 5*minRate) }, 18 * s, false, allow, ErrStalled, false},
		{"a new frame", func(p *pulse) { p.wait(2*s, readingRest, 1); p.framed(9 * s); p.wait(10*s, readingRest, 1) }, 19 * s, false, allow, nil, false},
		{"holds memory that others want", func(p *pulse) { p.wait(2*s, readingRest, smallBytes+1) }, 5 * s, false, pressed, ErrStalled, false},
		{"holds next to nothing", func(p *pulse) { p.wait(2*s, readingRest, 100) }, 5 * s, false, pressed, nil, false},
		{"an answer is not taken", func(p *pulse) { p.write(2*s, 100) }, 13 * s, true, allow, ErrStalled, false},
		{"a large answer is taken slowly", func(p *pulse) { p.write(2*s, 10*minRate) }, 21 * s, true, allow, nil, false},
		{"full", func(p *pulse) { p.wait(2*s, readingRoom, 0) }, 500 * s, true, allow, nil, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var p pulse
			tt.set(&p)
			got, asks := p.check(tt.now, tt.inFlight, tt.allow)
			if !errors.Is(got, tt.want) || asks != tt.ask {
				t.Errorf("got %v, ask %v; want %v, %v", got, asks, tt.want, tt.ask)
			}
		})
	}
}

func TestBudget(t *testing.T) {
	b := newBudget(100)
	ctx, cancel := context.WithCancel(context.Background())
	if !b.try(60) || b.try(60) || b.ample() {
		t.Fatal("limit is not kept")
	}
	over, err := b.wait(ctx, 500, nil) // the first in line goes over
	if !over || err != nil {
		t.Fatalf("over %v, %v", over, err)
	}
	second := make(chan bool)
	go func() {
		over, _ := b.wait(ctx, 50, nil)
		second <- over
	}()
	eventually(t, "the second waits", func() bool { return b.waiting.Load() == 1 })
	if b.try(1) {
		t.Error("somebody jumped the line")
	}
	b.give(500)
	b.end()
	if over := <-second; !over {
		t.Error("60 and 50 of 100 are not over the limit")
	}
	third := make(chan error)
	go func() {
		_, err := b.wait(ctx, 80, nil)
		third <- err
	}()
	eventually(t, "the third waits", func() bool { return b.waiting.Load() == 1 })
	cancel()
	if err := <-third; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	b.give(50)
	b.end()
	b.give(60)
	if n := b.used.Load(); n != 0 || b.waiting.Load() != 0 {
		t.Errorf("%d bytes used, %d waiting", n, b.waiting.Load())
	}
}

// A reader over the limit that needs another buffer takes the right along, once the old one is its own again.
func TestRightToExceedMovesWithTheReader(t *testing.T) {
	b := newBudget(1)
	p := newBuffers(b, true)
	ctx := context.Background()
	first, err := p.wait(ctx, 10, nil)
	if err != nil || !first.over {
		t.Fatalf("over %v, %v", first.over, err)
	}
	first.retain() // a call has its body here
	got := make(chan *buffer)
	go func() {
		next, _ := p.wait(ctx, 10_000, first)
		got <- next
	}()
	eventually(t, "the reader waits", func() bool { return b.waiting.Load() == 1 })
	first.release()
	next := <-got
	if !next.over || first.over {
		t.Errorf("over: old %v, new %v", first.over, next.over)
	}
	first.release()
	next.release()
	if n := b.used.Load(); n != 0 || b.mu.over {
		t.Errorf("%d bytes used, over %v", n, b.mu.over)
	}
}

func TestBufferReleasedTwicePanics(t *testing.T) {
	p := newBuffers(newBudget(1<<20), false)
	b := p.try(10)
	b.release()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	b.release()
}

func TestInternerIsBounded(t *testing.T) {
	var in interner
	for i := range 10 * maxInterned {
		in.intern([]byte{byte(i), byte(i >> 8), 1})
	}
	if len(in.names) > maxInterned {
		t.Errorf("%d names", len(in.names))
	}
	long := make([]byte, maxInternedBytes+1)
	if in.intern(long); len(in.names) > maxInterned || in.names[string(long)] != "" {
		t.Error("a long name is kept")
	}
}
