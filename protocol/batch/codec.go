package batch

import "strconv"

// Codec is how the records of a batch are compressed: the low three attribute bits.
type Codec int8

// The codecs of the format; 5 to 7 are not assigned.
const (
	None Codec = iota
	Gzip
	Snappy
	LZ4
	Zstd
)

// String is the name that compression.type uses, with "none" for no compression.
func (c Codec) String() string {
	switch c {
	case None:
		return "none"
	case Gzip:
		return "gzip"
	case Snappy:
		return "snappy"
	case LZ4:
		return "lz4"
	case Zstd:
		return "zstd"
	}
	return "codec " + strconv.Itoa(int(c))
}

// ParseCodec is the reverse of String; "uncompressed", the word of the broker's compression.type, is None too.
func ParseCodec(name string) (Codec, bool) {
	if name == "uncompressed" {
		return None, true
	}
	for c := None; c <= Zstd; c++ {
		if c.String() == name {
			return c, true
		}
	}
	return None, false
}

func (c Codec) known() bool { return c >= None && c <= Zstd }
