package batch

// head is what the rules ask of a record; keys and values are skipped.
type head struct {
	timestampDelta int64
	offsetDelta    int32
	nullKey        bool
}

// The ways in which a record breaks the format.
const (
	badVarint  = "varint is too long"
	badSize    = "record size is wrong"
	badLength  = "length in a record exceeds the record"
	badHeaders = "number of record headers is wrong"
	badHeader  = "record header has no key"
)

// parseHead reads the record that begins p. n is its size in bytes with its length; 0 when p ends inside it. bad tells
// why a record cannot be one.
//
// Nearly every record has lengths below 8192 and no headers: those are read here, with numbers of at most two bytes, and
// all others by parseAnyHead.
func parseHead(p []byte) (h head, n int, bad string) {
	size, at := shortVarint(p, 0)
	n = at + int(size>>1)
	if at == 0 || size&1 != 0 || n > len(p) {
		return parseAnyHead(p)
	}
	r := p[:n]
	ts, at := shortVarint(r, at+1) // behind the attributes, of which none is defined
	offset, next := shortVarint(r, at)
	if at == 0 || next == 0 {
		return parseAnyHead(p)
	}
	keySize, at := shortVarint(r, next)
	if at == 0 || keySize&1 != 0 && keySize != 1 {
		return parseAnyHead(p)
	}
	at += int(keySize >> 1)
	valueSize, at := shortVarint(r, at)
	if at == 0 || valueSize&1 != 0 && valueSize != 1 {
		return parseAnyHead(p)
	}
	at += int(valueSize >> 1)
	if at+1 != n || r[at] != 0 {
		return parseAnyHead(p)
	}
	h.timestampDelta = int64(ts>>1) ^ -int64(ts&1)
	h.offsetDelta = int32(offset>>1) ^ -int32(offset&1)
	h.nullKey = keySize == 1
	return h, n, ""
}

// shortVarint reads a number of one or two bytes at p[at:], before zigzag, that is not the last thing in p. next is 0
// when it is something else.
func shortVarint(p []byte, at int) (u uint32, next int) {
	if at+1 < len(p) {
		u = uint32(p[at])
		if u < 0x80 {
			return u, at + 1
		}
		if w := uint32(p[at+1]); w < 0x80 {
			return u&0x7f | w<<7, at + 2
		}
	}
	return 0, 0
}

// parseAnyHead is parseHead for all records.
func parseAnyHead(p []byte) (h head, n int, bad string) {
	size, at := varint32(p)
	if at <= 0 {
		return h, 0, tooLong(at)
	}
	if size < 0 {
		return h, 0, badSize
	}
	if int(size) > len(p)-at {
		return h, 0, ""
	}
	n = at + int(size)
	p = p[at:n]
	if len(p) == 0 {
		return h, 0, badSize
	}
	p = p[1:] // attributes, none defined
	var k int
	if h.timestampDelta, k = varint64(p); k <= 0 {
		return h, 0, badVarint
	}
	p = p[k:]
	if h.offsetDelta, k = varint32(p); k <= 0 {
		return h, 0, badVarint
	}
	p = p[k:]
	size, k = varint32(p)
	if p, bad = skipField(p, size, k); bad != "" {
		return h, 0, bad
	}
	h.nullKey = size < 0
	size, k = varint32(p)
	if p, bad = skipField(p, size, k); bad != "" {
		return h, 0, bad
	}
	if len(p) == 1 && p[0] == 0 { // no headers
		return h, n, ""
	}
	return h, n, skipHeaders(p)
}

func tooLong(n int) string {
	if n < 0 {
		return badVarint
	}
	return ""
}

// skipField drops a length of k bytes and the field behind it; -1 is null.
func skipField(p []byte, size int32, k int) ([]byte, string) {
	if k <= 0 {
		return nil, badVarint
	}
	if size < -1 || int(size) > len(p)-k {
		return nil, badLength
	}
	return p[k+int(max(size, 0)):], ""
}

// skipHeaders reads p, the headers with their number, to its end.
func skipHeaders(p []byte) string {
	count, k := varint32(p)
	if k <= 0 {
		return badVarint
	}
	p = p[k:]
	if count < 0 || int(count) > len(p)/2 { // a header has at least two lengths
		return badHeaders
	}
	bad := ""
	for ; count > 0; count-- {
		size, k := varint32(p)
		if k > 0 && size < 0 {
			return badHeader
		}
		if p, bad = skipField(p, size, k); bad != "" {
			return bad
		}
		size, k = varint32(p)
		if p, bad = skipField(p, size, k); bad != "" {
			return bad
		}
	}
	if len(p) != 0 {
		return badSize
	}
	return ""
}

// headAcross reads a record that the piece at hand does not hold whole, without gathering its bytes.
func (s *stream) headAcross() (head, error) {
	size, err := s.varint32()
	if err != nil {
		return head{}, err
	}
	f := fields{s: s, left: int(size)}
	f.skip(1)
	h := head{timestampDelta: f.varint64(), offsetDelta: f.varint32()}
	h.nullKey = f.field(-1) < 0
	f.field(-1)
	count := f.varint32()
	if count < 0 || int(count) > f.left/2 {
		f.fail(badHeaders)
	}
	for ; count > 0 && f.err == nil; count-- {
		f.field(0)
		f.field(-1)
	}
	if f.left != 0 {
		f.fail(badSize)
	}
	return h, f.err
}

// fields takes the fields of one record from a stream. It keeps the first error; what it returns is then worth nothing.
type fields struct {
	s    *stream
	left int // bytes of the record
	err  error
}

func (f *fields) fail(reason string) {
	if f.err == nil {
		f.err = &InvalidError{Reason: reason}
	}
}

func (f *fields) skip(n int) {
	if n > f.left {
		f.fail(badLength)
	}
	if f.err == nil {
		f.left -= n
		f.err = f.s.skip(n)
	}
}

// field skips a field and returns its length, which is at least least.
func (f *fields) field(least int32) int32 {
	size := f.varint32()
	if size < least {
		f.fail(badLength)
	}
	if size > 0 {
		f.skip(int(size))
	}
	return size
}

func (f *fields) varint32() int32 {
	var b [5]byte
	v, n := varint32(f.gather(b[:]))
	if n <= 0 {
		f.fail(badVarint)
	}
	return v
}

func (f *fields) varint64() int64 {
	var b [10]byte
	v, n := varint64(f.gather(b[:]))
	if n <= 0 {
		f.fail(badVarint)
	}
	return v
}

// gather takes the bytes of one number.
func (f *fields) gather(b []byte) []byte {
	for i := range b {
		if f.left <= 0 {
			f.fail(badLength)
		}
		if f.err == nil {
			f.err = f.s.need()
		}
		if f.err != nil {
			return nil
		}
		b[i] = f.s.buf[0]
		f.s.buf = f.s.buf[1:]
		f.left--
		if b[i] < 0x80 {
			return b[:i+1]
		}
	}
	return b
}
