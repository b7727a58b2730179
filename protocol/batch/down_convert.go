package batch

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
