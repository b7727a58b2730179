package quorum

import (
	"context"
	"slices"
	"sync"

	"github.com/karstlog/karst/cluster/metadata"
)

// Subscription tells one subscriber what changes. Changes that come while it is busy are added up: what it holds is
// bounded by the number of things that changed, and who applies them never waits for it.
type Subscription struct {
	machine *machine
	mu      struct {
		sync.Mutex
		image   *metadata.Image
		pending metadata.Merger
		some    bool
	}
	wake chan struct{} // one slot
}

// Subscribe begins with everything: the first Next returns at once, with the image of this moment and a delta that names
// all that is in it. Close it when done.
func (q *Quorum) Subscribe() *Subscription {
	s := &Subscription{machine: q.machine, wake: make(chan struct{}, 1)}
	q.machine.subs.Lock()
	defer q.machine.subs.Unlock()
	im := q.machine.image.Load()
	s.add(im, metadata.Diff(metadata.Empty(), im))
	q.machine.subs.list = append(q.machine.subs.list, s)
	return s
}

// add is called with the machine's subs locked, and does not wait.
func (s *Subscription) add(im *metadata.Image, d metadata.Delta) {
	s.mu.Lock()
	s.mu.image = im
	s.mu.pending.Add(d)
	s.mu.some = true
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Next waits for a change and returns the newest image with all that changed since the last Next, or ctx's error.
func (s *Subscription) Next(ctx context.Context) (*metadata.Image, metadata.Delta, error) {
	for {
		if im, d, ok := s.take(); ok {
			return im, d, nil
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil, metadata.Delta{}, ctx.Err()
		}
	}
}

func (s *Subscription) take() (*metadata.Image, metadata.Delta, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.some {
		return nil, metadata.Delta{}, false
	}
	s.mu.some = false
	return s.mu.image, s.mu.pending.Take(), true
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.machine.subs.Lock()
	defer s.machine.subs.Unlock()
	s.machine.subs.list = slices.DeleteFunc(s.machine.subs.list, func(o *Subscription) bool { return o == s })
}
