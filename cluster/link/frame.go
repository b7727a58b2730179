package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// clientID is what stands in the header of internal requests.
	clientID = "karst"
	// maxControlBytes bounds an answer on a control connection, maxClientBytes one of a fetch.
	maxControlBytes = 16 << 20
	maxClientBytes  = 256 << 20
	// frameStep is how much is allocated for an answer before any of it has arrived.
	frameStep = 256 << 10

	keyAPIVersions = 18
)

var errFrame = errors.New("damaged answer")

// appendRequest writes a request in its version, with its size in front.
func appendRequest(b []byte, req kmsg.Request, correlation int32) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID(clientID)).AppendRequest(b, req, correlation)
}

// readFrame reads a frame into buf, which grows with what arrives.
func readFrame(r io.Reader, buf []byte, maxBytes int) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return buf, err
	}
	n := int(int32(binary.BigEndian.Uint32(size[:])))
	if n < 4 || n > maxBytes {
		return buf, fmt.Errorf("%w: frame of %d bytes", errFrame, n)
	}
	for got := 0; got < n; {
		room := min(n, max(cap(buf), got+frameStep, 2*got))
		if room > cap(buf) {
			grown := make([]byte, room)
			copy(grown, buf[:got])
			buf = grown
		}
		m, err := io.ReadFull(r, buf[got:min(n, cap(buf))])
		got += m
		if err != nil {
			return buf[:got], err
		}
	}
	return buf[:n], nil
}

// splitAnswer takes the header off an answer to req.
func splitAnswer(b []byte, req kmsg.Request) (correlation int32, body []byte, err error) {
	correlation, body = int32(binary.BigEndian.Uint32(b)), b[4:]
	if !req.IsFlexible() || req.Key() == keyAPIVersions {
		return correlation, body, nil
	}
	body, err = skipTags(body)
	return correlation, body, err
}

// skipTags passes over tagged fields (KIP-482).
func skipTags(b []byte) ([]byte, error) {
	count, n := binary.Uvarint(b)
	if n <= 0 || count > uint64(len(b)) {
		return nil, errFrame
	}
	b = b[n:]
	for range count {
		_, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errFrame
		}
		b = b[n:]
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return nil, errFrame
		}
		b = b[n+int(size):]
	}
	return b, nil
}

// decodeAnswer makes the response to req of an answer's body.
func decodeAnswer(body []byte, req kmsg.Request) (kmsg.Response, error) {
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	if err := resp.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("%w: %w", errFrame, err)
	}
	return resp, nil
}
