package group

import (
	"encoding/binary"
	"time"

	"github.com/karstlog/karst/internal/uuid"
)

// Types of the records in __consumer_offsets, which are the versions of their keys. The others (3 to 8 consumer groups,
// 10 to 15 share groups, 16 resolved regular expressions, 17 and 19 to 23 streams groups) are not read here.
const (
	typeOffsetOld = 0 // of brokers before 0.9; read like typeOffset
	typeOffset    = 1
	typeGroup     = 2
)

// Record is something that __consumer_offsets says about a group: *OffsetRecord or *MetadataRecord.
type Record interface {
	GroupID() string
	Tombstone() bool // the record says that there is nothing any more: its value is null
}

// OffsetRecord is the committed offset of one partition (types 0 and 1).
type OffsetRecord struct {
	Group     string
	Topic     string
	Partition int32
	Offset    *Offset // nil: a tombstone
}

// MetadataRecord is the membership of a classic group (type 2).
type MetadataRecord struct {
	Group    string
	Metadata *Metadata // nil: a tombstone
}

// Metadata is a generation of a classic group.
type Metadata struct {
	ProtocolType string
	Generation   int32
	Protocol     string // empty: null
	Leader       string // empty: null
	StateTime    int64  // when the state began, milliseconds since 1970; -1: not known
	Members      []MemberRecord
}

// MemberRecord is a member in Metadata.
type MemberRecord struct {
	ID           string
	InstanceID   string // empty: null
	ClientID     string
	ClientHost   string
	Rebalance    time.Duration // zero: not known (version 0)
	Session      time.Duration
	Subscription []byte
	Assignment   []byte
}

// GroupID is the group that the record is about.
func (r *OffsetRecord) GroupID() string { return r.Group }

// GroupID is the group that the record is about.
func (r *MetadataRecord) GroupID() string { return r.Group }

// Tombstone tells whether the record removes the offset.
func (r *OffsetRecord) Tombstone() bool { return r.Offset == nil }

// Tombstone tells whether the record removes the group.
func (r *MetadataRecord) Tombstone() bool { return r.Metadata == nil }

// maxString is the longest string that a record can hold: lengths are 16 bits.
const maxString = 1<<15 - 1

// AppendKey appends the record's key.
func AppendKey(dst []byte, r Record) []byte {
	switch r := r.(type) {
	case *OffsetRecord:
		dst = appendInt16(dst, typeOffset)
		dst = appendString(dst, r.Group)
		dst = appendString(dst, r.Topic)
		return appendInt32(dst, r.Partition)
	case *MetadataRecord:
		dst = appendInt16(dst, typeGroup)
		return appendString(dst, r.Group)
	}
	return dst
}

// AppendValue appends the record's value; that of a tombstone is null, which is not the same as empty, and nothing is
// appended.
func AppendValue(dst []byte, r Record) []byte {
	if r.Tombstone() {
		return dst
	}
	switch r := r.(type) {
	case *OffsetRecord:
		return appendOffset(dst, r.Offset)
	case *MetadataRecord:
		return appendMetadata(dst, r.Metadata)
	}
	return dst
}

// appendOffset writes the version that can hold what is there: 1 for an expiry of its own (which has no leader epoch; the
// clients that ask for one know none), 4 with the topic id, 3 without.
func appendOffset(dst []byte, o *Offset) []byte {
	if o.ExpireTime >= 0 {
		dst = appendInt16(dst, 1)
		dst = appendInt64(dst, o.Offset)
		dst = appendString(dst, o.Metadata)
		dst = appendInt64(dst, o.CommitTime)
		return appendInt64(dst, o.ExpireTime)
	}
	if o.TopicID == (uuid.UUID{}) {
		dst = appendInt16(dst, 3)
		dst = appendInt64(dst, o.Offset)
		dst = appendInt32(dst, o.LeaderEpoch)
		dst = appendString(dst, o.Metadata)
		return appendInt64(dst, o.CommitTime)
	}
	dst = appendInt16(dst, 4)
	dst = appendInt64(dst, o.Offset)
	dst = appendInt32(dst, o.LeaderEpoch)
	dst = binary.AppendUvarint(dst, uint64(len(o.Metadata))+1)
	dst = append(dst, o.Metadata...)
	dst = appendInt64(dst, o.CommitTime)
	dst = append(dst, 1, 0, uint8(len(o.TopicID))) // one tagged field: tag 0, its size
	return append(dst, o.TopicID[:]...)
}

// appendMetadata writes version 3, as Kafka 4.4 does.
func appendMetadata(dst []byte, m *Metadata) []byte {
	dst = appendInt16(dst, 3)
	dst = appendString(dst, m.ProtocolType)
	dst = appendInt32(dst, m.Generation)
	dst = appendNullable(dst, m.Protocol)
	dst = appendNullable(dst, m.Leader)
	dst = appendInt64(dst, m.StateTime)
	dst = appendInt32(dst, int32(len(m.Members)))
	for i := range m.Members {
		r := &m.Members[i]
		dst = appendString(dst, r.ID)
		dst = appendNullable(dst, r.InstanceID)
		dst = appendString(dst, r.ClientID)
		dst = appendString(dst, r.ClientHost)
		dst = appendInt32(dst, int32(r.Rebalance.Milliseconds()))
		dst = appendInt32(dst, int32(r.Session.Milliseconds()))
		dst = appendBytes(dst, r.Subscription)
		dst = appendBytes(dst, r.Assignment)
	}
	return dst
}

func appendInt16(dst []byte, v int16) []byte { return binary.BigEndian.AppendUint16(dst, uint16(v)) }

func appendInt32(dst []byte, v int32) []byte { return binary.BigEndian.AppendUint32(dst, uint32(v)) }

func appendInt64(dst []byte, v int64) []byte { return binary.BigEndian.AppendUint64(dst, uint64(v)) }

// appendString relies on its caller for len(s) <= maxString: names are checked when a request is decided.
func appendString(dst []byte, s string) []byte {
	return append(appendInt16(dst, int16(len(s))), s...)
}

// appendNullable writes an empty string as null.
func appendNullable(dst []byte, s string) []byte {
	if s == "" {
		return appendInt16(dst, -1)
	}
	return appendString(dst, s)
}

func appendBytes(dst, b []byte) []byte {
	return append(appendInt32(dst, int32(len(b))), b...)
}
