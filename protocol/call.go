package protocol

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Call is one request on its way through the broker. A handler keeps it until it is answered; each call is answered
// once, by Reply, ReplyParts, ReplyProduce, ReplyFetch, NoReply or Fail, from any goroutine. A second answer is a bug
// and panics. Answering a call whose connection is gone is no error: what the answer held is released.
type Call struct {
	conn     *conn
	api      *entry
	version  int16
	corr     int32
	clientID string
	received time.Time
	size     int // of the frame

	body    []byte
	frame   atomic.Pointer[buffer] // held until the body is released
	hasTurn bool                   // the only one with a big body
	recycle recycler               // hot request to give back

	answered atomic.Bool
	next     *Call  // in conn.mu.calls
	done     bool   // answered, in conn.mu
	out      *Parts // nil: nothing is sent
}

// recycler is a decoded request that is used again.
type recycler interface{ giveBack() }

// ConnInfo is what is known of a connection. It never changes; a client that introduces itself gets a new one.
type ConnInfo struct {
	ID            uint64 // unique in this process
	Listener      string
	Remote, Local netip.AddrPort
	ClientName    string // client.software.name as ApiVersions v3+ gave it (KIP-511), "" before
	ClientVersion string
}

// Ctx ends when the connection does. Whoever parks a call watches it, so that nothing waits for a client that is gone.
func (c *Call) Ctx() context.Context { return c.conn.ctx }

// Key is the API key.
func (c *Call) Key() int16 { return c.api.Key }

// Version is the request's version, within the row's range.
func (c *Call) Version() int16 { return c.version }

// ClientID is the header's client id; a null one is "".
func (c *Call) ClientID() string { return c.clientID }

// Conn tells where the call came from.
func (c *Call) Conn() *ConnInfo { return c.conn.info.Load() }

// Received is when the frame was complete.
func (c *Call) Received() time.Time { return c.received }

// Reply answers with a message of kmsg in the request's version. It is encoded before Reply returns, so the caller may
// use it again.
func (c *Call) Reply(resp kmsg.Response) {
	if resp.Key() != c.api.Key {
		panic(fmt.Sprintf("protocol: request %d answered with response %d", c.api.Key, resp.Key()))
	}
	resp.SetVersion(c.version)
	c.replyEncoded(resp)
}

// replyEncoded answers with r in whatever version r says.
func (c *Call) replyEncoded(r kmsg.Response) {
	p := NewParts()
	p.buf = r.AppendTo(p.buf)
	c.ReplyParts(p)
}

// ReplyProduce answers a Produce request. The response may be used again when it returns.
func (c *Call) ReplyProduce(r *ProduceResponse) {
	p := NewParts()
	p.buf = AppendProduceResponse(p.buf, c.version, r)
	c.ReplyParts(p)
}

// ReplyFetch answers a Fetch request; the response's file ranges belong to the answer from here on. The rest of the
// response may be used again when it returns.
func (c *Call) ReplyFetch(r *FetchResponse) {
	p := NewParts()
	EncodeFetch(c.version, r, p)
	c.ReplyParts(p)
}

// ReplyParts answers with a body made by hand; p belongs to the answer from here on. Files are read and sent on a
// goroutine of the connection, never on the caller's.
func (c *Call) ReplyParts(p *Parts) {
	c.answer()
	c.conn.finish(c, p)
}

// NoReply ends a call that gets no answer: Produce with acks=0.
func (c *Call) NoReply() {
	c.answer()
	c.conn.finish(c, nil)
}

// Fail closes the connection instead of answering. Requests before this one are answered if they already are.
func (c *Call) Fail(reason error) {
	c.answer()
	c.conn.fail(c, reason)
}

// Later runs f soon on the connection's own second goroutine, without locks held. It never waits, so it may be called
// under any lock. f does not run if the connection has ended or ends first: what must be undone then hangs on Ctx.
// Functions of one connection run one after the other, but beside the handler of a newer request.
func (c *Call) Later(f func()) { c.conn.later(f) }

// ReleaseBody says that the frame is no longer needed: every byte slice of the request is invalid from here on. A call
// that is answered releases its body by itself.
func (c *Call) ReleaseBody() {
	if f := c.frame.Swap(nil); f != nil {
		f.release()
	}
}

func (c *Call) answer() {
	if c.answered.Swap(true) {
		panic(fmt.Sprintf("protocol: %s call answered twice", c.api.name))
	}
	c.ReleaseBody()
	if c.recycle != nil {
		c.recycle.giveBack()
		c.recycle = nil
	}
}

// answerTags tells whether the answer's header has tagged fields. ApiVersions' never has: the client that asks may not
// know of them yet.
func (c *Call) answerTags() bool { return c.version >= c.api.flexible && c.api.Key != keyAPIVersions }
