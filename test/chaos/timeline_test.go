package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/karstlog/karst/internal/check"
	"github.com/karstlog/karst/test/internal/proc"
)

// timeline is what the cluster did about the faults of a test, by the brokers' own logs: the rest of a writer's gap is the
// client's.
type timeline struct {
	t      *testing.T
	c      *proc.Cluster
	l      *load
	victim int // broker
	at     time.Time
	from   []int // where each broker's log was
	fenced []time.Duration
	worst  time.Duration
}

// begin notes that a fault strikes now.
func (w *timeline) begin(victim int) {
	w.victim, w.at, w.from = victim, time.Now(), nil
	for _, b := range w.c.Brokers {
		w.from = append(w.from, len(b.Log()))
	}
}

// end tells when the victim was fenced, which names the new leaders in the same entry of the metadata log, and when the
// first write to the partition was acknowledged after that. The logs of the worst round are kept.
func (w *timeline) end(partition int32) {
	w.t.Helper()
	var logs strings.Builder
	fenced, by := time.Duration(-1), 0
	for i, b := range w.c.Brokers {
		said := b.Log()[w.from[i]:]
		fmt.Fprintf(&logs, "broker %d:\n%s\n", i+1, said)
		if at, ok := fencedAt(said, w.victim); ok && (fenced < 0 || at.Sub(w.at) < fenced) {
			fenced, by = at.Sub(w.at), i+1
		}
	}
	if fenced < 0 { // it came back before anybody was sure
		w.t.Logf("broker %d was not fenced", w.victim)
		return
	}
	w.fenced = append(w.fenced, fenced)
	written, ok := w.firstWrite(partition, fenced)
	if !ok {
		w.t.Logf("broker %d struck: fenced by broker %d after %s, nothing written yet", w.victim, by, short(fenced))
		written = time.Since(w.at)
	} else {
		w.t.Logf("broker %d struck: fenced by broker %d after %s, first write after %s", w.victim, by, short(fenced), short(written))
	}
	if written <= w.worst {
		return
	}
	w.worst = written
	path := filepath.Join(w.t.ArtifactDir(), "worst.log")
	if err := os.WriteFile(path, []byte(logs.String()), 0o644); err != nil {
		w.t.Error(err)
	}
}

func short(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// firstWrite is how long after the fault the first write was acknowledged that completed after the fence; false when none is
// yet.
func (w *timeline) firstWrite(partition int32, fenced time.Duration) (time.Duration, bool) {
	w.t.Helper()
	h, err := w.l.recorder.History()
	if err != nil {
		w.t.Fatal(err)
	}
	struck := w.at.Sub(w.l.began)
	first := time.Duration(-1)
	for _, r := range h.Writes {
		if r.Outcome == check.OK && r.Partition.Index == partition && r.Complete > struck+fenced && (first < 0 || r.Complete < first) {
			first = r.Complete
		}
	}
	return first - struck, first >= 0
}

// fencedAt finds in a broker's log when it took another one for dead.
func fencedAt(log string, victim int) (time.Time, bool) {
	for line := range strings.Lines(log) {
		var entry struct {
			Time   time.Time `json:"time"`
			Msg    string    `json:"msg"`
			Broker int       `json:"broker"`
		}
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "broker is fenced" && entry.Broker == victim {
			return entry.Time, true
		}
	}
	return time.Time{}, false
}

// tell sums up.
func (w *timeline) tell() { tell(w.t, "from the fault to the fence", w.fenced) }
