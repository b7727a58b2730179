package replica

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/partition"
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

// session is one connection of a fetcher. Whoever receives an answer sends the next request; a second one goes out while
// the first waits at the leader when something is to be said at once: a partition is followed from now on, or a log was
// synced.
type session struct {
	f      *fetcher
	conn   net.Conn
	frames frameReader
	answer protocol.FollowerAnswer
	lost   bool        // the leader did not know the session; nothing good has come since
	took   []*followed // being built into a request; guarded by send

	send struct {
		sync.Mutex  // held while the request is written: requests must not overtake each other
		waiting     int
		correlation int32
		id, epoch   int32 // of the session at the leader; id 0: not begun
		req         protocol.FetchRequest
		parts       []protocol.FetchPartition
		buf         []byte
	}
}

// dialTimeout is how long a broker that says nothing is waited for before it is tried again.
const dialTimeout = 5 * time.Second

// maxAhead is how many requests may be without an answer.
const maxAhead = 2

// maxNamed is how many partitions one request names; the others come with the next.
const maxNamed = 20_000

// session connects, and follows until the connection breaks, ctx ends, or nothing is left to follow (nil).
func (f *fetcher) session(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dialing, dialed := context.WithTimeout(ctx, min(f.all.settings.Timeout, dialTimeout))
	conn, err := f.all.dial(dialing, f.source)
	dialed()
	if err != nil {
		return err
	}
	f.begin()
	s := &session{f: f, conn: conn, frames: frameReader{conn: conn}}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	var g sync.WaitGroup
	defer g.Wait()
	defer cancel()
	g.Go(func() { s.nudge(ctx) })
	for {
		if err := s.request(); err != nil {
			return s.over(err)
		}
		if err := s.receive(); err != nil {
			return s.over(err)
		}
	}
}

// over makes the end of a session that has nothing left to do no error.
func (s *session) over(err error) error {
	if s.f.idle() {
		return nil
	}
	return err
}

// begin has all partitions named in the first request.
func (f *fetcher) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.forgotten = nil
	for _, d := range f.mu.parts {
		d.synced = -1
		if d.until.IsZero() {
			f.dirtyLocked(d)
		}
	}
}

// nudge sends what is to be said between two answers.
func (s *session) nudge(ctx context.Context) {
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.f.kick:
		case <-t.C:
		}
		if s.f.idle() {
			s.conn.Close()
			return
		}
		if next := s.f.due(time.Now()); next > 0 {
			t.Reset(next)
		}
		if err := s.request(); err != nil {
			s.conn.Close()
			return
		}
	}
}

// request sends one if the leader has none, or if there is news and it has one only.
func (s *session) request() error {
	s.send.Lock()
	defer s.send.Unlock()
	switch o := &s.send; {
	case o.waiting == 0:
		s.f.due(time.Now())
	case o.waiting >= maxAhead || o.id == 0:
		return nil
	}
	named := s.build()
	if !named && s.send.waiting > 0 {
		return nil
	}
	s.send.correlation++
	s.send.buf = protocol.AppendFollowerFetch(s.send.buf[:0], s.send.correlation, &s.send.req)
	s.send.waiting++
	s.send.epoch++
	if err := s.conn.SetWriteDeadline(time.Now().Add(s.f.all.settings.Timeout)); err != nil {
		return err
	}
	_, err := s.conn.Write(s.send.buf)
	return err
}

// build makes the next request out of what is dirty, and reports whether it says anything.
func (s *session) build() bool {
	f, o, settings := s.f, &s.send, &s.f.all.settings
	f.mu.Lock()
	n := min(len(f.mu.dirty), maxNamed)
	s.took = append(s.took[:0], f.mu.dirty[:n]...)
	rest := copy(f.mu.dirty, f.mu.dirty[n:])
	clear(f.mu.dirty[rest:])
	f.mu.dirty = f.mu.dirty[:rest]
	for _, d := range s.took {
		d.listed = false
	}
	forgotten := f.mu.forgotten
	f.mu.forgotten = nil
	f.mu.Unlock()
	for _, d := range s.took {
		s.start(d)
	}
	env := f.all.set.env
	o.req = protocol.FetchRequest{
		ReplicaID: int32(env.self), ReplicaEpoch: BrokerEpoch(env.incarnation()), MaxWait: settings.MaxWait,
		MinBytes: settings.MinBytes, MaxBytes: settings.MaxResponseBytes, SessionID: o.id, SessionEpoch: o.epoch,
		Topics: o.req.Topics[:0], Forgotten: o.req.Forgotten[:0],
	}
	if o.id == 0 {
		o.req.MaxWait = 0 // so that the session's id is known before there is more to say
	}
	s.name()
	for _, k := range forgotten {
		o.req.Forgotten = append(o.req.Forgotten, protocol.ForgottenTopic{ID: k.topic, Partitions: []int32{k.index}})
	}
	return len(s.took) > 0 || len(forgotten) > 0
}

// start does what the machine wants before the first question.
func (s *session) start(d *followed) {
	s.f.mu.Lock()
	begun := d.begun
	d.begun = true
	s.f.mu.Unlock()
	if !begun {
		if err := s.act(d, d.machine.Begin(d.p.logState()), nil); err != nil {
			s.failed(d, err)
		}
	}
}

// name writes the questions about the partitions in took.
func (s *session) name() {
	o := &s.send
	o.parts = o.parts[:0]
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	for _, d := range s.took {
		if d.gone {
			continue
		}
		d.asked = d.machine.Ask(d.p.logState())
		synced := int64(-1)
		if d.p.Settings().Log.Fsync {
			synced = d.p.log.SyncedEnd()
			d.synced = synced
		}
		if n := len(o.req.Topics); n == 0 || o.req.Topics[n-1].ID != d.key.topic {
			o.req.Topics = append(o.req.Topics, protocol.FetchTopic{ID: d.key.topic})
		}
		o.parts = append(o.parts, protocol.FetchPartition{
			Index: d.key.index, CurrentEpoch: int32(d.asked.Epoch), Offset: d.asked.From, LastFetchedEpoch: int32(d.asked.LastEpoch),
			LogStart: d.p.log.Start(), MaxBytes: s.f.all.settings.MaxBytes, SyncedEnd: synced,
		})
		t := &o.req.Topics[len(o.req.Topics)-1]
		t.Partitions = o.parts[len(o.parts)-len(t.Partitions)-1:]
	}
	at := 0 // the slices above may lie in memory that was outgrown
	for i := range o.req.Topics {
		n := len(o.req.Topics[i].Partitions)
		o.req.Topics[i].Partitions = o.parts[at : at+n]
		at += n
	}
}

// receive takes one answer.
func (s *session) receive() error {
	if err := s.conn.SetReadDeadline(time.Now().Add(s.f.all.settings.MaxWait + s.f.all.settings.Timeout)); err != nil {
		return err
	}
	frame, err := s.frames.next()
	if err != nil {
		return err
	}
	if _, err := s.answer.Decode(frame); err != nil {
		return fmt.Errorf("answer to a fetch: %w", err)
	}
	if code := s.answer.ErrorCode; code != 0 {
		return s.refused(kerr.ErrorForCode(code))
	}
	s.lost = false
	s.send.Lock()
	s.send.waiting--
	s.send.id = s.answer.SessionID
	s.send.Unlock()
	for i := range s.answer.Partitions {
		s.handle(&s.answer.Partitions[i])
	}
	return nil
}

// refused begins the session anew over the same connection when the leader has lost it, once: a leader that does not know
// the new one either is better left alone for a moment.
func (s *session) refused(err error) error {
	if !errors.Is(err, kerr.FetchSessionIDNotFound) && !errors.Is(err, kerr.InvalidFetchSessionEpoch) {
		return fmt.Errorf("answer to a fetch: %w", err)
	}
	s.send.Lock()
	defer s.send.Unlock()
	s.send.waiting--
	if s.send.id != 0 { // else this is what became of a request that was under way as well
		s.send.id, s.send.epoch = 0, 0
		s.f.begin()
	} else if s.lost && s.send.waiting == 0 && s.send.epoch > 0 {
		return fmt.Errorf("answer to a fetch that begins a session: %w", err)
	}
	s.lost = true
	return nil
}

// handle does what an answer about one partition asks for.
func (s *session) handle(res *protocol.FollowedPartition) {
	f := s.f
	f.mu.Lock()
	d := f.mu.parts[partitionKey{res.TopicID, res.Index}]
	var asked partition.Question
	if d != nil {
		asked = d.asked
	}
	f.mu.Unlock()
	if d == nil {
		return
	}
	a := partition.Answer{To: asked, HighWatermark: res.HighWatermark, LogStart: res.LogStart, LeaderEnd: res.StableOffset}
	switch {
	case res.ErrorCode == kerr.OffsetOutOfRange.Code:
		a.Failure = partition.OutOfRange
	case res.ErrorCode != 0:
		a.Failure = partition.Elsewhere
	case res.HasDiverging:
		a.Diverging = &partition.EpochEnd{Epoch: metadata.LeaderEpoch(res.Diverging.Epoch), End: res.Diverging.End}
	}
	action := d.machine.Answered(a, d.p.logState(), d.p.endOf)
	if action.Kind == partition.Wait {
		f.later(d)
		return
	}
	if err := s.act(d, action, res.Records); err != nil {
		s.failed(d, err)
		return
	}
	if len(res.Records) > 0 && d.p.slows() {
		t, now := &d.p.env.following, d.p.env.mono()
		t.took(len(res.Records), now)
		if pause := t.pause(now); pause > 0 {
			f.pause(d, pause)
			return
		}
	}
	if len(res.Records) > 0 || action.Kind != partition.Append {
		f.again(d)
	}
}

// act does to the log what the machine decided.
func (s *session) act(d *followed, a partition.Action, records []byte) error {
	log, epoch := d.p.log, int32(d.machine.Epoch)
	switch a.Kind {
	case partition.Append:
		start := log.Start()
		if len(records) > 0 {
			if _, err := log.CopyIn(epoch, records); err != nil {
				return err
			}
			if d.p.Settings().Log.Fsync {
				d.p.env.requestSync(log)
			}
		}
		if err := d.p.learned(d.machine.Epoch, len(records), a.HighWatermark, a.LogStart); err != nil {
			return err
		}
		if log.Start() > start { // the leader waits for it
			s.f.again(d)
		}
		return nil
	case partition.Truncate:
		s.f.all.truncated.Add(1)
		s.f.all.set.logger.Info("follower's log is cut to where it agrees with the leader's", "topic", d.p.Topic(),
			"partition", d.p.Index(), "epoch", epoch, "from", log.End(), "to", a.To, "high_watermark", log.HighWatermark())
		return log.TruncateIn(epoch, a.To)
	case partition.Restart:
		s.f.all.truncated.Add(1)
		s.f.all.set.logger.Warn("follower's log is before the leader's and begins anew", "topic", d.p.Topic(),
			"partition", d.p.Index(), "epoch", epoch, "end", log.End(), "offset", a.To)
		return log.TruncateAllIn(epoch, a.To)
	}
	return nil
}

// failed treats what went wrong with one partition; the others go on.
func (s *session) failed(d *followed, err error) {
	var off *storage.OfflineError
	var damaged *storage.CorruptError
	var late *storage.ContinuityError
	var stale *storage.StaleEpochError
	var bad *batch.CorruptError
	log := s.f.all.set.logger.With("topic", d.p.Topic(), "partition", d.p.Index(), "broker", s.f.source)
	switch {
	case errors.As(err, &off), errors.As(err, &damaged):
		d.p.fail(offline(d.p, err))
		s.f.all.drop(d.p)
		return
	case errors.As(err, &late): // the answer to a question that was asked twice
		s.f.again(d)
		return
	case errors.As(err, &stale): // another leadership has begun; or the leader sends what is older than the log
	case errors.As(err, &bad):
		log.Error("leader sent a damaged batch", "err", err)
	default:
		log.Warn("replica cannot be written", "err", err)
	}
	s.f.later(d)
}

// frameReader cuts answers out of a stream. What it returns is valid until the next call.
type frameReader struct {
	conn  net.Conn
	buf   []byte
	r, w  int
	small int // frames in a row that were small
}

const (
	firstFrameBuffer = 16 << 10
	largestFrame     = 1 << 30
	keptFrameBuffer  = 256 << 10 // a larger one goes after a while of small frames
	smallFrames      = 200
)

func (f *frameReader) next() ([]byte, error) {
	if f.r == f.w {
		f.r, f.w = 0, 0
		if len(f.buf) > keptFrameBuffer && f.small > smallFrames {
			f.buf = nil
		}
	}
	if err := f.need(4); err != nil {
		return nil, err
	}
	n := int(int32(binary.BigEndian.Uint32(f.buf[f.r:])))
	if n < 4 || n > largestFrame {
		return nil, fmt.Errorf("answer of %d bytes", n)
	}
	if err := f.need(4 + n); err != nil {
		return nil, err
	}
	if f.small++; n > keptFrameBuffer {
		f.small = 0
	}
	p := f.buf[f.r+4 : f.r+4+n]
	f.r += 4 + n
	return p, nil
}

// need reads until n bytes of the frame are there.
func (f *frameReader) need(n int) error {
	if f.r+n > len(f.buf) {
		to := f.buf
		if n > len(f.buf) {
			to = make([]byte, max(n, firstFrameBuffer))
		}
		f.w = copy(to, f.buf[f.r:f.w])
		f.buf, f.r = to, 0
	}
	for f.w-f.r < n {
		got, err := f.conn.Read(f.buf[f.w:])
		if got == 0 && err != nil {
			return err
		}
		f.w += got
	}
	return nil
}
