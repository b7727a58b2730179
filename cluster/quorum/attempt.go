package quorum

import (
	"errors"
	"slices"
	"sync"

	"github.com/karstlog/karst/cluster/metadata"
)

// attempt is one Proposal of this node under way. What became of it is told by the log itself, when this node applies it:
//
//   - its entry comes, in the term that the proposal names: each command has its error, or none;
//   - its entry comes in another term, or an entry of a newer term comes first: nothing of it ever takes effect, and it is
//     made again;
//   - a snapshot takes the place of entries: the leader's answer tells, if there is one, otherwise it is not known.
//
// The attempts' mutex guards what changes.
type attempt struct {
	first, term uint64
	commands    [][]byte
	done        chan struct{} // closed when verdict is set
	settled     func()        // called then; may be nil
	verdict     verdict

	answer  *Answer // the leader says it is applied
	blurred bool    // a snapshot may have swallowed it
}

// verdict is what became of an attempt.
type verdict struct {
	errs  []error // of each command; nil: see the others
	again bool    // nothing took effect, nor ever will
	err   error
}

// attempts are those of this node.
type attempts struct {
	mu struct {
		sync.Mutex
		next     uint64 // number of the next command
		open     map[uint64]*attempt
		term     uint64 // the newest that an applied entry had
		restored uint64 // index of the newest snapshot put in place of entries
		stopped  error
	}
}

func newAttempts() *attempts {
	as := &attempts{}
	as.mu.open = map[uint64]*attempt{}
	return as
}

// begin makes an attempt. It may be settled at once.
func (as *attempts) begin(term uint64, commands [][]byte, settled func()) *attempt {
	a := &attempt{term: term, commands: commands, done: make(chan struct{}), settled: settled}
	as.mu.Lock()
	defer as.mu.Unlock()
	a.first = as.mu.next
	as.mu.next += uint64(max(1, len(commands)))
	switch {
	case as.mu.stopped != nil:
		a.finish(verdict{err: as.mu.stopped})
	case as.mu.term > term:
		a.finish(verdict{again: true})
	default:
		as.mu.open[a.first] = a
	}
	return a
}

func (a *attempt) finish(v verdict) {
	a.verdict = v
	close(a.done)
	if a.settled != nil {
		a.settled()
	}
}

// settle ends an attempt, unless that has happened.
func (as *attempts) settle(a *attempt, v verdict) {
	as.mu.Lock()
	defer as.mu.Unlock()
	as.settleLocked(a, v)
}

func (as *attempts) settleLocked(a *attempt, v verdict) {
	if as.mu.open[a.first] == a {
		delete(as.mu.open, a.first)
		a.finish(v)
	}
}

// answered notes that the leader has applied an attempt. This node's own entry will tell, unless a snapshot took its place.
func (as *attempts) answered(a *attempt, answer Answer) {
	as.mu.Lock()
	defer as.mu.Unlock()
	a.answer = &answer
	if answer.Index <= as.mu.restored {
		as.settleLocked(a, a.answerVerdict())
	}
}

// answerVerdict takes the leader's word, which does not say why a command was refused.
func (a *attempt) answerVerdict() verdict {
	v := verdict{errs: make([]error, max(1, len(a.commands)))}
	for _, i := range a.answer.Refused {
		if int(i) < len(v.errs) && i >= 0 {
			v.errs[i] = &metadata.PreconditionError{Reason: "refused before this broker caught up with a snapshot"}
		}
	}
	return v
}

// outcome is what one run of this node came to when it was applied.
type outcome struct {
	first uint64
	void  bool // it was of another term
	errs  []error
}

// applied settles what a batch of entries has told: the runs of this node, and the newest term among the entries.
func (as *attempts) applied(outcomes []outcome, term uint64) {
	as.mu.Lock()
	defer as.mu.Unlock()
	for _, o := range outcomes {
		if a := as.mu.open[o.first]; a != nil {
			as.settleLocked(a, verdict{errs: o.errs, again: o.void})
		}
	}
	if term <= as.mu.term {
		return
	}
	as.mu.term = term
	for _, a := range as.openLocked() {
		switch {
		case a.term >= term:
		case a.answer != nil:
			as.settleLocked(a, a.answerVerdict())
		case a.blurred:
			as.settleLocked(a, verdict{err: &UnknownOutcomeError{errSnapshot}})
		default:
			as.settleLocked(a, verdict{again: true})
		}
	}
}

var errSnapshot = errors.New("a snapshot took the place of the entries that would tell")

// restored says that a snapshot took the place of all entries up to index.
func (as *attempts) restored(index uint64) {
	as.mu.Lock()
	defer as.mu.Unlock()
	as.mu.restored = max(as.mu.restored, index)
	for _, a := range as.openLocked() {
		a.blurred = true
		if a.answer != nil && a.answer.Index <= index {
			as.settleLocked(a, a.answerVerdict())
		}
	}
}

// openLocked is a copy, in the order of proposing.
func (as *attempts) openLocked() []*attempt {
	list := make([]*attempt, 0, len(as.mu.open))
	for _, a := range as.mu.open {
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b *attempt) int { return int(a.first) - int(b.first) })
	return list
}

// olderThan tells whether one of an older term is open.
func (as *attempts) olderThan(term uint64) bool {
	as.mu.Lock()
	defer as.mu.Unlock()
	for _, a := range as.mu.open {
		if a.term < term {
			return true
		}
	}
	return false
}

// stop ends all, and those that begin later.
func (as *attempts) stop() {
	as.mu.Lock()
	defer as.mu.Unlock()
	as.mu.stopped = &StoppedError{}
	for _, a := range as.openLocked() {
		as.settleLocked(a, verdict{err: &UnknownOutcomeError{&StoppedError{}}})
	}
}
