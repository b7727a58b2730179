package replica

import (
	"slices"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

type committed struct {
	calls atomic.Int32
	err   error
}

func (c *committed) Committed(_ *CommitWait, err error) {
	c.calls.Add(1)
	c.err = err
}

// A list of waits gives back, for any order of insertions and removals, exactly those up to an end, in order.
func TestCommitListTakesInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l commitList
		var model []*CommitWait
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				w := &CommitWait{End: rapid.Int64Range(0, 20).Draw(t, "end")}
				l.insert(w)
				at, _ := slices.BinarySearchFunc(model, w.End+1, func(w *CommitWait, end int64) int { return int(w.End - end) })
				model = slices.Insert(model, at, w)
			},
			"remove": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(model)-1).Draw(t, "which")
				l.remove(model[i])
				if model[i].listed {
					t.Fatal("removed and still listed")
				}
				model = slices.Delete(model, i, i+1)
			},
			"take": func(t *rapid.T) {
				end := rapid.Int64Range(-1, 21).Draw(t, "end")
				for w := l.take(end, nil); w != nil; w = w.next {
					if len(model) == 0 || w != model[0] || w.listed {
						t.Fatalf("took a wait for %d out of turn", w.End)
					}
					model = model[1:]
				}
				if len(model) > 0 && model[0].End <= end {
					t.Fatalf("left a wait for %d at %d", model[0].End, end)
				}
			},
			"": func(t *rapid.T) {
				var forward, backward []*CommitWait
				for w := l.head; w != nil; w = w.next {
					forward = append(forward, w)
				}
				for w := l.tail; w != nil; w = w.prev {
					backward = append(backward, w)
				}
				slices.Reverse(backward)
				if !slices.Equal(forward, model) || !slices.Equal(backward, model) {
					t.Fatalf("list has %d forward, %d backward, want %d", len(forward), len(backward), len(model))
				}
			},
		})
	})
}

func TestWaiterWakesOnceWhenBytesSuffice(t *testing.T) {
	var l spotList
	woken := 0
	w := &Waiter{Wake: func() { woken++ }}
	w.Arm(100, 2)
	a, b := &spot{w: w, seen: 1000}, &spot{w: w, seen: 0}
	l.insert(a)
	l.insert(b)
	fire(l.arrived(1000, nil)) // b: 1000 at once
	if woken != 1 {
		t.Fatalf("woken %d times", woken)
	}
	fire(l.arrived(5000, nil))
	w.Fire()
	if woken != 1 {
		t.Errorf("woken %d times by what came later", woken)
	}
	w.Arm(100, 2)
	fire(l.arrived(5040, nil)) // 40 from each of two spots
	if woken != 1 {
		t.Errorf("woken by 80 of 100 bytes")
	}
	if !w.Disarm() || w.Disarm() {
		t.Error("an armed waiter can be disarmed once")
	}
	l.remove(a)
	l.remove(b)
	if l.head != nil || a.listed || b.listed {
		t.Error("removed spots are still listed")
	}
}
