package storage

import (
	"slices"
	"testing"
)

// Batches of 100 records and 100287 bytes, as Apache Kafka 4.4 indexed them.
func TestIndexEntriesOfKafka(t *testing.T) {
	x := newMemIndex()
	x.note(99, 0, 100287, 0x18bcfe56be8-100, 4096)
	x.note(199, 100287, 100287, 0x18bcfe56be8, 4096)
	if got := encodeOffsets(nil, x.offsets.view()); !slices.Equal(got, unhex("000000c7 000187bf")) {
		t.Errorf("offset index %x", got)
	}
	if got := encodeTimes(nil, x.times.view()); !slices.Equal(got, unhex("0000018bcfe56be8 000000c7")) {
		t.Errorf("time index %x", got)
	}
}

func TestTransactionIndexOfKafka(t *testing.T) {
	p := unhex("0000 0000000000000001 0000000000000002 0000000000000003 0000000000000004")
	es, whole := decodeAborted(p)
	if !whole || len(es) != 1 || es[0] != (abortedEntry{1, 2, 3, 4}) || !slices.Equal(encodeAborted(nil, es), p) {
		t.Fatalf("%+v %v", es, whole)
	}
}

func TestZerosEndAnIndex(t *testing.T) {
	p := append(unhex("000000c7 000187bf"), make([]byte, 80)...)
	if es, whole := decodeOffsets(p, 1<<20); !whole || len(es) != 1 {
		t.Errorf("%v %v", es, whole)
	}
	p = append(p, 1)
	if _, whole := decodeOffsets(p, 1<<20); whole {
		t.Error("bytes behind the zeros are not noticed")
	}
}

// What a reader has seen of an array stays as it is while the array grows.
func TestReadersOfAGrowingArray(t *testing.T) {
	var a appendOnly[int]
	done := make(chan struct{})
	go func() {
		defer close(done)
		for len(a.view()) < 10000 {
			for i, v := range a.view() {
				if v != i {
					panic("entry changed")
				}
			}
		}
	}()
	for i := range 10000 {
		a.add(i)
	}
	<-done
}
