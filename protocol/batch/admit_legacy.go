package batch

import "io"

// AdmitLegacy checks what a Produce request of version 0 to 2 carries: a message set of magic 0 or 1, which is rewritten
// as one batch of magic 2, or a batch of magic 2, which Kafka 3.9 takes in these versions too. Admitted.Batch is nil when
// the set holds no whole entry; there is nothing to append then, and that is no error. The errors are those of Admit.
//
// A set is either plain entries of one magic or one wrapper, whose value is a packed set of plain entries (KIP-31). Kept
// are timestamps, keys and values; lost are the key of a wrapper and, as the log numbers records itself, all offsets.
func AdmitLegacy(set []byte, r *Rules) (Admitted, error) {
	first, rest, err := cutEntry(set)
	if err != nil {
		return Admitted{}, err
	}
	if first == nil {
		return Admitted{}, nil
	}
	if first[posMagic] == magicV2 {
		return Admit(set, r)
	}
	if err := r.fits(first); err != nil {
		return Admitted{}, err
	}
	m, err := entry(first).parse()
	if err != nil {
		return Admitted{}, err
	}
	if m.codec == None {
		return admitPlain(set, m.magic, r)
	}
	second, _, err := cutEntry(rest)
	if err != nil {
		return Admitted{}, err
	}
	if second != nil {
		return Admitted{}, invalidf("compressed message is not alone in its message set")
	}
	return admitWrapper(&m, r)
}

func (r *Rules) fits(entry []byte) error {
	if r.MaxBytes > 0 && len(entry) > r.MaxBytes {
		return &TooLargeError{Size: len(entry), Max: r.MaxBytes}
	}
	return nil
}

// converter rewrites messages as records of one batch.
type converter struct {
	checker
	w *Builder
}

func newConverter(r *Rules, source Codec) *converter {
	return &converter{
		checker: checker{bounds: r.bounds(), compacted: r.Compacted},
		w: NewBuilder(BuilderOptions{
			Codec: r.target(source), Level: r.Level, MaxBytes: r.MaxBytes, LeaderEpoch: -1,
			LogAppendTime: r.LogAppendTime, AppendTime: r.Now,
		}),
	}
}

// add takes the next message. Records that the topic refuses are only noted, so that all of them can be named.
func (c *converter) add(m *legacyRecord) error {
	noKey := m.key == nil && c.compacted
	if noKey || !c.bounds.admit(m.timestamp) {
		c.refuse(false, noKey, m.timestamp)
	}
	c.index++
	if c.wrong > 0 {
		return nil
	}
	return c.w.Append(Record{Timestamp: m.timestamp, Key: m.key, Value: m.value})
}

func (c *converter) finish() (Admitted, error) {
	defer c.w.Drop()
	if err := c.verdict(); err != nil {
		return Admitted{}, err
	}
	n := c.w.Len()
	b, err := c.w.Build()
	if err != nil {
		return Admitted{}, err
	}
	return Admitted{Batch: b, Records: n, Rebuilt: true}, nil
}

// admitPlain rewrites a set of entries without a codec. A last entry that is not whole is ignored.
func admitPlain(set []byte, magic int8, r *Rules) (Admitted, error) {
	c := newConverter(r, None)
	defer c.w.Drop()
	for {
		e, rest, err := cutEntry(set)
		if err != nil {
			return Admitted{}, err
		}
		if e == nil {
			return c.finish()
		}
		set = rest
		if err := r.fits(e); err != nil {
			return Admitted{}, err
		}
		m, err := parsePlain(e)
		if err != nil {
			return Admitted{}, err
		}
		if m.magic != magic {
			return Admitted{}, invalidf("message set has entries of magic %d and %d", magic, m.magic)
		}
		if m.codec != None {
			return Admitted{}, invalidf("compressed message is not alone in its message set")
		}
		if err := c.add(&m); err != nil {
			return Admitted{}, err
		}
	}
}

func parsePlain(e []byte) (legacyRecord, error) {
	if e[posMagic] == magicV2 {
		return legacyRecord{}, invalidf("record batch follows messages of an older format")
	}
	return entry(e).parse()
}

// admitWrapper rewrites the messages inside a compressed one.
func admitWrapper(wrapper *legacyRecord, r *Rules) (Admitted, error) {
	if wrapper.codec > LZ4 {
		return Admitted{}, invalidf("message set of magic %d cannot have %s", wrapper.magic, wrapper.codec)
	}
	if wrapper.value == nil {
		return Admitted{}, invalidf("compressed message has no value")
	}
	var s stream
	if err := s.openAs(wrapper.codec, wrapper.value, r.MaxDecompressedBytes, wrapper.magic == 0); err != nil {
		return Admitted{}, err
	}
	defer s.close()
	c := newConverter(r, wrapper.codec)
	defer c.w.Drop()
	for {
		e, err := s.takeEntry()
		if err == io.EOF {
			break
		}
		if err != nil {
			return Admitted{}, err
		}
		m, err := inner(e, wrapper, int64(c.index))
		if err != nil {
			return Admitted{}, err
		}
		if err := c.add(&m); err != nil {
			return Admitted{}, err
		}
	}
	if c.index == 0 {
		return Admitted{}, invalidf("compressed message has no messages inside")
	}
	return c.finish()
}

// inner reads message number index of a wrapper. Magic 1 has offsets 0, 1, 2 ... there (KIP-31); clients of magic 0 sent
// any.
func inner(e entry, wrapper *legacyRecord, index int64) (legacyRecord, error) {
	m, err := parsePlain(e)
	if err != nil {
		return m, err
	}
	if m.magic != wrapper.magic {
		return m, invalidf("message of magic %d lies in a compressed one of magic %d", m.magic, wrapper.magic)
	}
	if m.codec != None {
		return m, invalidf("compressed message lies in a compressed message")
	}
	if m.magic == 1 && e.offset() != index {
		return m, &InvalidError{
			Reason:  "inner messages do not have incremental offsets",
			Records: []RecordError{{Index: int(index), Message: "Inner message does not have an incremental offset."}},
		}
	}
	if wrapper.logAppend {
		m.timestamp = wrapper.timestamp
	}
	return m, nil
}
