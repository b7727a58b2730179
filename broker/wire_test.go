package broker_test

import (
	"encoding/binary"
	"io"
	"net"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/karsttest"
)

// wire is a bare connection: it sends requests in the version they name and reads the answers.
type wire struct {
	t    testing.TB
	conn net.Conn
	corr int32
}

func dial(t testing.TB, b *karsttest.Broker) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", b.Bootstrap()[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &wire{t: t, conn: conn}
}

func (w *wire) send(req kmsg.Request) {
	w.t.Helper()
	w.corr++
	f := kmsg.NewRequestFormatter(kmsg.FormatterClientID("wire"))
	if _, err := w.conn.Write(f.AppendRequest(nil, req, w.corr)); err != nil {
		w.t.Fatal(err)
	}
}

// receive reads the answer to req into its kind of response.
func (w *wire) receive(req kmsg.Request) kmsg.Response {
	w.t.Helper()
	var size [4]byte
	if _, err := io.ReadFull(w.conn, size[:]); err != nil {
		w.t.Fatalf("answer to %s: %v", kmsg.NameForKey(req.Key()), err)
	}
	frame := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(w.conn, frame); err != nil {
		w.t.Fatal(err)
	}
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	body := frame[4:]
	if resp.IsFlexible() && resp.Key() != 18 {
		body = body[1:] // no tags
	}
	if err := resp.ReadFrom(body); err != nil {
		w.t.Fatalf("answer to %s v%d: %v", kmsg.NameForKey(req.Key()), req.GetVersion(), err)
	}
	return resp
}

// ask sends a request in the given version and returns the answer.
func ask[R kmsg.Response](w *wire, version int16, req kmsg.Request) R {
	w.t.Helper()
	req.SetVersion(version)
	w.send(req)
	return w.receive(req).(R)
}
