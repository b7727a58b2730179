package protocol

import (
	"math"
	"sync"
	"time"
)

var fetchRequests = sync.Pool{New: func() any { return new(FetchRequest) }}

// decodeBody reads versions 0 to 18.
// v3 max bytes (KIP-74) · v4 isolation (KIP-98) · v5 log start (KIP-107) · v7 sessions (KIP-227) · v9 leader epoch
// (KIP-320) · v11 rack (KIP-392) · v12 flexible, last fetched epoch (KIP-595) · v13 topic ids (KIP-516) · v15 replica
// state as a tag (KIP-903) · v17 directory id (KIP-853) · v18 high watermark (KIP-1166)
func (r *FetchRequest) decodeBody(version int16, body []byte, names *interner) error {
	flexible := version >= 12
	d := decoder{b: body}
	r.reset()
	if version <= 14 {
		r.ReplicaID = d.int32()
	}
	r.MaxWait = time.Duration(d.int32()) * time.Millisecond
	r.MinBytes = d.int32()
	if version >= 3 {
		r.MaxBytes = d.int32()
	}
	if version >= 4 {
		r.Isolation = d.int8()
	}
	if version >= 7 {
		r.SessionID, r.SessionEpoch = d.int32(), d.int32()
	}
	r.decodeTopics(&d, version, names)
	if version >= 7 {
		r.decodeForgotten(&d, version, names)
	}
	if version >= 11 {
		r.Rack = d.name(flexible, names)
	}
	if flexible {
		d.tags(func(tag uint32, f decoder) { d.bad = !r.decodeTag(tag, f, version) })
	}
	return d.err()
}

func (r *FetchRequest) decodeTopics(d *decoder, version int16, names *interner) {
	flexible := version >= 12
	for n := d.array(flexible, 2); n > 0 && !d.bad; n-- {
		var t FetchTopic
		if version >= 13 {
			t.ID = d.uuid()
		} else {
			t.Name = d.name(flexible, names)
		}
		first := len(r.partitions)
		m := d.array(flexible, 16)
		if first+m > maxEntries {
			d.fail()
		}
		for ; m > 0 && !d.bad; m-- {
			r.partitions = append(r.partitions, decodeFetchPartition(d, version))
		}
		t.Partitions = r.partitions[first:len(r.partitions):len(r.partitions)]
		if flexible {
			d.skipTags()
		}
		r.Topics = append(r.Topics, t)
	}
}

func decodeFetchPartition(d *decoder, version int16) FetchPartition {
	p := FetchPartition{
		Index: d.int32(), CurrentEpoch: -1, LastFetchedEpoch: -1, LogStart: -1, HighWatermark: math.MaxInt64, SyncedEnd: -1,
	}
	if version >= 9 {
		p.CurrentEpoch = d.int32()
	}
	p.Offset = d.int64()
	if version >= 12 {
		p.LastFetchedEpoch = d.int32()
	}
	if version >= 5 {
		p.LogStart = d.int64()
	}
	p.MaxBytes = d.int32()
	if version >= 12 {
		d.tags(func(tag uint32, f decoder) {
			switch {
			case tag == 0 && version >= 17:
				p.DirectoryID = f.uuid()
			case tag == 1 && version >= 18:
				p.HighWatermark = f.int64()
			case tag == syncedEndTag:
				p.SyncedEnd = f.int64()
			}
			d.bad = d.bad || f.bad
		})
	}
	return p
}

func (r *FetchRequest) decodeForgotten(d *decoder, version int16, names *interner) {
	flexible := version >= 12
	for n := d.array(flexible, 2); n > 0 && !d.bad; n-- {
		var t ForgottenTopic
		if version >= 13 {
			t.ID = d.uuid()
		} else {
			t.Name = d.name(flexible, names)
		}
		first := len(r.indexes)
		m := d.array(flexible, 4)
		if first+m > maxEntries {
			d.fail()
		}
		for ; m > 0 && !d.bad; m-- {
			r.indexes = append(r.indexes, d.int32())
		}
		t.Partitions = r.indexes[first:len(r.indexes):len(r.indexes)]
		if flexible {
			d.skipTags()
		}
		r.Forgotten = append(r.Forgotten, t)
	}
}

func (r *FetchRequest) decodeTag(tag uint32, f decoder, version int16) bool {
	switch {
	case tag == 0:
		id := f.string(true)
		r.ClusterID, r.HasClusterID = string(id), id != nil
	case tag == 1 && version >= 15:
		r.ReplicaID, r.ReplicaEpoch = f.int32(), f.int64()
		f.skipTags()
	}
	return !f.bad
}

func (r *FetchRequest) reset() {
	clear(r.Topics)
	clear(r.Forgotten)
	*r = FetchRequest{
		ReplicaID: -1, ReplicaEpoch: -1, MaxBytes: math.MaxInt32, SessionEpoch: -1,
		Topics: r.Topics[:0], Forgotten: r.Forgotten[:0], partitions: r.partitions[:0], indexes: r.indexes[:0],
	}
}

func (r *FetchRequest) giveBack() {
	if max(cap(r.Topics), cap(r.partitions), cap(r.Forgotten), cap(r.indexes)) <= maxKept {
		r.reset()
		fetchRequests.Put(r)
	}
}

// EncodeFetch writes the body in versions 0 to 18. The response's file ranges belong to p from here on.
// v1 throttle time · v4 stable offset, aborted transactions · v5 log start · v7 error and session · v11 preferred
// replica · v12 flexible, diverging epoch, leader hint · v13 topic ids · v16 endpoints (KIP-951)
func EncodeFetch(version int16, r *FetchResponse, p *Parts) {
	flexible := version >= 12
	if version >= 1 {
		p.buf = appendInt32(p.buf, millis(r.ThrottleTime))
	}
	if version >= 7 {
		p.buf = appendInt16(p.buf, r.ErrorCode)
		p.buf = appendInt32(p.buf, r.SessionID)
	}
	p.buf = appendArrayLen(p.buf, len(r.Topics), flexible)
	for i := range r.Topics {
		t := &r.Topics[i]
		p.buf = appendName(p.buf, t.Name, t.ID, version >= 13, flexible)
		p.buf = appendArrayLen(p.buf, len(t.Partitions), flexible)
		for j := range t.Partitions {
			encodeFetchResult(version, &t.Partitions[j], p)
		}
		p.buf = appendNoTags(p.buf, flexible)
	}
	switch {
	case version >= 16:
		p.buf = appendEndpointsTag(p.buf, r.Endpoints)
	case flexible:
		p.buf = append(p.buf, 0)
	}
}

func encodeFetchResult(version int16, r *FetchPartitionResult, p *Parts) {
	flexible := version >= 12
	p.buf = appendInt32(p.buf, r.Index)
	p.buf = appendInt16(p.buf, r.ErrorCode)
	p.buf = appendInt64(p.buf, r.HighWatermark)
	if version >= 4 {
		p.buf = appendInt64(p.buf, r.StableOffset)
	}
	if version >= 5 {
		p.buf = appendInt64(p.buf, r.LogStart)
	}
	if version >= 4 {
		p.buf = appendAborted(p.buf, r.Aborted, flexible)
	}
	if version >= 11 {
		preferred := int32(-1)
		if r.HasPreferred {
			preferred = r.Preferred
		}
		p.buf = appendInt32(p.buf, preferred)
	}
	encodeRecords(r, p, flexible)
	if flexible {
		p.buf = appendFetchTags(p.buf, r)
	}
}

func appendAborted(dst []byte, aborted []AbortedTransaction, flexible bool) []byte {
	switch {
	case aborted != nil:
		dst = appendArrayLen(dst, len(aborted), flexible)
	case flexible:
		dst = append(dst, 0)
	default:
		dst = appendInt32(dst, -1)
	}
	for _, a := range aborted {
		dst = appendInt64(dst, a.ProducerID)
		dst = appendInt64(dst, a.First)
		dst = appendNoTags(dst, flexible)
	}
	return dst
}

func encodeRecords(r *FetchPartitionResult, p *Parts, flexible bool) {
	n := len(r.Bytes)
	if r.Records != nil {
		n = r.Records.Len()
	}
	if flexible {
		p.buf = appendUvarint(p.buf, n+1)
	} else {
		p.buf = appendInt32(p.buf, int32(n))
	}
	if r.Records != nil {
		p.File(r.Records)
		r.Records = nil
		return
	}
	p.Bytes(r.Bytes)
}

func appendFetchTags(dst []byte, r *FetchPartitionResult) []byte {
	n := byte(0)
	if r.Diverging != nil {
		n++
	}
	if r.Leader != nil {
		n++
	}
	dst = append(dst, n)
	if d := r.Diverging; d != nil {
		dst = append(dst, 0, 4+8+1)
		dst = appendInt32(dst, d.Epoch)
		dst = appendInt64(dst, d.End)
		dst = append(dst, 0)
	}
	if r.Leader != nil {
		dst = appendLeaderTag(dst, 1, r.Leader)
	}
	return dst
}
