package broker

import (
	"io"
	"runtime"
	"sync/atomic"

	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

// maxConverting bounds, in bytes, what conversions for old clients hold in memory together: what was read, and message
// sets until they have left.
const maxConverting = 64 << 20

// conversions is that bound. One conversion may go over it when it is alone, so that a large batch can be served at all.
// It also leaves a processor to clients of this decade, however many old ones there are.
type conversions struct {
	held  atomic.Int64
	turns chan struct{} // has one for each that is at work
}

func newConversions() *conversions {
	return &conversions{turns: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1))}
}

// begin waits for a turn, which a conversion keeps for some ten milliseconds; end gives it to the next one.
func (c *conversions) begin() { c.turns <- struct{}{} }
func (c *conversions) end()   { <-c.turns }

func (c *conversions) take(bytes int) bool {
	n := int64(bytes)
	if held := c.held.Add(n); held > maxConverting && held != n {
		c.held.Add(-n)
		return false
	}
	return true
}

func (c *conversions) give(bytes int) { c.held.Add(-int64(bytes)) }

// messageSet is a converted part of an answer. It gives its share of the bound back when the answer has left.
type messageSet struct {
	set  []byte
	from *conversions
}

func (m *messageSet) Len() int { return len(m.set) }

func (m *messageSet) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(m.set)
	return int64(n), err
}

func (m *messageSet) Append(dst []byte) ([]byte, error) { return append(dst, m.set...), nil }

func (m *messageSet) Release() { m.from.give(len(m.set)) }

// lastConverted is the last version of Fetch whose clients do not know today's batches.
const lastConverted = 3

// convert makes a message set for a request of version 0 to 3, nil when there is no room for it now: the client asks
// again. It is bounded by what the client asked for, but for the first batch of a v3 answer, and by the topic's limit for
// unpacking.
func (f *fetch) convert(it *fetchItem, slice *storage.Slice) (*messageSet, error) {
	c := f.api.converting
	raw := slice.Len()
	if !c.take(raw) {
		return nil, nil
	}
	defer c.give(raw)
	batches, err := slice.Append(make([]byte, 0, raw))
	if err != nil {
		return nil, err
	}
	magic := int8(1)
	if f.version < 2 {
		magic = 0
	}
	f.api.metrics.fetchConverted(magic)
	set, err := batch.DownConvert(nil, batches, magic, batch.DownOptions{
		From: it.from, MaxBytes: max(1, min(f.maxBytes-f.out.spent, int(it.maxBytes))), WholeFirst: f.version == 3,
		MaxDecompressedBytes: it.part.Rules().MaxDecompressedBytes,
	})
	if err != nil || !c.take(len(set)) {
		return nil, err
	}
	f.out.spent += len(set)
	return &messageSet{set: set, from: c}, nil
}
