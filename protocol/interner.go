package protocol

// maxInterned is how many names a connection remembers, and maxInternedBytes how long they may be. Topic names have at
// most 249 bytes.
const (
	maxInterned      = 1024
	maxInternedBytes = 249
)

// interner turns the same bytes into the same string, so that a client that names the same topics in every request
// allocates nothing for them.
type interner struct{ names map[string]string }

func (in *interner) intern(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if s, ok := in.names[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(s) > maxInternedBytes {
		return s
	}
	if in.names == nil || len(in.names) >= maxInterned {
		in.names = map[string]string{}
	}
	in.names[s] = s
	return s
}
