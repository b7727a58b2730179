package batch

// BuilderOptions say what a Builder puts into the header.
type BuilderOptions struct {
	Codec Codec
	Level int // in the codec's own scale, 0 for its default

	BaseOffset  int64
	LeaderEpoch int32
	// KeepOffsets takes the offsets from the records, which must ascend from BaseOffset on; otherwise records are
	// numbered from BaseOffset without gaps.
	KeepOffsets bool

	// HasProducer tells that the three fields below are meant. Without it they are too as soon as one is not zero;
	// otherwise the batch has no producer (-1 in all three).
	HasProducer   bool
	ProducerID    int64
	ProducerEpoch int16
	BaseSequence  int32

	Transactional bool
	Control       bool
	// LogAppendTime marks the batch with that timestamp type; AppendTime (ms since 1970) becomes its MaxTimestamp.
	LogAppendTime bool
	AppendTime    int64
	// MaxBytes makes Append fail with a *TooLargeError when the batch grows beyond it; 0 is the format's limit.
	MaxBytes int
}

// Builder makes a batch record by record. It packs as it goes, so that it never holds more than the packed bytes and a
// block. Not safe for concurrent use.
type Builder struct{}

// NewBuilder starts a batch.
func NewBuilder(o BuilderOptions) *Builder { return &Builder{} }

// Append adds a record; its bytes are copied.
func (w *Builder) Append(r Record) error { return invalidf("not written yet") }

// Len is how many records were appended.
func (w *Builder) Len() int { return 0 }

// Build finishes the batch, which is in memory of its own, and ends the builder.
func (w *Builder) Build() (Batch, error) { return nil, invalidf("not written yet") }
