package gossip

import (
	"bytes"
	"log"
	"log/slog"
)

// libraryLogger sends what memberlist says about its work to debug: what a user must know, this package says itself.
func libraryLogger(l *slog.Logger) *log.Logger { return log.New(lines{l}, "", 0) }

type lines struct{ log *slog.Logger }

// Write takes one line: "[LEVEL] memberlist: text".
func (w lines) Write(p []byte) (int, error) {
	text := bytes.TrimSpace(p)
	if _, rest, ok := bytes.Cut(text, []byte("memberlist: ")); ok {
		text = rest
	}
	w.log.Debug("gossip: " + string(text))
	return len(p), nil
}
