package link

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/internal/uuid"
)

// FuzzGreeting: bytes of a stranger are a greeting or an error, and a greeting is written as it was read.
func FuzzGreeting(f *testing.F) {
	full := greeting{hello: Hello{ClusterID: cluster, Broker: 3, Incarnation: uuid.UUID{1, 2}, Generation: 7}, refused: true, reason: "two clusters"}
	f.Add(full.append(nil))
	f.Add(greeting{}.append(nil))
	f.Add(append(binary.BigEndian.AppendUint16(nil, helloFixed+5), append(full.append(nil)[2:2+helloFixed], "later"...)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := readGreeting(bytes.NewReader(b))
		if err != nil {
			return
		}
		again, err := readGreeting(bytes.NewReader(g.append(nil)))
		if err != nil || again != g {
			t.Fatalf("%+v became %+v, %v", g, again, err)
		}
	})
}

// FuzzAnswer: whatever a peer answers, reading it ends in an answer or an error, in memory that arrives.
func FuzzAnswer(f *testing.F) {
	resp := kmsg.NewPtrFindCoordinatorResponse()
	resp.SetVersion(3)
	resp.Host = "h"
	body := resp.AppendTo([]byte{0, 0, 0, 5, 1, 9, 2, 'x', 'y'})
	f.Add(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	f.Add([]byte{0, 0, 0, 4, 0, 0, 0, 1})
	f.Add([]byte{0x0f, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := readFrame(bytes.NewReader(b), nil, maxClientBytes)
		if cap(frame) > frameStep+2*len(b) {
			t.Fatalf("%d bytes made %d", len(b), cap(frame))
		}
		if err != nil {
			return
		}
		req := kmsg.NewPtrFindCoordinatorRequest()
		req.SetVersion(3)
		_, body, err := splitAnswer(frame, req)
		if err != nil {
			return
		}
		_, _ = decodeAnswer(body, req)
	})
}
