package protocol

import (
	"sync"
	"time"
)

var produceRequests = sync.Pool{New: func() any { return new(ProduceRequest) }}

// decodeBody reads versions 0 to 13.
// v3 transactional id (KIP-98) · v9 flexible (KIP-482) · v13 topic ids (KIP-516)
func (r *ProduceRequest) decodeBody(version int16, body []byte, names *interner) error {
	flexible := version >= 9
	d := decoder{b: body}
	r.reset()
	if version >= 3 {
		id := d.string(flexible)
		r.TransactionalID, r.HasTransactionalID = string(id), id != nil
	}
	r.Acks = d.int16()
	r.Timeout = time.Duration(d.int32()) * time.Millisecond
	for n := d.array(flexible, 2); n > 0 && !d.bad; n-- {
		var t ProduceTopic
		if version >= 13 {
			t.ID = d.uuid()
		} else {
			t.Name = d.name(flexible, names)
		}
		t.Partitions = r.decodePartitions(&d, flexible)
		if flexible {
			d.skipTags()
		}
		r.Topics = append(r.Topics, t)
	}
	if flexible {
		d.skipTags()
	}
	return d.err()
}

func (r *ProduceRequest) decodePartitions(d *decoder, flexible bool) []ProducePartition {
	first := len(r.partitions)
	n := d.array(flexible, 6)
	if first+n > maxEntries {
		d.fail()
	}
	for ; n > 0 && !d.bad; n-- {
		p := ProducePartition{Index: d.int32(), Records: d.bytes(flexible)}
		if flexible {
			d.skipTags()
		}
		r.partitions = append(r.partitions, p)
	}
	return r.partitions[first:len(r.partitions):len(r.partitions)]
}

func (r *ProduceRequest) reset() {
	clear(r.Topics)
	clear(r.partitions)
	*r = ProduceRequest{Topics: r.Topics[:0], partitions: r.partitions[:0]}
}

func (r *ProduceRequest) giveBack() {
	if cap(r.Topics) <= maxKept && cap(r.partitions) <= maxKept {
		r.reset()
		produceRequests.Put(r)
	}
}

// AppendProduceResponse writes the body in versions 0 to 13.
// v1 throttle time · v2 log append time (KIP-32) · v5 log start (KIP-112) · v8 record errors (KIP-467) · v9 flexible ·
// v10 leader hint (KIP-951) · v13 topic ids
func AppendProduceResponse(dst []byte, version int16, r *ProduceResponse) []byte {
	flexible := version >= 9
	dst = appendArrayLen(dst, len(r.Topics), flexible)
	for i := range r.Topics {
		t := &r.Topics[i]
		dst = appendName(dst, t.Name, t.ID, version >= 13, flexible)
		dst = appendArrayLen(dst, len(t.Partitions), flexible)
		for j := range t.Partitions {
			dst = appendProduceResult(dst, version, &t.Partitions[j])
		}
		dst = appendNoTags(dst, flexible)
	}
	if version >= 1 {
		dst = appendInt32(dst, millis(r.ThrottleTime))
	}
	switch {
	case version >= 10:
		dst = appendEndpointsTag(dst, r.Endpoints)
	case flexible:
		dst = append(dst, 0)
	}
	return dst
}

func appendProduceResult(dst []byte, version int16, p *ProducePartitionResult) []byte {
	flexible := version >= 9
	dst = appendInt32(dst, p.Index)
	dst = appendInt16(dst, p.ErrorCode)
	dst = appendInt64(dst, p.BaseOffset)
	if version >= 2 {
		dst = appendInt64(dst, p.LogAppendTime)
	}
	if version >= 5 {
		dst = appendInt64(dst, p.LogStart)
	}
	if version >= 8 {
		dst = appendArrayLen(dst, len(p.RecordErrors), flexible)
		for i := range p.RecordErrors {
			dst = appendInt32(dst, p.RecordErrors[i].Index)
			dst = appendNullableString(dst, p.RecordErrors[i].Message, false, flexible)
			dst = appendNoTags(dst, flexible)
		}
		dst = appendNullableString(dst, p.ErrorMessage, false, flexible)
	}
	if version >= 10 && p.Leader != nil {
		return appendLeaderTag(append(dst, 1), 0, p.Leader)
	}
	return appendNoTags(dst, flexible)
}
