package link

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

// Hello is who a process is.
type Hello struct {
	ClusterID   uuid.UUID         // zero: not known yet
	Broker      metadata.BrokerID // counts when Incarnation is not zero
	Incarnation uuid.UUID         // this start of the process; zero: not known yet
	Generation  uint64            // of the cluster: raised by a recovery from a lost quorum; 0: not known yet
}

// A greeting is the dialer's kind byte and hello, then the acceptor's hello with its verdict. Each hello has its length in
// front (u16), so that a later release may add to it:
//
//	version u8 · cluster id 16 · broker i32 · incarnation 16 · generation u64 · refused u8 · length u16 and reason
const (
	helloVersion  = 1
	helloFixed    = 1 + 16 + 4 + 16 + 8 + 1 + 2
	maxHelloBytes = 4 << 10
	maxReason     = 1 << 10
)

// greeting is a hello with what the acceptor says about the dialer's; a dialer says nothing.
type greeting struct {
	hello   Hello
	refused bool
	reason  string
}

func (g greeting) append(b []byte) []byte {
	reason := g.reason[:min(len(g.reason), maxReason)]
	b = binary.BigEndian.AppendUint16(b, uint16(helloFixed+len(reason)))
	b = append(b, helloVersion)
	b = append(b, g.hello.ClusterID[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(g.hello.Broker))
	b = append(b, g.hello.Incarnation[:]...)
	b = binary.BigEndian.AppendUint64(b, g.hello.Generation)
	refused := byte(0)
	if g.refused {
		refused = 1
	}
	b = append(b, refused)
	b = binary.BigEndian.AppendUint16(b, uint16(len(reason)))
	return append(b, reason...)
}

// decodeGreeting reads what follows the length.
func decodeGreeting(b []byte) (greeting, error) {
	if len(b) < helloFixed {
		return greeting{}, fmt.Errorf("greeting of %d bytes", len(b))
	}
	if b[0] == 0 {
		return greeting{}, errors.New("greeting of version 0")
	}
	var g greeting
	copy(g.hello.ClusterID[:], b[1:])
	g.hello.Broker = metadata.BrokerID(int32(binary.BigEndian.Uint32(b[17:])))
	copy(g.hello.Incarnation[:], b[21:])
	g.hello.Generation = binary.BigEndian.Uint64(b[37:])
	g.refused = b[45] != 0
	n := int(binary.BigEndian.Uint16(b[46:]))
	if n > maxReason || n > len(b)-helloFixed {
		return greeting{}, fmt.Errorf("reason of %d bytes in a greeting of %d", n, len(b))
	}
	g.reason = string(b[helloFixed : helloFixed+n])
	return g, nil
}

// readGreeting takes exactly its bytes off the stream.
func readGreeting(r io.Reader) (greeting, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return greeting{}, err
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if n > maxHelloBytes {
		return greeting{}, fmt.Errorf("greeting of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return greeting{}, err
	}
	return decodeGreeting(b)
}

// welcome is the acceptor's part.
func (l *Link) welcome(c net.Conn) (net.Conn, byte, error) {
	if err := c.SetDeadline(time.Now().Add(helloTimeout)); err != nil {
		return nil, 0, err
	}
	if l.o.TLS != nil {
		c = tls.Server(c, l.o.TLS)
	}
	var kind [1]byte
	if _, err := io.ReadFull(c, kind[:]); err != nil {
		return nil, 0, err
	}
	if l.kinds[kind[0]] == nil {
		return nil, 0, fmt.Errorf("stream of kind %q", kind[0])
	}
	g, err := readGreeting(c)
	if err != nil {
		return nil, 0, err
	}
	own := l.o.Hello()
	refused := l.check(own, g.hello, kind[0])
	answer := greeting{hello: own, refused: refused != nil}
	if refused != nil {
		answer.reason = refused.Error()
	}
	if _, err := c.Write(answer.append(nil)); err != nil {
		return nil, 0, errors.Join(refused, err)
	}
	if refused != nil {
		return nil, 0, refused
	}
	return c, kind[0], c.SetDeadline(time.Time{})
}

// introduce is the dialer's part; whoever calls ends it in time.
func (l *Link) introduce(c net.Conn, kind byte) (Hello, error) {
	own := l.o.Hello()
	if _, err := c.Write(greeting{hello: own}.append([]byte{kind})); err != nil {
		return Hello{}, err
	}
	g, err := readGreeting(c)
	if err != nil {
		return Hello{}, err
	}
	// What this side has to say counts even when the other has refused: it may be this process that must stop.
	if err := l.check(own, g.hello, kind); err != nil {
		return g.hello, err
	}
	if g.refused {
		return g.hello, &IdentityError{Want: own, Have: g.hello, Reason: "the peer refuses this node: " + g.reason}
	}
	return g.hello, nil
}

// check says why these two must not talk; nil when they may.
func (l *Link) check(own, peer Hello, kind byte) error {
	if kind == Join {
		return nil
	}
	if !own.ClusterID.IsZero() && !peer.ClusterID.IsZero() && own.ClusterID != peer.ClusterID {
		return &IdentityError{Want: own, Have: peer, Reason: fmt.Sprintf(
			"cluster %s meets cluster %s: give each cluster its own addresses to --join, or empty the --data of the node that is to change",
			own.ClusterID, peer.ClusterID)}
	}
	known := !own.Incarnation.IsZero() && !peer.Incarnation.IsZero()
	if known && own.Broker == peer.Broker && own.Incarnation != peer.Incarnation {
		return &IdentityError{Want: own, Have: peer, Reason: fmt.Sprintf(
			"two processes are broker %d: stop one, or give one another --id and empty its --data", own.Broker)}
	}
	if l.o.Check != nil {
		return l.o.Check(peer, kind)
	}
	return nil
}
