package replica

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/vfs"
)

// hook calls a function for each line of a log.
type hook struct {
	slog.Handler
	f func()
}

// Handle is part of slog.Handler.
func (h hook) Handle(context.Context, slog.Record) error {
	h.f()
	return nil
}

// Enabled is part of slog.Handler.
func (hook) Enabled(context.Context, slog.Level) bool { return true }

// TestPartitionThatComesBackIsNoStray: a broker that starts sets a log aside that it has no part in any more, and is given
// the partition again in the same moment.
func TestPartitionThatComesBackIsNoStray(t *testing.T) {
	s := newSite(t, vfs.NewMem(1))
	s.register()
	id := s.topic("t", 1, nil)
	s.put("t", 0, 5)
	if err := s.dirs.Close(); err != nil {
		t.Fatal(err)
	}
	change := func(c metadata.Command) (*metadata.Image, metadata.Delta) {
		im, delta, err := s.im.Apply(s.im.Index()+1, c)
		if err != nil {
			t.Fatal(err)
		}
		s.im = im
		return im, delta
	}
	change(metadata.DeleteTopic{ID: id})
	s.start()
	s.register()
	im, delta := change(metadata.CreateTopic{ID: id, Name: "t", Partitions: [][]metadata.BrokerID{{1}}})
	applied := make(chan error, 1)
	s.Set.logger = slog.New(hook{slog.DiscardHandler, func() {
		begun := make(chan struct{})
		go func() {
			close(begun)
			applied <- s.Apply(context.Background(), im, delta)
		}()
		<-begun
		for end := time.Now().Add(100 * time.Millisecond); s.Image() != im && time.Now().Before(end); { // it has to wait until the log is set aside
			time.Sleep(time.Millisecond)
		}
	}})
	if err := s.SetStraysAside(); err != nil {
		t.Fatal(err)
	}
	if err := <-applied; err != nil {
		t.Fatal(err)
	}
	s.put("t", 0, 3)
	if _, err := s.fs.Stat("/log/t-0"); err != nil {
		t.Error(err)
	}
}
