package metadata

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"google.golang.org/protobuf/proto"
)

// A snapshot is an image as a stream: a magic, then protobuf records, each with its length in front as a varint: a
// header, the brokers, the ids allotted to others, the topics, the settings, and an end with the number of records, a CRC-32C of all bytes before
// it and the image's checksum. A reader who does not find all three as promised has no image.
const (
	snapshotMagic   = "KRSTMETA"
	snapshotVersion = 1
	maxRecordBytes  = 256 << 20 // one topic with some millions of partitions
)

// WriteSnapshot writes the image.
func (im *Image) WriteSnapshot(w io.Writer) error {
	s := &snapshotWriter{w: bufio.NewWriterSize(w, 64<<10), crc: crc32.New(crc32.MakeTable(crc32.Castagnoli))}
	s.write([]byte(snapshotMagic))
	s.record(&PbSnapshotRecord{Kind: &PbSnapshotRecord_Header{&PbHeader{
		Version: snapshotVersion, Index: im.index, ClusterId: im.clusterID[:], NextProducerId: im.nextProducerID,
		NextBrokerId: int32(im.nextBrokerID),
	}}})
	for _, b := range im.brokers {
		s.record(&PbSnapshotRecord{Kind: &PbSnapshotRecord_Broker{brokerToProto(b)}})
	}
	for _, a := range im.allotted {
		s.record(&PbSnapshotRecord{Kind: &PbSnapshotRecord_Allotment{&PbAllotment{Request: a.request[:], Id: int32(a.id)}}})
	}
	for t := range im.Topics() {
		s.record(&PbSnapshotRecord{Kind: &PbSnapshotRecord_Topic{topicToProto(t)}})
	}
	im.configs.Root().Walk(func(_ []byte, c *configSet) bool {
		s.record(&PbSnapshotRecord{Kind: &PbSnapshotRecord_ConfigSet{&PbConfigSet{
			Type: int32(c.resource.Type), Name: c.resource.Name, Configs: configsToProto(c.values), Version: c.version,
		}}})
		return s.err != nil
	})
	for t := range im.Txns() {
		s.record(&PbSnapshotRecord{Kind: &PbSnapshotRecord_Txn{txnToProto(t)}})
	}
	s.record(&PbSnapshotRecord{Kind: &PbSnapshotRecord_End{&PbEnd{
		Records: s.records, Crc: s.crc.Sum32(), Checksum: im.checksum,
	}}})
	if s.err != nil {
		return fmt.Errorf("write metadata snapshot: %w", s.err)
	}
	return nil
}

// snapshotWriter latches the first error.
type snapshotWriter struct {
	w       *bufio.Writer
	crc     hash.Hash32
	records uint64
	buf     []byte
	err     error
}

func (s *snapshotWriter) write(b []byte) {
	if s.err != nil {
		return
	}
	s.crc.Write(b)
	_, s.err = s.w.Write(b)
}

func (s *snapshotWriter) record(r *PbSnapshotRecord) {
	o := proto.MarshalOptions{Deterministic: true}
	s.buf = binary.AppendUvarint(s.buf[:0], uint64(o.Size(r)))
	buf, err := o.MarshalAppend(s.buf, r)
	if err != nil {
		s.err = err
		return
	}
	s.buf = buf
	s.write(s.buf)
	s.records++
	if _, end := r.Kind.(*PbSnapshotRecord_End); end && s.err == nil {
		s.err = s.w.Flush()
	}
}

func topicToProto(t *Topic) *PbTopic {
	p := &PbTopic{Id: t.ID[:], Name: t.Name, Partitions: make([]*PbPartition, len(t.Partitions))}
	for i := range t.Partitions {
		x := &t.Partitions[i]
		p.Partitions[i] = &PbPartition{
			Replicas: brokerIDs[int32](x.Replicas), Isr: brokerIDs[int32](x.ISR), Elr: brokerIDs[int32](x.ELR),
			Adding: brokerIDs[int32](x.Adding), Removing: brokerIDs[int32](x.Removing), Leader: int32(x.Leader),
			LeaderEpoch: int32(x.LeaderEpoch), PartitionEpoch: int32(x.PartitionEpoch),
			LastKnown: brokerIDs[int32](x.LastKnown), Unproven: x.Unproven,
		}
	}
	return p
}

// ReadSnapshot reads an image. A stream that is not what WriteSnapshot wrote, to the last byte, is a *CorruptError;
// other errors are the reader's.
func ReadSnapshot(r io.Reader) (*Image, error) {
	s := &snapshotReader{
		r: bufio.NewReaderSize(r, 64<<10), crc: crc32.New(crc32.MakeTable(crc32.Castagnoli)), im: Empty(),
	}
	im, err := s.read()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, &CorruptError{"snapshot ends early"}
	}
	return im, err
}

type snapshotReader struct {
	r       *bufio.Reader
	crc     hash.Hash32
	records uint64
	body    bytes.Buffer
	im      *Image
}

func (s *snapshotReader) read() (*Image, error) {
	magic := make([]byte, len(snapshotMagic))
	if _, err := io.ReadFull(s.r, magic); err != nil {
		return nil, err
	}
	if string(magic) != snapshotMagic {
		return nil, &CorruptError{"not a metadata snapshot"}
	}
	s.crc.Write(magic)
	for {
		sum := s.crc.Sum32()
		rec, err := s.next()
		if err != nil {
			return nil, err
		}
		if end, ok := rec.Kind.(*PbSnapshotRecord_End); ok {
			return s.im, s.end(end.End, sum)
		}
		if err := s.take(rec); err != nil {
			return nil, err
		}
		s.records++
	}
}

// length reads a varint. binary.ReadUvarint does not tell one that is too long from an error of the reader.
func (s *snapshotReader) length() (uint64, error) {
	var b [binary.MaxVarintLen64]byte
	for i := range b {
		c, err := s.r.ReadByte()
		if err != nil {
			return 0, err
		}
		b[i] = c
		if c < 0x80 {
			if n, size := binary.Uvarint(b[:i+1]); size > 0 {
				return n, nil
			}
			break
		}
	}
	return 0, &CorruptError{"length of a record is no number of 64 bits"}
}

// next reads one record. Memory grows with what is there, not with what a length promises.
func (s *snapshotReader) next() (*PbSnapshotRecord, error) {
	size, err := s.length()
	if err != nil {
		return nil, err
	}
	if size > maxRecordBytes {
		return nil, &CorruptError{fmt.Sprintf("record of %d bytes", size)}
	}
	s.crc.Write(binary.AppendUvarint(nil, size))
	s.body.Reset()
	if _, err := io.CopyN(&s.body, s.r, int64(size)); err != nil {
		return nil, err
	}
	s.crc.Write(s.body.Bytes())
	rec := &PbSnapshotRecord{}
	if err := proto.Unmarshal(s.body.Bytes(), rec); err != nil {
		return nil, &CorruptError{"record: " + err.Error()}
	}
	return rec, knows(rec)
}

func (s *snapshotReader) take(rec *PbSnapshotRecord) error {
	if _, header := rec.Kind.(*PbSnapshotRecord_Header); header != (s.records == 0) {
		return &CorruptError{"the header is not the first record"}
	}
	switch k := rec.Kind.(type) {
	case *PbSnapshotRecord_Header:
		return s.header(k.Header)
	case *PbSnapshotRecord_Broker:
		return s.broker(k.Broker)
	case *PbSnapshotRecord_Topic:
		return s.topic(k.Topic)
	case *PbSnapshotRecord_ConfigSet:
		return s.configSet(k.ConfigSet)
	case *PbSnapshotRecord_Allotment:
		return s.allotment(k.Allotment)
	case *PbSnapshotRecord_Txn:
		return s.txn(k.Txn)
	}
	return &CorruptError{"record of an unknown kind"}
}

func (s *snapshotReader) header(h *PbHeader) error {
	if h.GetVersion() != snapshotVersion {
		return &CorruptError{fmt.Sprintf("snapshot version %d", h.GetVersion())}
	}
	id, err := idFromProto(h.GetClusterId())
	if err != nil {
		return err
	}
	s.im.index, s.im.clusterID, s.im.nextProducerID = h.GetIndex(), id, h.GetNextProducerId()
	s.im.nextBrokerID = BrokerID(h.GetNextBrokerId())
	s.im.checksum = sumClusterID(id) ^ sumNextProducerID(h.GetNextProducerId()) ^ sumNextBrokerID(s.im.nextBrokerID)
	return knows(h)
}

func (s *snapshotReader) broker(p *PbBroker) error {
	b, err := brokerFromProto(p)
	if err != nil {
		return err
	}
	if _, ok := s.im.Broker(b.ID); ok {
		return &CorruptError{fmt.Sprintf("broker %d twice", b.ID)}
	}
	s.im.putBroker(&b)
	return nil
}

func (s *snapshotReader) allotment(p *PbAllotment) error {
	request, err := idFromProto(p.GetRequest())
	if err = first(err, knows(p)); err != nil {
		return err
	}
	if _, ok := s.im.findAllotment(request); ok || len(s.im.allotted) == maxAllotments {
		return &CorruptError{fmt.Sprintf("allotment %s twice, or one too many", request)}
	}
	s.im.putAllotment(allotment{request, BrokerID(p.GetId())})
	return nil
}

func (s *snapshotReader) topic(p *PbTopic) error {
	id, err := idFromProto(p.GetId())
	if err = first(err, knows(p)); err != nil {
		return err
	}
	if err := CheckTopicName(p.GetName()); err != nil {
		return &CorruptError{fmt.Sprintf("topic %q: %v", p.GetName(), err)}
	}
	if _, ok := s.im.NearTopic(p.GetName()); ok {
		return &CorruptError{fmt.Sprintf("topic %q twice", p.GetName())}
	}
	if _, ok := s.im.TopicByID(id); ok {
		return &CorruptError{fmt.Sprintf("topic id %s twice", id)}
	}
	t := &Topic{ID: id, Name: p.GetName(), Partitions: make([]Partition, len(p.GetPartitions()))}
	for i, x := range p.GetPartitions() {
		if err := knows(x); err != nil {
			return err
		}
		t.Partitions[i] = Partition{
			Replicas: brokerIDs[BrokerID](x.GetReplicas()), ISR: brokerIDs[BrokerID](x.GetIsr()),
			ELR: brokerIDs[BrokerID](x.GetElr()), Adding: brokerIDs[BrokerID](x.GetAdding()),
			Removing: brokerIDs[BrokerID](x.GetRemoving()), Leader: BrokerID(x.GetLeader()),
			LeaderEpoch: LeaderEpoch(x.GetLeaderEpoch()), PartitionEpoch: PartitionEpoch(x.GetPartitionEpoch()),
			LastKnown: brokerIDs[BrokerID](x.GetLastKnown()), Unproven: x.GetUnproven(),
		}
	}
	s.im.insertTopic(t)
	return nil
}

func (s *snapshotReader) configSet(p *PbConfigSet) error {
	r, err := resourceFromProto(p.GetType(), p.GetName())
	if err = first(err, knows(p)); err != nil {
		return err
	}
	values := configsFromProto(p.GetConfigs())
	if s.im.ConfigVersion(r) != 0 || len(values) == 0 {
		return &CorruptError{fmt.Sprintf("settings of %q twice or empty", r.Name)}
	}
	c := &configSet{resource: r, values: values, version: p.GetVersion()}
	s.im.configs, _, _ = s.im.configs.Insert(configKey(r), c)
	s.im.checksum ^= c.sum()
	return nil
}

func (s *snapshotReader) end(e *PbEnd, crc uint32) error {
	if e.GetRecords() != s.records || s.records == 0 {
		return &CorruptError{fmt.Sprintf("%d records, expected %d", s.records, e.GetRecords())}
	}
	if e.GetCrc() != crc {
		return &CorruptError{fmt.Sprintf("snapshot CRC is %08x, expected %08x", crc, e.GetCrc())}
	}
	if e.GetChecksum() != s.im.checksum {
		return &CorruptError{fmt.Sprintf("image checksum is %016x, expected %016x", s.im.checksum, e.GetChecksum())}
	}
	if _, err := s.r.ReadByte(); err == nil {
		return &CorruptError{"bytes after the end of the snapshot"}
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
