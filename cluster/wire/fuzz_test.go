package wire

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
	"google.golang.org/protobuf/proto"
)

// FuzzMessages: whatever stands in an internal request or answer is read or refused, and what is read is written so that
// it reads the same.
func FuzzMessages(f *testing.F) {
	empty := []func() kmsg.Request{
		func() kmsg.Request { return Propose.request(new(PbPropose)) },
		func() kmsg.Request { return Form.request(new(PbForm)) },
		func() kmsg.Request { return Join.request(new(PbJoin)) },
		func() kmsg.Request { return Heartbeat.request(new(PbHeartbeat)) },
		func() kmsg.Request { return LogEnds.request(new(PbLogEnds)) },
		func() kmsg.Request { return DescribeQuorum.request(new(PbDescribeQuorum)) },
		func() kmsg.Request { return Expel.request(new(PbExpel)) },
	}
	f.Add(uint8(0), Propose.request(&PbPropose{Proposer: 1 << 60, First: 3, Term: 2, Commands: [][]byte{{1, 2}, {3}}}).AppendTo(nil))
	f.Add(uint8(1), Form.request(&PbForm{ClusterId: make([]byte, 16), Members: []*PbCandidate{{Node: 3, Addr: "h:1"}}}).AppendTo(nil))
	f.Add(uint8(3), Heartbeat.request(&PbHeartbeat{Broker: 1, Incarnation: make([]byte, 16), Index: 9, Checksum: 1 << 63}).AppendTo(nil))
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		req := empty[int(which)%len(empty)]()
		resp := req.ResponseKind()
		for _, m := range []interface {
			kmsgMessage
			message() proto.Message
		}{req.(*request), resp.(*response)} {
			if m.ReadFrom(b) != nil {
				continue
			}
			again := proto.Clone(m.message())
			proto.Reset(again)
			if err := proto.Unmarshal(m.AppendTo(nil), again); err != nil || !proto.Equal(again, m.message()) {
				t.Fatalf("%T became %v, was %v: %v", again, again, m.message(), err)
			}
		}
	})
}

// kmsgMessage is what a request and a response have in common.
type kmsgMessage interface {
	ReadFrom([]byte) error
	AppendTo([]byte) []byte
}

func (f *frame) message() proto.Message { return f.body }
