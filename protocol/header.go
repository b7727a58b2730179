package protocol

// header is a request's header, worked out as far as the table goes.
type header struct {
	api      *entry
	version  int16
	corr     int32
	clientID string
	rest     []byte // the body
}

// rawHeader is what stands in front of every body, whatever the API.
type rawHeader struct {
	key, version int16
	corr         int32
	clientID     []byte // nil: null
}

// parseHeader reads the part of the header that all versions of it share. The client id is never compact, not even in
// the flexible header (KIP-482).
func parseHeader(b []byte) (h rawHeader, rest []byte, err error) {
	d := decoder{b: b}
	h.key, h.version, h.corr = d.int16(), d.int16(), d.int32()
	h.clientID = d.nullableString()
	return h, d.b, d.err()
}

// header finds who serves a frame. A version that is not served ends the connection, except for ApiVersions, which is
// how a client learns what is.
func (c *conn) header(b []byte) (header, error) {
	raw, rest, err := parseHeader(b)
	if err != nil && raw.key != keyAPIVersions {
		return header{}, err
	}
	e := c.srv.table.find(raw.key)
	if e == nil {
		return header{}, &UnsupportedError{raw.key, raw.version}
	}
	if raw.version < e.Min || raw.version > e.Max {
		if raw.key == keyAPIVersions && raw.version > e.Max {
			return header{api: c.srv.askedTooNew, version: 0, corr: raw.corr}, nil
		}
		return header{}, &UnsupportedError{raw.key, raw.version}
	}
	if err != nil {
		return header{}, err
	}
	d := decoder{b: rest}
	if raw.version >= e.flexible {
		d.skipTags()
	}
	if err := d.err(); err != nil {
		return header{}, err
	}
	return header{api: e, version: raw.version, corr: raw.corr, clientID: c.names.intern(raw.clientID), rest: d.b}, nil
}
