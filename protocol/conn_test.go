package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestAnswersLeaveInRequestOrder(t *testing.T) {
	p := newParked()
	heartbeat := Route(0, 4, func(c *Call, _ *kmsg.HeartbeatRequest) { p.park(c) })
	_, addr := serve(t, ServerOptions{APIs: []API{heartbeat, metadataRoute()}})
	c := dial(t, addr)
	const n = 40
	for i := range int32(n) {
		if i%4 == 3 {
			c.send(request(i, metadata())) // answered inline, behind parked ones
			continue
		}
		c.send(request(i, kmsg.NewPtrHeartbeatRequest()))
	}
	calls := slices.Clone(p.wait(t, n*3/4))
	rand.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
	var g sync.WaitGroup
	for _, call := range calls {
		g.Go(func() { call.Reply(kmsg.NewPtrHeartbeatResponse()) })
	}
	g.Wait()
	for i := range int32(n) {
		if corr, _ := c.answer(); corr != i {
			t.Fatalf("answer %d came at place %d", corr, i)
		}
	}
}

func TestSecondAnswerPanics(t *testing.T) {
	got := make(chan any, 1)
	meta := Route(0, 13, func(c *Call, _ *kmsg.MetadataRequest) {
		c.Reply(kmsg.NewPtrMetadataResponse())
		defer func() { got <- recover() }()
		c.NoReply()
	})
	_, addr := serve(t, ServerOptions{APIs: []API{meta}})
	c := dial(t, addr)
	c.send(request(1, metadata()))
	c.answer()
	if r := <-got; r == nil {
		t.Fatal("no panic")
	}
}

// No bytes for acks=0, and the answers behind it are not held up; one that fails closes the connection.
func TestProduceWithoutAcksHasNoAnswer(t *testing.T) {
	route := RouteProduce(0, 13, func(c *Call, r *ProduceRequest) {
		switch {
		case r.Topics[0].Name == "bad":
			c.Fail(errors.New("unknown topic"))
		case r.Acks == 0:
			c.NoReply()
		default:
			c.ReplyProduce(&ProduceResponse{})
		}
	})
	_, addr := serve(t, ServerOptions{APIs: []API{route, metadataRoute()}})
	c := dial(t, addr)
	c.send(request(1, produce(7, 0, "t", []byte("x"))), request(2, metadata()), request(3, produce(7, 1, "t", []byte("x"))))
	for _, want := range []int32{2, 3} {
		if corr, _ := c.answer(); corr != want {
			t.Fatalf("answer %d, want %d", corr, want)
		}
	}
	c.send(request(4, produce(7, 0, "bad", []byte("x"))))
	c.closed()
}

// A request that waits keeps its bytes while other requests come and go: they share buffers.
func TestParkedRequestKeepsItsBytes(t *testing.T) {
	type held struct {
		call *Call
		req  *ProduceRequest
		sum  uint32
	}
	arrived := make(chan held, 100)
	route := RouteProduce(0, 13, func(c *Call, r *ProduceRequest) {
		if r.Acks != -1 {
			c.ReplyProduce(&ProduceResponse{})
			return
		}
		arrived <- held{c, r, crc32.ChecksumIEEE(r.Topics[0].Partitions[0].Records)}
	})
	_, addr := serve(t, ServerOptions{APIs: []API{route}})
	c := dial(t, addr)
	for _, size := range []int{10, 3000, 20_000, 90_000, 2 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			records := make([]byte, size)
			for i := range records {
				records[i] = byte(rand.Uint32())
			}
			c.send(request(1, produce(7, -1, "t", records)))
			h := <-arrived
			other := dial(t, addr)
			for i := range 20 {
				c.send(request(2, produce(7, 1, "t", bytes.Repeat([]byte{byte(i)}, size))))
				other.send(request(3, produce(7, 1, "t", bytes.Repeat([]byte{byte(i)}, size))))
				other.answer()
			}
			if got := crc32.ChecksumIEEE(h.req.Topics[0].Partitions[0].Records); got != h.sum || h.sum != crc32.ChecksumIEEE(records) {
				t.Errorf("checksum of a parked request went from %x to %x", h.sum, got)
			}
			h.call.ReplyProduce(&ProduceResponse{})
			for range 21 {
				c.answer()
			}
		})
	}
}

func TestReleasedBodyIsPoisoned(t *testing.T) {
	got := make(chan []byte, 1)
	route := RouteProduce(0, 13, func(c *Call, r *ProduceRequest) {
		records := r.Topics[0].Partitions[0].Records
		c.ReleaseBody()
		got <- bytes.Clone(records)
		c.ReplyProduce(&ProduceResponse{})
	})
	_, addr := serve(t, ServerOptions{APIs: []API{route}})
	c := dial(t, addr)
	c.send(request(1, produce(7, 1, "t", make([]byte, 100_000)))) // alone in its buffer
	if records := <-got; records[50_000] != poison {
		t.Errorf("released bytes are %x", records[50_000])
	}
	c.answer()
}

func TestLaterRunsOnTheConnectionAndMayBeCalledUnderLocks(t *testing.T) {
	p := newParked()
	route := RouteFetch(0, 18, func(c *Call, _ *FetchRequest) { p.park(c) })
	_, addr := serve(t, ServerOptions{APIs: []API{route}})
	c := dial(t, addr)
	f := kmsg.NewPtrFetchRequest()
	f.Version = 11
	c.send(request(7, f))
	call := p.wait(t, 1)[0]
	var mu sync.Mutex
	mu.Lock()
	call.Later(func() {
		mu.Lock()
		defer mu.Unlock()
		call.ReplyFetch(&FetchResponse{SessionID: 5})
	})
	mu.Unlock()
	if corr, body := c.answer(); corr != 7 || binary.BigEndian.Uint32(body[6:]) != 5 {
		t.Errorf("answer %d %x", corr, body)
	}
}

// What a handler parks must learn that its client is gone, also when the socket is not read any more.
func TestContextEndsWithTheConnection(t *testing.T) {
	for _, sent := range []int{1, 8} {
		t.Run(fmt.Sprintf("%d in flight of 4", min(sent, 4)), func(t *testing.T) {
			p := newParked()
			route := RouteFetch(0, 18, func(c *Call, _ *FetchRequest) { p.park(c) })
			_, addr := serve(t, ServerOptions{APIs: []API{route}, MaxInFlight: 4, StallTimeout: time.Second})
			c := dial(t, addr)
			for range sent {
				c.send(request(7, kmsg.NewPtrFetchRequest()))
			}
			calls := p.wait(t, min(sent, 4))
			c.Close()
			for _, call := range calls {
				select {
				case <-call.Ctx().Done():
				case <-time.After(patienceOfTests):
					t.Fatal("context does not end")
				}
				call.ReplyFetch(&FetchResponse{Topics: []FetchTopicResult{{Partitions: []FetchPartitionResult{{Records: newRange(10)}}}}})
			}
		})
	}
}

func TestInFlightLimitStopsReading(t *testing.T) {
	p := newParked()
	route := Route(0, 4, func(c *Call, _ *kmsg.HeartbeatRequest) { p.park(c) })
	s, addr := serve(t, ServerOptions{APIs: []API{route}, MaxInFlight: 3})
	c := dial(t, addr)
	for i := range int32(10) {
		c.send(request(i, kmsg.NewPtrHeartbeatRequest()))
	}
	p.wait(t, 3)
	eventually(t, "the reader waits for room", func() bool {
		for _, c := range s.connections() {
			c.pulse.mu.Lock()
			defer c.pulse.mu.Unlock()
			return c.pulse.mu.reading == readingRoom
		}
		return false
	})
	for i := range 10 {
		calls := p.wait(t, i+1)
		if len(calls) > i+3 {
			t.Fatalf("%d requests in flight", len(calls)-i)
		}
		calls[i].Reply(kmsg.NewPtrHeartbeatResponse())
		if corr, _ := c.answer(); corr != int32(i) {
			t.Fatalf("answer %d at place %d", corr, i)
		}
	}
}

// Client ids: null, empty and normal; the tag section follows in every case. Trailing bytes are ignored.
func TestHeaderVariants(t *testing.T) {
	ids := make(chan string, 10)
	route := Route(0, 13, func(c *Call, _ *kmsg.MetadataRequest) {
		ids <- c.ClientID()
		c.Reply(kmsg.NewPtrMetadataResponse())
	})
	_, addr := serve(t, ServerOptions{APIs: []API{route}})
	c := dial(t, addr)
	body := []byte{1, 0, 0, 0, 0} // Metadata v9: no topics, three booleans, no tags
	head := func(corr int) []byte { return append(append(be16(3), be16(9)...), be32(corr)...) }
	c.send(
		rawFrame(head(1), be16(-1), []byte{0}, body),
		rawFrame(head(2), be16(0), []byte{0}, body),
		rawFrame(head(3), be16(2), []byte("me"), []byte{0}, body),
		rawFrame(head(4), be16(2), []byte("me"), []byte{1, 99, 3, 'a', 'b', 'c'}, body, []byte("trailing")),
	)
	for i, want := range []string{"", "", "me", "me"} {
		corr, answer := c.answer()
		if corr != int32(i+1) || answer[0] != 0 {
			t.Errorf("answer %d has id %d, tags %x", i, corr, answer[0])
		}
		if id := <-ids; id != want {
			t.Errorf("client id %q, want %q", id, want)
		}
	}
}

// Each of these ends its own connection and no other.
func TestWhatCannotBeServedClosesTheConnection(t *testing.T) {
	_, addr := serve(t, ServerOptions{APIs: []API{metadataRoute(), RouteProduce(3, 13, nil), RouteFetch(4, 18, nil)}})
	meta := func(version int, rest ...[]byte) []byte {
		return rawFrame(append([][]byte{be16(3), be16(version), be32(1), be16(1), []byte("x")}, rest...)...)
	}
	tests := []struct {
		name string
		send []byte
	}{
		{"size negative", be32(-1)},
		{"size zero", be32(0)},
		{"size below a header", append(be32(9), make([]byte, 9)...)},
		{"size over the limit", be32(DefaultMaxFrameBytes + 1)},
		{"a browser", []byte("GET / HTTP/1.1\r\n\r\n")},
		{"a TLS client", []byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}},
		{"unknown key", rawFrame(be16(9999), be16(0), be32(1), be16(-1))},
		{"negative key", rawFrame(be16(-1), be16(0), be32(1), be16(-1))},
		{"removed key", rawFrame(be16(4), be16(0), be32(1), be16(-1), make([]byte, 40))},
		{"version above", meta(14, be32(0))},
		{"version negative", meta(-1, be32(0))},
		{"produce below its minimum", rawFrame(be16(0), be16(0), be32(1), be16(-1), be16(1), be32(1), be32(0))},
		{"client id longer than the frame", rawFrame(be16(3), be16(1), be32(1), be16(30000), []byte("x"))},
		{"client id of negative length", rawFrame(be16(3), be16(1), be32(1), be16(-2))},
		{"header tags without end", meta(9, bytes.Repeat([]byte{0xff}, 64))},
		{"header tag longer than the frame", meta(9, []byte{1, 5, 0xff, 0xff, 0xff, 0xff, 7, 'a'})},
		{"no body", meta(8)},
		{"array of two billion", meta(8, be32(1<<31-1), be16(1), []byte("a"))},
		{"fetch array negative", rawFrame(be16(1), be16(11), be32(1), be16(-1), be32(-1), be32(1), be32(1), be32(1), []byte{0}, be32(0), be32(-1), be32(-5))},
		{"produce cut", rawFrame(be16(0), be16(7), be32(1), be16(-1), be16(-1), be16(1), be32(1), be32(1), be16(1), []byte("t"), be32(1), be32(0), be32(100))},
	}
	healthy := dial(t, addr)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := dial(t, addr)
			c.send(tt.send)
			c.closed()
			healthy.send(request(1, metadata()))
			healthy.answer()
		})
	}
}

func TestGoodRequestsBeforeABadOneAreAnswered(t *testing.T) {
	_, addr := serve(t, ServerOptions{APIs: []API{metadataRoute()}})
	c := dial(t, addr)
	c.send(request(1, metadata()), request(2, metadata()), rawFrame(be16(9999), be16(0), be32(3), be16(-1)))
	c.answer()
	c.answer()
	c.closed()
}

func TestRequestByteByByte(t *testing.T) {
	route := RouteProduce(3, 13, func(c *Call, r *ProduceRequest) {
		c.ReplyProduce(&ProduceResponse{Topics: []ProduceTopicResult{{Name: string(r.Topics[0].Partitions[0].Records)}}})
	})
	_, addr := serve(t, ServerOptions{APIs: []API{route}})
	c := dial(t, addr)
	for range 3 {
		for _, b := range request(9, produce(7, 1, "t", []byte("records"))) {
			c.send([]byte{b})
		}
		if _, body := c.answer(); !bytes.Contains(body, []byte("records")) {
			t.Fatalf("answer %q", body)
		}
	}
}

// Frames of all sizes, cut at any place, arrive whole: buffers are shared, left, grown and replaced on the way.
func TestFramesOfAllSizes(t *testing.T) {
	for _, budget := range []int64{1, 100 << 10, 64 << 20} {
		t.Run(fmt.Sprint("budget ", budget), func(t *testing.T) {
			sums := make(chan uint32, 10000)
			route := RouteProduce(3, 13, func(c *Call, r *ProduceRequest) {
				sums <- crc32.ChecksumIEEE(r.Topics[0].Partitions[0].Records)
				c.ReplyProduce(&ProduceResponse{})
			})
			_, addr := serve(t, ServerOptions{APIs: []API{route}, MemoryBudget: budget})
			rng := rand.New(rand.NewPCG(1, uint64(budget)))
			var stream []byte
			var want []uint32
			for range 300 {
				n := 1 << rng.IntN(18)
				if rng.IntN(50) == 0 {
					n = 3 << 20
				}
				records := make([]byte, n/2+rng.IntN(n))
				for i := range records {
					records[i] = byte(rng.Uint32())
				}
				want = append(want, crc32.ChecksumIEEE(records))
				stream = append(stream, request(int32(len(want)), produce(7, 1, "t", records))...)
			}
			c := dial(t, addr)
			go func() {
				for rest := stream; len(rest) > 0; {
					n := min(len(rest), 1+rng.IntN(1<<rng.IntN(20)))
					if _, err := c.Write(rest[:n]); err != nil {
						return
					}
					rest = rest[n:]
				}
			}()
			var got []uint32
			for i := range want {
				if corr, _ := c.answer(); corr != int32(i+1) {
					t.Fatalf("answer %d at place %d", corr, i+1)
				}
				got = append(got, <-sums)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A burst of large answers leaves piece by piece, although nothing of it lies in memory: the reader goes on only when
// less than a megabyte of answers is ready. The third request is being worked on while the first answer is read.
func TestLargeAnswersLeaveBeforeTheBurstIsServed(t *testing.T) {
	read := make(chan struct{})
	route := RouteProduce(0, 13, func(c *Call, r *ProduceRequest) {
		if r.Topics[0].Name == "last" {
			select {
			case <-read:
			case <-time.After(patienceOfTests):
				t.Error("the first answer did not leave")
			}
		}
		p := NewParts()
		p.File(newRange(700_000))
		c.ReplyParts(p)
	})
	_, addr := serve(t, ServerOptions{APIs: []API{route}})
	c := dial(t, addr)
	c.send(request(1, produce(7, 1, "first", nil)), request(2, produce(7, 1, "second", nil)), request(3, produce(7, 1, "last", nil)))
	for corr := range int32(3) {
		if got, _ := c.answer(); got != corr+1 {
			t.Fatalf("answer %d, want %d", got, corr+1)
		}
		if corr == 0 {
			close(read)
		}
	}
}

// Requests that were read of a client which has gone are not served any more.
func TestNothingIsDoneForAClientThatHasGone(t *testing.T) {
	var served atomic.Int32
	t.Cleanup(func() { // once the server has ended
		if n := served.Load(); n != 1 {
			t.Errorf("%d requests were served", n)
		}
	})
	entered, leave := make(chan *Call, 1), make(chan struct{})
	meta := Route(0, 13, func(c *Call, _ *kmsg.MetadataRequest) {
		if served.Add(1) == 1 {
			entered <- c
			<-leave
		}
		c.Reply(kmsg.NewPtrMetadataResponse())
	})
	s, addr := serve(t, ServerOptions{APIs: []API{meta}})
	c := dial(t, addr)
	burst := make([][]byte, 20)
	for i := range burst {
		burst[i] = request(int32(i), metadata())
	}
	c.send(burst...)
	call := <-entered
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.mu.conns))
	s.mu.Unlock()
	conns[0].end(errors.New("gone"))
	<-call.Ctx().Done()
	close(leave)
}
