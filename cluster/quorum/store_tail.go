package quorum

import (
	"sync"

	"github.com/hashicorp/raft"
)

// tailBytes bounds the memory for the last entries, but for a single one that is larger.
const tailBytes = 2 << 20

// tail keeps the last entries in memory. A leader reads the last one each time that it tells a follower of its commits,
// and every new one once for each follower.
type tail struct {
	mu struct {
		sync.Mutex
		logs  []*raft.Log // their indexes follow each other
		bytes int
	}
}

// add takes entries that were written. Nobody changes them any more.
func (t *tail) add(logs []*raft.Log) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range logs {
		if n := len(t.mu.logs); n > 0 && t.mu.logs[n-1].Index+1 != l.Index {
			t.clearLocked()
		}
		t.mu.logs = append(t.mu.logs, l)
		t.mu.bytes += len(l.Data)
	}
	for len(t.mu.logs) > 1 && (t.mu.bytes > tailBytes || len(t.mu.logs) > maxTail) {
		t.mu.bytes -= len(t.mu.logs[0].Data)
		t.mu.logs[0] = nil
		t.mu.logs = t.mu.logs[1:]
	}
}

// maxTail bounds the number of small entries.
const maxTail = 1024

func (t *tail) get(index uint64, l *raft.Log) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.mu.logs) == 0 || index < t.mu.logs[0].Index || index-t.mu.logs[0].Index >= uint64(len(t.mu.logs)) {
		return false
	}
	*l = *t.mu.logs[index-t.mu.logs[0].Index]
	return true
}

// last is the index of the last entry, 0 for none.
func (t *tail) last() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.mu.logs); n > 0 {
		return t.mu.logs[n-1].Index
	}
	return 0
}

func (t *tail) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clearLocked()
}

func (t *tail) clearLocked() { t.mu.logs, t.mu.bytes = nil, 0 }
