// Package wire holds the messages that brokers send each other on the cluster port: protobuf bodies in Kafka's framing,
// with keys that Apache Kafka will never use. They are served on the cluster port alone, never to clients.
//
// A message is added by its owner: to wire.proto, then one line in the list of methods below.
package wire

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
	"google.golang.org/protobuf/proto"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/protocol"
)

//go:generate sh -c "protoc -I. --plugin=protoc-gen-go=$(go tool -modfile=../../internal/tools/go.mod -n protoc-gen-go) --go_out=. --go_opt=paths=source_relative wire.proto"

// Propose carries commands to the leader of the metadata log.
var Propose = Method[PbPropose, PbProposed, *PbPropose, *PbProposed]{Key: 10100}

// Form asks for a promise to form a cluster, Join to become a member of one. Both are served to strangers.
var (
	Form = Method[PbForm, PbFormed, *PbForm, *PbFormed]{Key: 10120}
	Join = Method[PbJoin, PbJoined, *PbJoin, *PbJoined]{Key: 10121}
)

// message is a pointer to a generated message.
type message[M any] interface {
	*M
	proto.Message
}

// Method is one internal call: question Q, answer A.
type Method[Q, A any, PQ message[Q], PA message[A]] struct{ Key int16 }

// Caller sends a request to a broker; *link.Link is one.
type Caller interface {
	Call(ctx context.Context, to metadata.BrokerID, req kmsg.Request) (kmsg.Response, error)
}

// AddrCaller sends a request to whoever answers at an address; *link.Link is one.
type AddrCaller interface {
	CallAddr(ctx context.Context, addr string, req kmsg.Request) (kmsg.Response, error)
}

// Call asks a broker. Errors are those of the Caller.
func (m Method[Q, A, PQ, PA]) Call(ctx context.Context, c Caller, to metadata.BrokerID, q *Q) (*A, error) {
	resp, err := c.Call(ctx, to, m.request(q))
	if err != nil {
		return nil, err
	}
	return m.answer(resp)
}

// CallAddr asks whoever answers at addr.
func (m Method[Q, A, PQ, PA]) CallAddr(ctx context.Context, c AddrCaller, addr string, q *Q) (*A, error) {
	resp, err := c.CallAddr(ctx, addr, m.request(q))
	if err != nil {
		return nil, err
	}
	return m.answer(resp)
}

// Route is the row that serves the method. serve answers with Reply, then or later.
func (m Method[Q, A, PQ, PA]) Route(serve func(*protocol.Call, *Q)) protocol.API {
	return protocol.RouteNew(m.Key, 0, 0, func() *request { return m.request(new(Q)) }, func(c *protocol.Call, r *request) {
		q, ok := r.body.(PQ)
		if !ok {
			panic(fmt.Sprintf("wire: request %d holds a %T", m.Key, r.body))
		}
		serve(c, (*Q)(q))
	})
}

// Reply answers a call.
func (m Method[Q, A, PQ, PA]) Reply(c *protocol.Call, a *A) {
	c.Reply(&response{frame{key: m.Key, body: PA(a)}})
}

func (m Method[Q, A, PQ, PA]) request(q *Q) *request {
	return &request{frame{key: m.Key, body: PQ(q)}, func() proto.Message { return PA(new(A)) }}
}

func (m Method[Q, A, PQ, PA]) answer(resp kmsg.Response) (*A, error) {
	if r, ok := resp.(*response); ok {
		if a, ok := r.body.(PA); ok {
			return (*A)(a), nil
		}
	}
	return nil, fmt.Errorf("wire: call %d was answered with a %T", m.Key, resp)
}

// frame is what request and response share of kmsg's interfaces: one version, tagged header, protobuf body.
type frame struct {
	key  int16
	body proto.Message
}

// Key is part of kmsg.Request and kmsg.Response.
func (f *frame) Key() int16 { return f.key }

// MaxVersion is part of kmsg.Request and kmsg.Response.
func (f *frame) MaxVersion() int16 { return 0 }

// SetVersion is part of kmsg.Request and kmsg.Response.
func (f *frame) SetVersion(int16) {}

// GetVersion is part of kmsg.Request and kmsg.Response.
func (f *frame) GetVersion() int16 { return 0 }

// IsFlexible is part of kmsg.Request and kmsg.Response.
func (f *frame) IsFlexible() bool { return true }

// AppendTo is part of kmsg.Request and kmsg.Response.
func (f *frame) AppendTo(b []byte) []byte {
	out, err := proto.MarshalOptions{}.MarshalAppend(b, f.body)
	if err != nil {
		panic(fmt.Sprintf("wire: %T does not encode: %v", f.body, err))
	}
	return out
}

// ReadFrom is part of kmsg.Request and kmsg.Response.
func (f *frame) ReadFrom(b []byte) error { return proto.Unmarshal(b, f.body) }

type request struct {
	frame
	newAnswer func() proto.Message
}

// ResponseKind is part of kmsg.Request.
func (r *request) ResponseKind() kmsg.Response {
	return &response{frame{key: r.key, body: r.newAnswer()}}
}

type response struct{ frame }

// RequestKind is part of kmsg.Response. Nobody makes a request from an answer.
func (r *response) RequestKind() kmsg.Request { return nil }
