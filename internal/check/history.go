package check

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"
)

// Write is one record that a producer sent. Times are of one clock that all clients share.
type Write struct {
	Process    int           `json:"process"`
	Seq        int64         `json:"seq"`   // grows with each operation of the process
	Value      int64         `json:"value"` // no other record has it
	Partition  Partition     `json:"partition"`
	Invoke     time.Duration `json:"invoke"`
	Complete   time.Duration `json:"complete"`
	Outcome    Outcome       `json:"outcome"`
	Offset     int64         `json:"offset"` // where it was said to be; -1 when nobody said
	Acks       int8          `json:"acks"`   // 0, 1, or -1 for all
	Idempotent bool          `json:"idempotent"`
	Txn        int64         `json:"txn"` // transaction it belongs to, 0 for none
}

// Read is one record that a consumer was given.
type Read struct {
	Process   int           `json:"process"`
	Session   int           `json:"session"` // offsets grow inside one session of a process
	Seq       int64         `json:"seq"`     // grows with each operation of the process
	Partition Partition     `json:"partition"`
	Offset    int64         `json:"offset"`
	Value     int64         `json:"value"`
	Damaged   bool          `json:"damaged"`
	Committed bool          `json:"committed"` // at isolation read_committed
	Txn       int64         `json:"txn"`       // transaction that read it, 0 for none
	Invoke    time.Duration `json:"invoke"`
	Complete  time.Duration `json:"complete"`
}

// Bound is a limit of a partition that clients see.
type Bound string

// The bounds. None of them ever goes back for a client.
const (
	HighWatermark Bound = "hw"
	StableOffset  Bound = "lso"
	LogStart      Bound = "start"
)

// Sight is what a client was told about a bound. Bounds never go back for one process: it refuses leaders older than
// the newest it knows, so it is not told by one that has been deposed (KIP-320).
type Sight struct {
	Process   int           `json:"process"`
	Bound     Bound         `json:"bound"`
	Partition Partition     `json:"partition"`
	Offset    int64         `json:"offset"`
	Invoke    time.Duration `json:"invoke"`
	Complete  time.Duration `json:"complete"`
}

// Entry is one record of a log: what the checkers compare between replicas, and what the final reader found.
type Entry struct {
	Offset int64
	Value  int64
	Epoch  int32 // of the leader; -1 when it is not known
}

// Dump is the log of one replica, read when all was quiet.
type Dump struct {
	Broker        int32
	Partition     Partition
	Start         int64
	HighWatermark int64
	Entries       []Entry
}

// Txn is how a transaction ended, as its producer knows it. What it wrote and read says so itself.
type Txn struct {
	ID       int64         `json:"id"` // 1 and up
	Process  int           `json:"process"`
	Invoke   time.Duration `json:"invoke"` // before its first operation
	Decide   time.Duration `json:"decide"` // before its end was asked for; 0: it was not, or nobody knows
	Complete time.Duration `json:"complete"`
	Commit   bool          `json:"commit"`  // what was asked for
	Outcome  Outcome       `json:"outcome"` // Failed: it was aborted, whatever was asked for
}

func (t *Txn) committed() bool { return t.Outcome == OK && t.Commit }

// aborted: nobody but its producer can commit a transaction, so one that was not asked to commit never did.
func (t *Txn) aborted() bool { return t.Outcome == Failed || !t.Commit }

// Pending is a transaction that a partition holds for undecided.
type Pending struct {
	Partition  Partition
	ProducerID int64
	First      int64 // offset
}

// History is what clients did and saw. Final is each partition's log as a fresh reader found it in the end, at isolation
// read_committed if there were transactions.
type History struct {
	Writes []Write
	Reads  []Read
	Sights []Sight
	Dumps  []Dump
	Txns   []Txn
	Open   []Pending // after all was quiet
	Final  map[Partition][]Entry
	End    time.Duration // when the history was closed
}

// Recorder keeps a history as it happens: in memory, and, one line of JSON for each invocation and each completion, in a
// file, so that what a test that was killed had seen is not lost. It may be used by many goroutines.
type Recorder struct {
	out io.Writer
	mu  struct {
		sync.Mutex
		writes  map[opKey]Write
		history History
		err     error
	}
}

type opKey struct {
	process int
	seq     int64
}

// line is one line of a history file.
type line struct {
	Write *Write `json:"write,omitempty"`
	Read  *Read  `json:"read,omitempty"`
	Sight *Sight `json:"sight,omitempty"`
	Txn   *Txn   `json:"txn,omitempty"`
}

// NewRecorder returns a recorder that appends to out; nil keeps the history in memory only.
func NewRecorder(out io.Writer) *Recorder {
	r := &Recorder{out: out}
	r.mu.writes = map[opKey]Write{}
	return r
}

// Write notes a record that is about to be sent (Outcome Unknown), and again what became of it.
func (r *Recorder) Write(w Write) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.writes[opKey{w.Process, w.Seq}] = w
	r.putLocked(line{Write: &w})
}

// Read notes a record that a consumer was given.
func (r *Recorder) Read(x Read) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.history.Reads = append(r.mu.history.Reads, x)
	r.putLocked(line{Read: &x})
}

// Sight notes a bound that a client was told.
func (r *Recorder) Sight(s Sight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.history.Sights = append(r.mu.history.Sights, s)
	r.putLocked(line{Sight: &s})
}

// Txn notes how a transaction ended.
func (r *Recorder) Txn(t Txn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.history.Txns = append(r.mu.history.Txns, t)
	r.putLocked(line{Txn: &t})
}

func (r *Recorder) putLocked(l line) {
	if r.out == nil || r.mu.err != nil {
		return
	}
	b, err := json.Marshal(l)
	if err == nil {
		_, err = r.out.Write(append(b, '\n'))
	}
	r.mu.err = err
}

// History is what was noted so far, writes in the order of process and sequence. The error is the file's.
func (r *Recorder) History() (History, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.mu.history
	h.Reads, h.Sights, h.Txns = slices.Clone(h.Reads), slices.Clone(h.Sights), slices.Clone(h.Txns)
	h.Writes = sortedWrites(r.mu.writes)
	return h, r.mu.err
}

func sortedWrites(m map[opKey]Write) []Write {
	return slices.SortedFunc(maps.Values(m), func(a, b Write) int {
		return cmp.Or(cmp.Compare(a.Process, b.Process), cmp.Compare(a.Seq, b.Seq))
	})
}

// Load reads a history file. A last line that was cut off is ignored.
func Load(in io.Reader) (History, error) {
	r := NewRecorder(nil)
	s := bufio.NewScanner(in)
	s.Buffer(nil, 16<<20)
	var bad error
	for n := 1; s.Scan(); n++ {
		if bad != nil {
			return History{}, bad
		}
		var l line
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			bad = fmt.Errorf("history line %d: %w", n, err)
			continue
		}
		switch {
		case l.Write != nil:
			r.Write(*l.Write)
		case l.Read != nil:
			r.Read(*l.Read)
		case l.Sight != nil:
			r.Sight(*l.Sight)
		case l.Txn != nil:
			r.Txn(*l.Txn)
		}
	}
	if err := s.Err(); err != nil {
		return History{}, err
	}
	return r.History()
}
