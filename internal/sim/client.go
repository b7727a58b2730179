package sim

import (
	"errors"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/check"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

// clientHost is the host of the first client; the others follow.
const clientHost = 100

// client is what producers and consumers share: a place on the network and what they know about who leads what.
type client struct {
	w       *World
	host    int
	process int
	conns   map[int]*conn
	leaders map[part]leadership
	seq     int64
}

type leadership struct {
	leader metadata.BrokerID
	epoch  metadata.LeaderEpoch
}

func newClient(w *World) *client {
	w.clients++
	return &client{
		w: w, host: clientHost + w.clients, process: w.clients, conns: map[int]*conn{}, leaders: map[part]leadership{},
	}
}

func (c *client) conn(n *node) *conn {
	x := c.conns[n.host]
	if x == nil || x.broken {
		x = c.w.net.dial(c.host, n.host)
		c.conns[n.host] = x
	}
	return x
}

// leaderOf is the broker that leads as far as the client knows; nil when it knows of none.
func (c *client) leaderOf(p part) (*node, metadata.LeaderEpoch) {
	l, ok := c.leaders[p]
	if !ok {
		return nil, -1
	}
	return c.w.nodeByID(l.leader), l.epoch
}

// refresh asks any broker who leads. An answer older than what is known is dropped (KIP-320).
func (c *client) refresh(p part, then func()) {
	n := c.w.nodes[c.w.rng.IntN(len(c.w.nodes))]
	life, over := n.life, false
	end := func() {
		if !over {
			over = true
			then()
		}
	}
	c.w.after(300*time.Millisecond, end)
	c.w.net.send(c.conn(n), func() {
		if n.life != life {
			return
		}
		n.deliver(func() {
			t, ok := n.image.TopicByID(p.topic)
			if !ok {
				return
			}
			m := t.Partitions[p.index]
			c.w.net.send(n.connTo(c.host, toClient), func() {
				if old, ok := c.leaders[p]; !ok || m.LeaderEpoch >= old.epoch {
					c.leaders[p] = leadership{m.Leader, m.LeaderEpoch}
				}
				end()
			})
		})
	})
}

// request runs do on a broker, with a way to answer; failed is called instead of an answer that does not come in time.
func (c *client) request(n *node, timeout time.Duration, do func(reply func(func())), failed func()) {
	x, over := c.conn(n), false
	c.w.net.send(x, func() {
		n.deliver(func() {
			do(func(answer func()) {
				c.w.net.send(n.connTo(c.host, toClient), func() {
					if !over {
						over = true
						answer()
					}
				})
			})
		})
	})
	c.w.after(timeout, func() {
		if !over {
			over = true
			x.broken = true
			failed()
		}
	})
}

// producer writes to its partitions until it is told to stop.
type producer struct {
	*client
	acks       int8
	idempotent bool
	inFlight   int
	pace       time.Duration
	streams    []*stream
	stopped    bool
}

// stream is a producer's records for one partition, in order.
type stream struct {
	p       *producer
	part    part
	id      int64 // of the producer; -1 without idempotence
	next    int32 // sequence
	queue   []*sending
	waiting bool // for metadata or a pause
	attempt uint64
}

// sending is a batch that is not decided.
type sending struct {
	writes  []check.Write
	base    int32
	tries   int
	flying  uint64 // the attempt that is under way, 0 for none
	created time.Duration
}

func newProducer(w *World, parts []part) *producer {
	p := &producer{client: newClient(w), acks: -1, idempotent: true, inFlight: 1 + w.rng.IntN(5), pace: w.between(5*time.Millisecond, 60*time.Millisecond)}
	switch w.rng.IntN(6) {
	case 0:
		p.acks, p.idempotent = 1, false
	case 1:
		p.acks, p.idempotent = 0, false
	case 2:
		p.idempotent = false
	}
	if w.o.Pace > 0 {
		p.pace = w.o.Pace
	}
	if w.o.SafeClients {
		p.acks = -1
	}
	for _, x := range parts {
		p.add(x)
	}
	return p
}

func (p *producer) add(x part) {
	s := &stream{p: p, part: x, id: -1}
	s.renew()
	p.streams = append(p.streams, s)
}

// renew gives the stream a producer id of its own: after a gap in its sequence it can go on in no other way.
func (s *stream) renew() {
	if s.p.idempotent {
		s.p.w.producerIDs++
		s.id = s.p.w.producerIDs
	}
	s.next = 0
}

func (p *producer) run() {
	if p.stopped {
		return
	}
	s := p.streams[p.w.rng.IntN(len(p.streams))]
	if len(s.queue) < 10 && p.w.exists(s.part) {
		s.add(1 + p.w.rng.IntN(3))
		s.pump()
	}
	p.w.after(p.w.between(p.pace/2, p.pace*2), p.run)
}

func (s *stream) add(n int) {
	w := s.p.w
	x := &sending{base: s.next, created: w.now}
	for range n {
		w.values++
		s.p.seq++
		x.writes = append(x.writes, check.Write{
			Process: s.p.process, Seq: s.p.seq, Value: w.values, Partition: s.part.checked(), Invoke: w.now,
			Outcome: check.Unknown, Offset: -1, Acks: s.p.acks, Idempotent: s.p.idempotent,
		})
	}
	for _, x := range x.writes {
		w.recorder.Write(x)
	}
	s.next += int32(n)
	s.queue = append(s.queue, x)
}

// pump sends what may be sent.
func (s *stream) pump() {
	if s.waiting || len(s.queue) == 0 {
		return
	}
	if !s.p.w.exists(s.part) {
		s.giveUp()
		return
	}
	n, _ := s.p.leaderOf(s.part)
	if n == nil {
		s.pause(true)
		return
	}
	flying := 0
	for _, x := range s.queue {
		if x.flying != 0 {
			flying++
			continue
		}
		if flying >= s.p.inFlight && s.p.acks != 0 {
			return
		}
		flying++
		s.send(n, x)
	}
}

// pause waits a little, and asks who leads.
func (s *stream) pause(refresh bool) {
	if s.waiting {
		return
	}
	s.waiting = true
	goOn := func() {
		s.waiting = false
		s.pump()
	}
	s.p.w.after(s.p.w.between(10*time.Millisecond, 60*time.Millisecond), func() {
		if refresh {
			s.p.refresh(s.part, goOn)
		} else {
			goOn()
		}
	})
}

func (s *stream) send(n *node, x *sending) {
	s.attempt++
	id := s.attempt
	x.flying = id
	x.tries++
	bytes := s.build(x)
	answered := func(offset int64, err error) {
		if x.flying == id {
			x.flying = 0
			s.answered(x, offset, err)
		}
	}
	if s.p.acks == 0 { // nobody answers; it was sent
		s.p.w.net.send(s.p.conn(n), func() { n.deliver(func() { n.produce(s.part, bytes, 0, func(int64, error) {}) }) })
		s.decide(x, check.OK, -1)
		return
	}
	s.p.request(n, time.Second, func(reply func(func())) {
		n.produce(s.part, bytes, s.p.acks, func(offset int64, err error) {
			reply(func() { answered(offset, err) })
		})
	}, func() { answered(-1, errTimeout) })
}

var errTimeout = errors.New("no answer")

func (s *stream) build(x *sending) batch.Batch {
	o := batch.BuilderOptions{}
	if s.id >= 0 {
		o.HasProducer, o.ProducerID, o.BaseSequence = true, s.id, x.base
	}
	b := batch.NewBuilder(o)
	for _, w := range x.writes {
		if err := b.Append(batch.Record{Timestamp: epoch0.UnixMilli(), Value: check.Payload(w.Value)}); err != nil {
			panic(err)
		}
	}
	bytes, err := b.Build()
	if err != nil {
		panic(err)
	}
	return bytes
}

// answered follows the rules of real clients: what may be tried again is, for a while, with the same sequence.
func (s *stream) answered(x *sending, offset int64, err error) {
	var gap *storage.OutOfOrderSequenceError
	first := len(s.queue) > 0 && s.queue[0] == x
	switch {
	case err == nil:
		s.p.w.acked(s.part, x.writes, offset, s.p.acks)
		s.decide(x, check.OK, offset)
		s.pump()
	case errors.As(err, &gap) && !first: // one before it failed and is sent again
		s.pause(false)
	case errors.As(err, &gap), s.p.w.now-x.created > 15*time.Second, !s.p.idempotent && x.tries > 5:
		s.giveUp()
	default:
		s.pause(err != errNotEnough && err != errShrunk)
	}
}

// giveUp leaves all that is under way undecided and begins anew.
func (s *stream) giveUp() {
	for _, x := range s.queue {
		x.flying = 0
		for _, w := range x.writes {
			w.Complete = s.p.w.now
			s.p.w.recorder.Write(w)
		}
	}
	s.queue = nil
	s.renew()
}

func (s *stream) decide(x *sending, o check.Outcome, offset int64) {
	for i, w := range x.writes {
		w.Outcome, w.Complete = o, s.p.w.now
		if offset >= 0 {
			w.Offset = offset + int64(i)
		}
		s.p.w.recorder.Write(w)
	}
	for i, y := range s.queue {
		if y == x {
			s.queue = append(s.queue[:i:i], s.queue[i+1:]...)
			break
		}
	}
}

// produce is a broker's side of a produce request.
func (n *node) produce(p part, b batch.Batch, acks int8, done func(int64, error)) {
	r := n.replicas[p]
	if r == nil {
		done(-1, errNotLeader)
		return
	}
	r.append(b, acks, done)
}
