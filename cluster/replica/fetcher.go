package replica

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/partition"
)

// FetchSettings is how followers fetch.
type FetchSettings struct {
	MaxWait          time.Duration // replica.fetch.wait.max.ms; 0: half a second
	MinBytes         int32         // replica.fetch.min.bytes; 0: one
	MaxBytes         int32         // replica.fetch.max.bytes, of a partition; 0: 1 MiB
	MaxResponseBytes int32         // replica.fetch.response.max.bytes; 0: 10 MiB
	MaxBackoff       time.Duration // replica.fetch.backoff.ms: the longest pause after an error; 0: a second
	Timeout          time.Duration // replica.socket.timeout.ms: without an answer; 0: 30 seconds
}

func (s *FetchSettings) setDefaults() {
	setDefault(&s.MaxWait, 500*time.Millisecond)
	setDefault(&s.MinBytes, 1)
	setDefault(&s.MaxBytes, 1<<20)
	setDefault(&s.MaxResponseBytes, 10<<20)
	setDefault(&s.MaxBackoff, time.Second)
	setDefault(&s.Timeout, 30*time.Second)
}

func setDefault[T int32 | time.Duration](p *T, value T) {
	if *p <= 0 {
		*p = value
	}
}

// minBackoff is the first pause after an error: the leader is often only a few milliseconds behind in the metadata.
const minBackoff = 5 * time.Millisecond

// fetchers are the connections to the brokers that lead what this one follows, one for each.
type fetchers struct {
	set      *Set
	settings FetchSettings
	dial     func(context.Context, metadata.BrokerID) (net.Conn, error)

	mu struct {
		sync.Mutex
		bySource map[metadata.BrokerID]*fetcher
		of       map[*Partition]*followed
		fresh    []*fetcher // not running yet
	}
	more        chan struct{}
	interrupted atomic.Int64 // sessions that ended with an error
	truncated   atomic.Int64 // logs that were cut or begun anew
}

// fetcher gets the records of all partitions that one other broker leads and this one follows.
type fetcher struct {
	all    *fetchers
	source metadata.BrokerID

	mu struct {
		sync.Mutex
		parts     map[partitionKey]*followed
		dirty     []*followed // to be named in the next request
		forgotten []partitionKey
		delayed   []*followed
	}
	kick chan struct{} // something is dirty, or nothing is left
}

// followed is one partition of a fetcher, in one leadership.
type followed struct {
	p       *Partition
	f       *fetcher
	key     partitionKey
	machine partition.Follower

	// Guarded by f.mu.
	listed bool               // in dirty
	begun  bool               // the machine's Begin was done
	asked  partition.Question // the last one sent
	synced int64              // what the leader was told
	delay  time.Duration
	until  time.Time // in delayed until then
	gone   bool
}

// follow makes p follow in a leadership; it follows nowhere else from then on.
func (a *fetchers) follow(p *Partition, leader metadata.BrokerID, epoch metadata.LeaderEpoch) {
	if a.dial == nil {
		return
	}
	a.mu.Lock()
	old := a.mu.of[p]
	if old != nil && old.f.source == leader && old.machine.Epoch == epoch {
		a.mu.Unlock()
		return
	}
	f := a.mu.bySource[leader]
	if f == nil {
		f = &fetcher{all: a, source: leader, kick: make(chan struct{}, 1)}
		f.mu.parts = map[partitionKey]*followed{}
		a.mu.bySource[leader] = f
		a.mu.fresh = append(a.mu.fresh, f)
		note(a.more)
	}
	d := &followed{
		p: p, f: f, key: partitionKey{p.TopicID(), p.Index()}, machine: partition.Follower{Epoch: epoch}, synced: -1,
	}
	a.mu.of[p] = d
	a.mu.Unlock()
	if old != nil {
		old.f.remove(old)
	}
	f.mu.Lock()
	f.mu.parts[d.key] = d
	f.dirtyLocked(d)
	f.mu.Unlock()
	note(f.kick)
}

// drop makes p follow nobody.
func (a *fetchers) drop(p *Partition) {
	a.mu.Lock()
	old := a.mu.of[p]
	delete(a.mu.of, p)
	a.mu.Unlock()
	if old != nil {
		old.f.remove(old)
	}
}

// synced tells the leader how much is on disk now, without waiting for its answer to the last request.
func (a *fetchers) synced(p *Partition) {
	a.mu.Lock()
	d := a.mu.of[p]
	a.mu.Unlock()
	if d == nil {
		return
	}
	d.f.mu.Lock()
	fresh := p.log.SyncedEnd() > d.synced && d.begun && !d.gone
	if fresh {
		d.f.dirtyLocked(d)
	}
	d.f.mu.Unlock()
	if fresh {
		note(d.f.kick)
	}
}

// run starts the fetchers as they are needed, and returns when all have ended.
func (a *fetchers) run(ctx context.Context) {
	var g sync.WaitGroup
	defer g.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.more:
		}
		a.mu.Lock()
		fresh := a.mu.fresh
		a.mu.fresh = nil
		a.mu.Unlock()
		for _, f := range fresh {
			g.Go(func() { f.run(ctx) })
		}
	}
}

func (f *fetcher) dirtyLocked(d *followed) {
	if !d.listed && !d.gone {
		d.listed = true
		f.mu.dirty = append(f.mu.dirty, d)
	}
}

// remove forgets a partition; the leader is told with the next request.
func (f *fetcher) remove(d *followed) {
	f.mu.Lock()
	d.gone = true
	if f.mu.parts[d.key] == d {
		delete(f.mu.parts, d.key)
		f.mu.forgotten = append(f.mu.forgotten, d.key)
	}
	f.mu.Unlock()
	note(f.kick)
}

// idle tells that there is nothing to follow.
func (f *fetcher) idle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.mu.parts) == 0
}

// again has a partition named in the next request.
func (f *fetcher) again(d *followed) {
	f.mu.Lock()
	d.delay = 0
	f.dirtyLocked(d)
	f.mu.Unlock()
}

// later has a partition named after a pause that grows from one to the next.
func (f *fetcher) later(d *followed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pauseLocked(d, min(max(2*d.delay, minBackoff), f.all.settings.MaxBackoff))
}

// pause has a partition named after a while.
func (f *fetcher) pause(d *followed, pause time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pauseLocked(d, pause)
	d.delay = 0
}

func (f *fetcher) pauseLocked(d *followed, pause time.Duration) {
	if d.gone || !d.until.IsZero() {
		return
	}
	d.delay = pause
	d.until = time.Now().Add(pause)
	f.mu.delayed = append(f.mu.delayed, d)
	note(f.kick)
}

// due moves what was delayed for long enough to what is dirty, and says when to look again; 0: never.
func (f *fetcher) due(now time.Time) (next time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := f.mu.delayed[:0]
	for _, d := range f.mu.delayed {
		left := d.until.Sub(now)
		switch {
		case d.gone:
		case left <= 0:
			d.until = time.Time{}
			f.dirtyLocked(d)
		default:
			kept = append(kept, d)
			if next == 0 || left < next {
				next = left
			}
		}
	}
	clear(f.mu.delayed[len(kept):])
	f.mu.delayed = kept
	return next
}

// run keeps a session with the source while there is something to follow.
func (f *fetcher) run(ctx context.Context) {
	log := f.all.set.logger.With("broker", f.source)
	var pause time.Duration
	for {
		for f.idle() {
			select {
			case <-ctx.Done():
				return
			case <-f.kick:
			}
		}
		began := time.Now()
		err := f.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			continue
		}
		if time.Since(began) > time.Second {
			pause = 0
		}
		if pause == 0 {
			log.Info("replication from a broker is interrupted", "err", err)
		} else {
			log.Debug("replication from a broker is still interrupted", "err", err)
		}
		f.all.interrupted.Add(1)
		pause = min(max(2*pause, minBackoff), f.all.settings.MaxBackoff)
		sleep(ctx, pause)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
