package quorum

import (
	"context"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// raftLogger sends what Raft says about its work to debug: what a user must know, this package says itself.
func raftLogger(l *slog.Logger) hclog.Logger {
	out := hclog.NewInterceptLogger(&hclog.LoggerOptions{Level: hclog.Off, Output: io.Discard})
	if l.Enabled(context.Background(), slog.LevelDebug) {
		out.RegisterSink(sink{l})
	}
	return out
}

type sink struct{ log *slog.Logger }

// Accept is part of hclog.SinkAdapter.
func (s sink) Accept(_ string, level hclog.Level, msg string, args ...interface{}) {
	s.log.Debug("raft: "+msg, append(args, "raft_level", level.String())...)
}
