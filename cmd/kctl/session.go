package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// session is what a command has of the outside: streams, environment and clock. Tests make their own.
type session struct {
	in     io.Reader
	out    *bufio.Writer // results; flushed at the end and whenever a stream of records pauses
	errw   io.Writer     // progress, warnings, errors
	inTTY  bool
	outTTY bool
	errTTY bool
	bright bool // colours on errw
	getenv func(string) string
	now    func() time.Time
}

func newSession() *session {
	return &session{
		in:     os.Stdin,
		out:    bufio.NewWriterSize(os.Stdout, 64<<10),
		errw:   os.Stderr,
		inTTY:  isTerminal(os.Stdin),
		outTTY: isTerminal(os.Stdout),
		errTTY: isTerminal(os.Stderr),
		getenv: os.Getenv,
		now:    time.Now,
	}
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// flush hands what was printed to stdout. A reader that went away (kctl ... | head) is an end, not a failure.
func (s *session) flush() error {
	if err := s.out.Flush(); err != nil {
		return fmt.Errorf("write to stdout: %w", err)
	}
	return nil
}

// say writes one line about the work, not a result of it, to stderr.
func (s *session) say(format string, args ...any) { fmt.Fprintf(s.errw, format+"\n", args...) }

// colour decides whether stderr may carry colours: --color, then NO_COLOR (https://no-color.org), then the terminal.
func (s *session) colour(inv invocation) {
	switch inv.value("color") {
	case "always":
		s.bright = true
	case "never":
		s.bright = false
	default:
		s.bright = s.errTTY && s.getenv("NO_COLOR") == "" && s.getenv("TERM") != "dumb"
	}
}

// paint wraps a word in an SGR colour when colours are on.
func (s *session) paint(sgr, word string) string {
	if !s.bright {
		return word
	}
	return "\x1b[" + sgr + "m" + word + "\x1b[0m"
}

// reach connects for a command that has until --timeout; hangUp ends both.
func (s *session) reach(c *cli.Context) (l *link, ctx context.Context, hangUp func(), err error) {
	if l, err = s.connect(c); err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := l.limited(c)
	return l, ctx, func() { cancel(); l.close() }, nil
}
