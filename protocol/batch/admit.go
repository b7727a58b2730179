package batch

import "time"

// Rules are what a topic admits. They are read only; Now and NoZstd differ from request to request, so that a caller who
// keeps the rules of a topic copies them and sets these two.
type Rules struct {
	// MaxBytes is max.message.bytes: the largest batch as sent and as stored, header included. 0 is no limit.
	MaxBytes int
	// MaxDecompressedBytes is max.decompressed.message.bytes: how much a compressed batch may unpack to. 0 is the
	// format's own limit of 2147483639 bytes.
	MaxDecompressedBytes int
	// Compacted refuses records without a key.
	Compacted bool
	// Now is the time of the append in ms since 1970.
	Now int64
	// LogAppendTime stamps Now over the producer's timestamps (message.timestamp.type).
	LogAppendTime bool
	// BeforeMax and AfterMax bound how far a producer's timestamp may lie before and after Now
	// (message.timestamp.before.max.ms and after.max.ms). NoLimit switches a bound off; neither applies to records
	// without a timestamp (-1) nor with LogAppendTime.
	BeforeMax, AfterMax time.Duration
	// Producer keeps the codec of the producer (compression.type=producer); otherwise batches of another codec are
	// repacked with Target at Level.
	Producer bool
	Target   Codec
	// Level is the level of Target in its own scale, 0 for its default.
	Level int
	// HeaderOnly trusts the producer with what lies behind the header: CRC and header are checked, records are not
	// unpacked (karst.record.validation=header). Records are walked all the same where a rule needs them: on compacted
	// topics, and when the batch is repacked.
	HeaderOnly bool
	// NoZstd refuses zstd, which requests before Produce 7 may not carry (KIP-110).
	NoZstd bool
	// AllowControl admits control batches: for what brokers write themselves.
	AllowControl bool
}

// NoLimit as BeforeMax or AfterMax switches the bound off.
const NoLimit = time.Duration(1<<63 - 1)

// Admitted is a batch that may be appended.
type Admitted struct {
	// Batch lies in the bytes given to Admit, which were stamped in place, unless Rebuilt. Base offset and leader epoch
	// are still the producer's: the log stamps them.
	Batch Batch
	// Records is how many there are.
	Records int
	// Rebuilt tells that Batch is in memory of its own: it was repacked or converted.
	Rebuilt bool
}

// Admit checks what a Produce request of version 3 or later carries for a partition: exactly one batch of magic 2. Bytes
// after it that do not make a whole batch are ignored, as Kafka does. The batch is stamped with the timestamp type and
// the true maximum timestamp, and repacked when the topic has a codec of its own.
//
// The errors are those of this package: *CorruptError, *InvalidError, *TimestampError, *TooLargeError,
// *UnsupportedCodecError and ErrProducerEpoch. The bytes may have been stamped even so.
func Admit(set []byte, r *Rules) (Admitted, error) {
	return Admitted{}, invalidf("not written yet")
}

// AdmitLegacy checks what a Produce request of version 0 to 2 carries: a message set of magic 0 or 1, which is rewritten
// as one batch of magic 2, or a batch of magic 2. Admitted.Batch is nil when the set holds no whole entry.
func AdmitLegacy(set []byte, r *Rules) (Admitted, error) {
	return Admitted{}, invalidf("not written yet")
}

// DownOptions bound a conversion to an old format.
type DownOptions struct {
	// From is the first offset that the client wants; entries below it are left out where that does not cost a
	// repacking.
	From int64
	// MaxBytes bounds what is written; 0 is no limit.
	MaxBytes int
	// WholeFirst writes the first batch whole even when it exceeds MaxBytes.
	WholeFirst bool
	// MaxDecompressedBytes bounds what one batch unpacks to; 0 is the format's own limit.
	MaxDecompressedBytes int
}

// DownConvert appends to dst the records of batches (whole batches of magic 2, of which the last may be cut) as a message
// set of the given magic, 0 or 1.
func DownConvert(dst []byte, batches []byte, magic int8, o DownOptions) ([]byte, error) {
	return dst, invalidf("not written yet")
}
