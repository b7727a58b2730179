package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// stages runs the parts of a node and stops them in reverse order. The first part that ends by itself with an error
// stops the node.
type stages struct {
	fail context.CancelCauseFunc
	list []*stage
}

type stage struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
	err    error
	last   func() error // after the part has ended; may be nil
}

// start runs a part until the stages stop. last is called once it has ended.
func (s *stages) start(name string, run func(context.Context) error, last func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	st := &stage{name: name, cancel: cancel, done: make(chan struct{}), last: last}
	s.list = append(s.list, st)
	go func() {
		defer close(st.done)
		if st.err = run(ctx); st.err != nil {
			s.fail(fmt.Errorf("%s: %w", name, st.err))
		}
	}()
}

// onStop only has something to do at the end.
func (s *stages) onStop(name string, last func() error) {
	done := make(chan struct{})
	close(done)
	s.list = append(s.list, &stage{name: name, cancel: func() {}, done: done, last: last})
}

// stop ends the parts, the newest first, and waits for each.
func (s *stages) stop() error {
	var errs []error
	for i := len(s.list) - 1; i >= 0; i-- {
		st := s.list[i]
		st.cancel()
		<-st.done
		errs = append(errs, named(st.name, st.err))
		if st.last != nil {
			errs = append(errs, named(st.name, st.last()))
		}
	}
	s.list = nil
	return errors.Join(errs...)
}

func named(name string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}

// gate is closed once.
type gate struct {
	once sync.Once
	c    chan struct{}
}

func newGate() *gate { return &gate{c: make(chan struct{})} }

func (g *gate) open() { g.once.Do(func() { close(g.c) }) }
