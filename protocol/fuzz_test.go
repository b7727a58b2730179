package protocol

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	runmetrics "runtime/metrics"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Frames as clients send them, without the size: kcat (librdkafka) asking for versions, an old client's metadata, and
// a producer's v9 header.
var headerSeeds = [][]byte{
	[]byte("\x00\x12\x00\x03\x00\x00\x00\x01\x00\x07rdkafka\x00\x0blibrdkafka\x062.3.0\x00"),
	[]byte("\x00\x03\x00\x00\x00\x00\x00\x02\x00\x05kcat1\x00\x00\x00\x01\x00\x01t"),
	[]byte("\x00\x00\x00\x09\x00\x00\x00\x05\xff\xff\x00\x00\xff\xff\x00\x00\x75\x30\x01\x00"),
	[]byte("\x00\x12\x00\x63\x00\x00\x00\x01\x00\x01x\x00"),
}

func FuzzHeader(f *testing.F) {
	for _, seed := range headerSeeds {
		f.Add(seed)
	}
	s, err := NewServer(ServerOptions{APIs: []API{metadataRoute(), RouteProduce(0, 13, nil), RouteFetch(0, 18, nil)}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &conn{srv: s}
		h, err := c.header(b)
		if err == nil && (h.api == nil || len(h.rest) > len(b)) {
			t.Fatalf("header %+v of %x", h, b)
		}
	})
}

// realBatch is a record batch v2 as Apache Kafka's producer sends it: one record, no key, value "hello".
var realBatch = []byte("\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x3d\xff\xff\xff\xff\x02\x2d\x8d\xc1\xe8\x00\x00\x00\x00\x00\x00" +
	"\x00\x00\x01\x8b\xcf\xe5\x68\x00\x00\x00\x01\x8b\xcf\xe5\x68\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x01\x16\x00\x00\x00\x01\x0ahello\x00")

func FuzzProduce(f *testing.F) {
	for v := int16(0); v <= 13; v++ {
		f.Add(v, produce(v, -1, "topic", realBatch).AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		if version < 0 || version > 13 {
			return
		}
		var r ProduceRequest
		if r.decodeBody(version, body, &interner{}) != nil {
			return
		}
		for _, rt := range r.Topics {
			for _, p := range rt.Partitions {
				if len(p.Records) > len(body) {
					t.Fatal("more records than bytes")
				}
			}
		}
		agrees(t, version, body, kmsg.NewPtrProduceRequest(), func(m kmsg.Request) int { return len(m.(*kmsg.ProduceRequest).Topics) - len(r.Topics) })
	})
}

// agrees checks that kmsg reads what our decoder reads, and the same number of topics.
func agrees(t *testing.T, version int16, body []byte, msg kmsg.Request, more func(kmsg.Request) int) {
	t.Helper()
	msg.SetVersion(version)
	if err := msg.ReadFrom(body); err != nil || more(msg) != 0 {
		t.Fatalf("kmsg: %v, %d topics more", err, more(msg))
	}
}

func FuzzFetch(f *testing.F) {
	for v := int16(0); v <= 18; v++ {
		r := kmsg.NewPtrFetchRequest()
		r.Version, r.MaxWaitMillis, r.MinBytes = v, 500, 1
		rt := kmsg.NewFetchRequestTopic()
		rt.Topic = "topic"
		rt.Partitions = append(rt.Partitions, kmsg.NewFetchRequestTopicPartition())
		ft := kmsg.NewFetchRequestForgottenTopic()
		ft.Topic, ft.Partitions = "gone", []int32{1, 2}
		r.Topics, r.ForgottenTopics = append(r.Topics, rt), append(r.ForgottenTopics, ft)
		f.Add(v, r.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		if version < 0 || version > 18 {
			return
		}
		var r FetchRequest
		if r.decodeBody(version, body, &interner{}) == nil {
			agrees(t, version, body, kmsg.NewPtrFetchRequest(), func(m kmsg.Request) int { return len(m.(*kmsg.FetchRequest).Topics) - len(r.Topics) })
		}
	})
}

// allocated is how many bytes f allocates, and a little of what else goes on.
func allocated(f func()) uint64 {
	sample := []runmetrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	runmetrics.Read(sample)
	before := sample[0].Value.Uint64()
	f()
	runmetrics.Read(sample)
	return sample[0].Value.Uint64() - before
}

// worstExpansion bounds what a decoder allocates for each byte it is given, and slack what it allocates anyway. Bodies
// of that kind are decoded one at a time.
const (
	worstExpansion = 128
	slack          = 1 << 20
)

func decodeCapped(t *testing.T, key, version int16, body []byte) {
	t.Helper()
	msg := kmsg.RequestForKey(key)
	if msg == nil {
		return
	}
	msg.SetVersion(version)
	var err error
	n := allocated(func() { err = guarded(func() error { return msg.ReadFrom(body) }) })
	if err != nil && strings.Contains(err.Error(), "panicked") {
		t.Fatalf("key %d version %d: %v", key, version, err)
	}
	if n > uint64(len(body))*worstExpansion+slack {
		t.Fatalf("key %d version %d: %d bytes allocated for %d", key, version, n, len(body))
	}
}

// FuzzRequest gives bytes to the decoder of any request.
func FuzzRequest(f *testing.F) {
	for _, fact := range Facts() {
		for v := max(fact.Min, 0); v <= fact.Max; v++ {
			msg := kmsg.RequestForKey(fact.Key)
			msg.SetVersion(v)
			f.Add(fact.Key, v, msg.AppendTo(nil))
		}
	}
	f.Fuzz(func(t *testing.T, key, version int16, body []byte) {
		if msg := kmsg.RequestForKey(key); msg != nil && version >= 0 && version <= msg.MaxVersion() {
			decodeCapped(t, key, version, body)
		}
	})
}

// Arrays that claim billions, and arrays of the smallest elements there are, in every request and version.
func TestHostileBodiesDoNotAllocate(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const size = 16 << 10
	fills := map[string][]byte{}
	for _, b := range []byte{0, 1, 2, 0x7f, 0x80, 0xff} {
		fills[fmt.Sprintf("%02x", b)] = bytes.Repeat([]byte{b}, size)
	}
	random := make([]byte, size)
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	fills["random"] = random
	for _, fact := range Facts() {
		msg := kmsg.RequestForKey(fact.Key)
		if msg == nil {
			continue
		}
		for v := int16(0); v <= msg.MaxVersion(); v++ {
			for _, fill := range fills {
				decodeCapped(t, fact.Key, v, fill)
				// A length in the first bytes, then as many elements as fit.
				for at := range 12 {
					body := bytes.Clone(fill)
					copy(body[at:], "\x00\x00\x0f\xff")
					decodeCapped(t, fact.Key, v, body)
					copy(body[at:], "\xff\xff\x01\x01")
					decodeCapped(t, fact.Key, v, body)
				}
			}
		}
	}
}

// The hot decoders' arrays grow with what is read.
func TestHotDecodersDoNotAllocateForClaims(t *testing.T) {
	zeros := make([]byte, 256<<10)
	for _, lead := range []string{"\x01\x01", "\x80\x80\x40", "\xff\xff\x3f", "\xff\xff\xff\xff\x07", "\x00\x0f\xff\xff", "\x7f\xff\xff\xff"} {
		for at := 0; at < 40; at += 3 {
			for _, fill := range []byte{0, 1, 2} {
				body := bytes.Clone(zeros)
				for i := range body {
					body[i] = fill
				}
				copy(body[at:], lead)
				n := allocated(func() {
					_ = new(ProduceRequest).decodeBody(9, body, &interner{})
					_ = new(FetchRequest).decodeBody(12, body, &interner{})
				})
				if n > 16<<20 {
					t.Fatalf("%d bytes allocated for a body with %x at %d", n, lead, at)
				}
			}
		}
	}
}

func TestPanickingDecoderIsAnError(t *testing.T) {
	if err := guarded(func() error { panic("index out of range") }); !errors.Is(err, ErrMalformed) {
		t.Errorf("error %v", err)
	}
}
