package main

import (
	"context"
	"time"
)

// again is how a question is repeated whose answer was an error that passes.
type again struct {
	passes         func(error) bool
	pause, longest time.Duration // the first pause; each is twice the one before, up to longest
	patience       time.Duration // 0: until the context ends
}

// ask calls f until its error does not pass, or patience or the context ends. It returns the last error of f.
func (a again) ask(ctx context.Context, f func() error) error {
	var end <-chan time.Time
	if a.patience > 0 {
		end = time.After(a.patience)
	}
	for pause := a.pause; ; pause = min(2*pause, max(a.pause, a.longest)) {
		err := f()
		if err == nil || !a.passes(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-end:
			return err
		case <-time.After(pause):
		}
	}
}
