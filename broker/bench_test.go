package broker

import (
	"encoding/binary"
	"io"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// BenchmarkProduce sends one batch of 16 KiB a request, 5 in flight, and reads the answers.
func BenchmarkProduce(b *testing.B) {
	r := newRig(b, rigOptions{disk: true, sync: true})
	r.topic("t", 1, nil)
	c := r.dial()
	frame := request(produceReq(9, -1, part{"t", 0, plain(b, 700)}))
	b.SetBytes(int64(len(frame)))
	c.pipeline(b, frame, 5)
}

// BenchmarkProduceSixPartitions sends six batches of 16 KiB a request.
func BenchmarkProduceSixPartitions(b *testing.B) {
	r := newRig(b, rigOptions{disk: true, sync: true})
	r.topic("t", 6, nil)
	c := r.dial()
	var parts []part
	for i := range int32(6) {
		parts = append(parts, part{"t", i, plain(b, 700)})
	}
	frame := request(produceReq(9, -1, parts...))
	b.SetBytes(int64(len(frame)))
	c.pipeline(b, frame, 5)
}

// BenchmarkFetch reads 16 KiB of each of six partitions a request.
func BenchmarkFetch(b *testing.B) {
	r := newRig(b, rigOptions{disk: true, sync: true})
	r.topic("t", 6, nil)
	c := r.dial()
	var parts []from
	for i := range int32(6) {
		c.put("t", i, 700)
		parts = append(parts, from{topic: "t", index: i})
	}
	frame := request(fetchReq(11, 500, 1, parts...))
	b.SetBytes(6 * int64(len(plain(b, 700))))
	c.pipeline(b, frame, 1)
}

// BenchmarkParkedFetch waits for a record each time.
func BenchmarkParkedFetch(b *testing.B) {
	r := newRig(b, rigOptions{disk: true, sync: true})
	r.topic("t", 1, nil)
	c, p := r.dial(), r.dial()
	produce := request(produceReq(9, 1, part{"t", 0, plain(b, 1)}))
	req := fetchReq(11, long, 1, from{topic: "t"})
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		req.Topics[0].Partitions[0].FetchOffset = int64(i)
		c.write(request(req))
		p.write(produce)
		p.discard()
		c.discard()
	}
}

func request(req kmsg.Request) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("bench")).AppendRequest(nil, req, 1)
}

func (c *client) write(frame []byte) {
	if _, err := c.conn.Write(frame); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) discard() {
	var head [4]byte
	if _, err := io.ReadFull(c.conn, head[:]); err != nil {
		c.t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, c.conn, int64(binary.BigEndian.Uint32(head[:]))); err != nil {
		c.t.Fatal(err)
	}
}

// pipeline keeps n requests in flight.
func (c *client) pipeline(b *testing.B, frame []byte, n int) {
	b.ReportAllocs()
	for range n - 1 {
		c.write(frame)
	}
	for b.Loop() {
		c.write(frame)
		c.discard()
	}
	for range n - 1 {
		c.discard()
	}
}
