package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/hashicorp/memberlist"

	"github.com/karstlog/karst/internal/uuid"
)

// NoBroker is the id of a process that has none yet.
const NoBroker int32 = -1

// Meta is what a process tells the others of itself. It must fit into 512 bytes, so it is little: all else is asked for at
// the cluster port.
type Meta struct {
	ClusterID   uuid.UUID // zero: it belongs to none yet
	Broker      int32     // NoBroker: none was given or allotted yet
	Incarnation uuid.UUID // this start of the process; zero before it is registered
	Directory   uuid.UUID // of its data: orders those that form a cluster
	ClusterAddr string    // HOST:PORT where brokers connect
	// Expect is how many brokers this one wants to form a cluster with; 0: it does not.
	Expect  int32
	Leaving bool // it is about to go on purpose
}

// State is what gossip says about a member.
type State int8

// The states.
const (
	Alive State = iota + 1
	Dead        // it answers nobody, and nobody vouches for it
	Left        // it said that it goes
)

// String names the state as kctl prints it.
func (s State) String() string { return [...]string{"", "alive", "dead", "left"}[s] }

// Member is another process.
type Member struct {
	Name string // random, of this process alone
	Addr string // HOST:PORT of its gossip
	Meta
}

const (
	metaVersion   = 1
	metaFixed     = 1 + 16 + 4 + 16 + 16 + 4 + 1
	flagLeaving   = 1
	maxAddrLength = 253 + 1 + 5 // a DNS name and a port
)

var errMeta = errors.New("gossip: metadata of a member cannot be read")

func (m Meta) check() error {
	if n := len(m.encode()); n > memberlist.MetaMaxSize || len(m.ClusterAddr) > maxAddrLength {
		return fmt.Errorf("address for brokers %q is too long for gossip: %d bytes, at most %d", m.ClusterAddr, len(m.ClusterAddr), maxAddrLength)
	}
	return nil
}

func (m Meta) encode() []byte {
	b := make([]byte, 0, metaFixed+len(m.ClusterAddr))
	b = append(b, metaVersion)
	b = append(b, m.ClusterID[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(m.Broker))
	b = append(b, m.Incarnation[:]...)
	b = append(b, m.Directory[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(m.Expect))
	flags := byte(0)
	if m.Leaving {
		flags |= flagLeaving
	}
	b = append(b, flags)
	return append(b, m.ClusterAddr...)
}

func decodeMeta(b []byte) (Meta, error) {
	if len(b) < metaFixed || b[0] != metaVersion || len(b)-metaFixed > maxAddrLength {
		return Meta{}, errMeta
	}
	b = b[1:]
	var m Meta
	b = b[copy(m.ClusterID[:], b):]
	m.Broker, b = int32(binary.BigEndian.Uint32(b)), b[4:]
	b = b[copy(m.Incarnation[:], b):]
	b = b[copy(m.Directory[:], b):]
	m.Expect, b = int32(binary.BigEndian.Uint32(b)), b[4:]
	m.Leaving = b[0]&flagLeaving != 0
	m.ClusterAddr = string(b[1:])
	if m.Broker < NoBroker || m.Expect < 0 {
		return Meta{}, errMeta
	}
	return m, nil
}

// who names a process for people: "broker 3 at 10.0.0.7:9093".
func (m Meta) who() string {
	if m.Broker == NoBroker {
		return "a new broker at " + m.ClusterAddr
	}
	return "broker " + strconv.Itoa(int(m.Broker)) + " at " + m.ClusterAddr
}
