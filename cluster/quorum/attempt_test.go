package quorum

import (
	"bytes"
	"errors"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/karstlog/karst/cluster/metadata"
)

func encoded(cs ...metadata.Command) [][]byte {
	var out [][]byte
	for _, c := range cs {
		out = append(out, metadata.Encode([]metadata.Command{c}))
	}
	return out
}

// told is the verdict, if there is one.
func told(a *attempt) *verdict {
	select {
	case <-a.done:
		return &a.verdict
	default:
		return nil
	}
}

// machineOf is a machine whose proposer is 7.
func machineOf() *machine {
	m := newMachine(metadata.Empty(), func(error) {})
	m.proposer = 7
	return m
}

func (m *machine) entry(index, term uint64, spans []span, commands ...[]byte) {
	m.ApplyBatch([]*raft.Log{{Index: index, Term: term, Type: raft.LogCommand, Data: appendEntry(nil, spans, commands...)}})
}

// TestWhatTheLogTellsAProposer walks through all that may become of an attempt.
func TestWhatTheLogTellsAProposer(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(m *machine, a *attempt)
		want    func(v *verdict) bool
	}{
		"applied": {
			func(m *machine, a *attempt) {
				m.entry(5, 2, []span{{7, a.first, 2, 2}}, a.commands...)
			},
			func(v *verdict) bool {
				return v != nil && v.errs[0] == nil && errors.As(v.errs[1], new(*metadata.TopicExistsError))
			},
		},
		"of another proposer": {
			func(m *machine, a *attempt) {
				m.entry(5, 2, []span{{8, a.first, 2, 2}}, a.commands...)
			},
			func(v *verdict) bool { return v == nil },
		},
		"late, in a later leadership": {
			func(m *machine, a *attempt) {
				m.entry(5, 3, []span{{7, a.first, 2, 2}}, a.commands...)
			},
			func(v *verdict) bool { return v != nil && v.again },
		},
		"passed by a later leadership": {
			func(m *machine, a *attempt) { m.entry(5, 3, nil) },
			func(v *verdict) bool { return v != nil && v.again },
		},
		"nothing yet": {
			func(m *machine, a *attempt) { m.entry(5, 2, nil) },
			func(v *verdict) bool { return v == nil },
		},
		"in a snapshot, the leader has answered": {
			func(m *machine, a *attempt) {
				m.attempts.answered(a, Answer{Outcome: OutcomeApplied, Index: 9, Refused: []int32{1}})
				restore(m, 9)
			},
			func(v *verdict) bool {
				return v != nil && v.errs[0] == nil && errors.As(v.errs[1], new(*metadata.PreconditionError))
			},
		},
		"in a snapshot, the leader answers then": {
			func(m *machine, a *attempt) {
				restore(m, 9)
				m.attempts.answered(a, Answer{Outcome: OutcomeApplied, Index: 9, Refused: []int32{1, 77, -1}})
			},
			func(v *verdict) bool {
				return v != nil && v.errs[0] == nil && errors.As(v.errs[1], new(*metadata.PreconditionError))
			},
		},
		"behind a snapshot": {
			func(m *machine, a *attempt) {
				restore(m, 9)
				m.entry(10, 2, []span{{7, a.first, 2, 2}}, a.commands...)
			},
			func(v *verdict) bool { return v != nil && v.errs[0] == nil && v.errs[1] != nil },
		},
		"perhaps in a snapshot": {
			func(m *machine, a *attempt) {
				restore(m, 9)
				m.entry(10, 3, nil)
			},
			func(v *verdict) bool { return v != nil && errors.As(v.err, new(*UnknownOutcomeError)) },
		},
		"the node stops": {
			func(m *machine, a *attempt) { m.attempts.stop() },
			func(v *verdict) bool { return v != nil && errors.As(v.err, new(*UnknownOutcomeError)) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := machineOf()
			settled := 0
			a := m.attempts.begin(2, encoded(topic(1), topic(1)), func() { settled++ })
			c.happens(m, a)
			v := told(a)
			if !c.want(v) {
				t.Errorf("verdict %+v", v)
			}
			if (v != nil) != (settled == 1) {
				t.Errorf("told %d times", settled)
			}
			m.attempts.settle(a, verdict{}) // a second time changes nothing
			m.attempts.stop()
		})
	}
}

// restore puts a snapshot in place of the entries up to index.
func restore(m *machine, index uint64) {
	im, _, err := metadata.Empty().Apply(index, topic(4))
	if err != nil {
		panic(err)
	}
	m.install(snapshotHead{generation: 1, index: index, term: 2}, im)
	m.attempts.restored(index)
}

// TestLateCommandsAreVoidEverywhere: who did not propose them skips them as well.
func TestLateCommandsAreVoidEverywhere(t *testing.T) {
	m := machineOf()
	m.entry(5, 4, []span{{8, 1, 3, 1}, {9, 1, 4, 1}, {8, 2, 0, 1}}, encoded(topic(1), topic(2), topic(3))...)
	if _, ok := m.image.Load().Topic(topic(2).Name); !ok || m.image.Load().TopicCount() != 1 {
		t.Errorf("%d topics", m.image.Load().TopicCount())
	}
}

// TestAttemptsThatBeginLate are settled at once.
func TestAttemptsThatBeginLate(t *testing.T) {
	m := machineOf()
	m.entry(5, 3, nil)
	if v := told(m.attempts.begin(2, nil, nil)); v == nil || !v.again {
		t.Errorf("of an older term: %+v", v)
	}
	m.attempts.stop()
	if v := told(m.attempts.begin(3, nil, nil)); v == nil || !errors.As(v.err, new(*StoppedError)) {
		t.Errorf("after the end: %+v", v)
	}
}

// TestEntriesOfAnEarlierInstanceAreSkipped: Raft replays its log when it begins anew in the same process.
func TestEntriesOfAnEarlierInstanceAreSkipped(t *testing.T) {
	m := machineOf()
	for range 2 {
		m.entry(5, 2, nil, encoded(topic(1))...)
		m.entry(6, 2, nil, encoded(metadata.DeleteTopic{ID: topic(1).ID})...)
	}
	if m.image.Load().TopicCount() != 0 || m.image.Load().Index() != 6 {
		t.Errorf("%d topics at %d", m.image.Load().TopicCount(), m.image.Load().Index())
	}
}

// TestEntriesOfOneBrokerReleases are commands alone.
func TestEntriesOfOneBrokerReleases(t *testing.T) {
	data := bytes.Join(encoded(topic(1), topic(2)), nil)
	spans, cs, err := decodeEntry(data)
	if err != nil || len(spans) != 0 || len(cs) != 2 {
		t.Errorf("%v, %d commands, %v", spans, len(cs), err)
	}
}

// FuzzEntry: whatever stands in an entry is read or refused, and what is read is written the same.
func FuzzEntry(f *testing.F) {
	f.Add(appendEntry(nil, nil))
	f.Add(appendEntry(nil, []span{{1 << 60, 5, 3, 1}, {2, 1 << 40, 3, 0}, {3, 9, 3, 2}}, encoded(topic(1), topic(2), topic(3))...))
	f.Add(bytes.Join(encoded(topic(1), topic(2)), nil))
	f.Add([]byte{entryMark, entryVersion, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		spans, cs, err := decodeEntry(b)
		if err != nil {
			if !errors.As(err, new(*metadata.CorruptError)) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		again, cs2, err := decodeEntry(appendEntry(nil, spans, encoded(cs...)...))
		if err != nil || len(again) != len(spans) || len(cs2) != len(cs) {
			t.Fatalf("%d of %d spans, %d of %d commands, %v", len(again), len(spans), len(cs2), len(cs), err)
		}
	})
}

// FuzzSnapshotHead: a head is read or is damage; a snapshot without one is the image alone.
func FuzzSnapshotHead(f *testing.F) {
	im, _, _ := metadata.Empty().Apply(4, topic(1))
	var b bytes.Buffer
	if err := im.WriteSnapshot(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add(append(snapshotHead{generation: 3, index: 4, term: 2}.encode(), b.Bytes()...))
	f.Fuzz(func(t *testing.T, b []byte) {
		head, im, err := readSnapshot(bytes.NewReader(b))
		if err == nil && bytes.HasPrefix(b, []byte(snapshotMagic)) && !bytes.HasPrefix(b, head.encode()) {
			t.Fatalf("head %+v, image of %d", head, im.Index())
		}
	})
}
