package sim

import (
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/check"
)

// consumer reads its partitions in order, again and again from the start once it has seen the end.
type consumer struct {
	*client
	readers []*reader
}

// reader is a consumer at one partition.
type reader struct {
	c        *consumer
	part     part
	position int64
	session  int
	losses   int // of the partition, when the session began
}

func newConsumer(w *World, parts []part) *consumer {
	c := &consumer{client: newClient(w)}
	for _, p := range parts {
		c.readers = append(c.readers, &reader{c: c, part: p, session: 1})
	}
	return c
}

func (c *consumer) add(p part) {
	r := &reader{c: c, part: p, session: 1}
	c.readers = append(c.readers, r)
	r.poll()
}

func (c *consumer) run() {
	for _, r := range c.readers {
		r.poll()
	}
}

// poll asks for the next records, or for the end of what can be read.
func (r *reader) poll() {
	w := r.c.w
	if !w.exists(r.part) {
		return
	}
	n, epoch := r.c.leaderOf(r.part)
	again := func(d time.Duration) { w.after(d, r.poll) }
	if n == nil {
		r.c.refresh(r.part, func() { again(20 * time.Millisecond) })
		return
	}
	if w.truthOf(r.part).losses != r.losses { // what it saw may have been lost for good
		r.begin()
	}
	asked := w.now
	failed := func() { r.c.refresh(r.part, func() { again(10 * time.Millisecond) }) }
	r.c.request(n, 700*time.Millisecond, func(reply func(func())) {
		n.consume(r.part, epoch, r.position, func(at int64, recs []rec, visible int64, err error) {
			reply(func() {
				if err != nil {
					failed()
					return
				}
				r.got(answer{epoch, at, recs, visible, asked})
				again(w.between(5*time.Millisecond, 60*time.Millisecond))
			})
		})
	}, failed)
}

func (r *reader) begin() {
	r.position, r.losses = 0, r.c.w.truthOf(r.part).losses
	r.session++
}

// answer is what a broker gave a reader.
type answer struct {
	epoch   metadata.LeaderEpoch
	from    int64 // the log start, when that lies above what was asked for
	recs    []rec
	visible int64 // -1: not said
	asked   time.Duration
}

func (r *reader) got(a answer) {
	w := r.c.w
	if w.truthOf(r.part).losses != r.losses {
		r.begin()
		return
	}
	if a.visible >= 0 {
		w.recorder.Sight(check.Sight{
			Process: r.c.process, Bound: check.HighWatermark, Partition: r.part.checked(), Offset: a.visible, Invoke: a.asked, Complete: w.now,
		})
	}
	if a.from > r.position { // what lies between was deleted; not everywhere yet
		r.position = a.from
		r.session++
	}
	for _, x := range a.recs {
		w.checkSeen(r.part, a.epoch, r.position, x)
		r.c.seq++
		w.recorder.Read(check.Read{
			Process: r.c.process, Session: r.session, Seq: r.c.seq, Partition: r.part.checked(), Offset: r.position, Value: x.value,
			Invoke: a.asked, Complete: w.now,
		})
		r.position++
	}
	if len(a.recs) == 0 && w.chance(0.02) {
		r.begin()
	}
}

// consume is a broker's side of a consumer's fetch: where they begin, records below the high watermark, and where that stands, -1 while a
// client may have seen a higher one (KIP-207).
func (n *node) consume(p part, epoch metadata.LeaderEpoch, from int64, done func(int64, []rec, int64, error)) {
	r := n.replicas[p]
	if r == nil || r.leader == nil || r.view.LeaderEpoch != epoch {
		done(from, nil, -1, errNotLeader)
		return
	}
	from = max(from, r.base)
	hw := r.log.HighWatermark()
	visible := hw
	if hw < r.leader.EpochStart() {
		visible = -1
	}
	if from > r.log.End() {
		n.w.checkReadable(r, from)
		done(from, nil, visible, errOutOfRange)
		return
	}
	var recs []rec
	if from < hw {
		recs = r.recs[max(0, from-r.base) : min(hw, from+20)-r.base]
	}
	done(from, recs, visible, nil)
}
