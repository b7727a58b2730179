package group

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// shell drives one group as group/coordinator does, with a log in memory. Records go through their bytes on the way.
type shell struct {
	t    *testing.T
	conf Config
	g    *Group
	now  Now

	hold    bool // writes stay uncommitted until land
	log     []Record
	open    []openWrite
	tickets Ticket
	answer  func(Reply)
	wrote   func([]Record)
}

type openWrite struct {
	w  Write
	rs []Record
}

func newShell(t *testing.T) *shell {
	s := &shell{t: t, conf: DefaultConfig(), now: Now{Mono: time.Hour, Wall: 1_700_000_000_000}}
	s.g = New("g", &s.conf)
	s.answer, s.wrote = func(Reply) {}, func([]Record) {}
	return s
}

func (s *shell) ticket() Ticket { s.tickets++; return s.tickets }

func (s *shell) decide(r Request) Ticket {
	t := s.ticket()
	s.handle(s.g.Decide(s.now, t, r))
	return t
}

// handle does what a decision asks for.
func (s *shell) handle(d Decision) {
	for _, r := range d.Replies {
		s.answer(r)
	}
	if (d.Write != 0) != (len(d.Records) > 0) {
		s.t.Fatalf("write %d with %d records", d.Write, len(d.Records))
	}
	if d.Write == 0 {
		return
	}
	s.wrote(d.Records)
	s.open = append(s.open, openWrite{d.Write, d.Records})
	if !s.hold {
		s.land()
	}
}

// land commits the oldest write.
func (s *shell) land() {
	if len(s.open) == 0 {
		return
	}
	w := s.open[0]
	s.open = s.open[1:]
	for _, r := range w.rs {
		s.apply(r)
	}
	s.handle(s.g.Committed(s.now, w.w))
}

func (s *shell) apply(r Record) {
	back := throughBytes(s.t, r)
	s.log = append(s.log, back)
	s.g.Apply(back)
}

// throughBytes encodes and decodes a record.
func throughBytes(t *testing.T, r Record) Record {
	t.Helper()
	value := AppendValue(nil, r)
	if r.Tombstone() != (value == nil) {
		t.Fatalf("value of %+v is %x", r, value)
	}
	back, err := DecodeRecord(AppendKey(nil, r), value)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(r, back, cmp.Comparer(func(a, b []byte) bool { return string(a) == string(b) })); d != "" {
		t.Fatalf("a record changes when it is stored (-want +got):\n%s", d)
	}
	return back
}

// pass lets time go by, from deadline to deadline.
func (s *shell) pass(d time.Duration) {
	end := s.now.Mono + d
	for range 10_000 {
		at, ok := s.g.NextDeadline()
		if !ok || at > end {
			s.to(end)
			return
		}
		s.to(max(at, s.now.Mono))
		s.handle(s.g.Tick(s.now))
	}
	s.t.Fatal("deadlines without end")
}

func (s *shell) to(mono time.Duration) {
	s.now.Wall += (mono - s.now.Mono).Milliseconds()
	s.now.Mono = mono
}

// failover drops the group with everything that is not committed, and loads it from the log.
func (s *shell) failover() {
	s.open = nil
	s.g = New("g", &s.conf)
	for _, r := range s.log {
		s.g.Apply(r)
	}
	s.g.Resume(s.now)
}
