package storage

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/karstlog/karst/protocol/batch"
)

// TestTxnStateFollowsTheLog: two replicas take turns to lead, the other cuts what it has more and copies; both are killed, and
// the one that follows loses power too. Whatever happened, what a log says about transactions is what its batches say.
func TestTxnStateFollowsTheLog(t *testing.T) {
	for seed := range uint64(60) {
		p := newTxnPair(t, seed)
		for range 80 {
			p.step()
			p.check()
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
}

type txnPair struct {
	t     *testing.T
	rand  *rand.Rand
	disks [2]interface {
		KillProcess()
		LoseUnsynced()
	}
	open  [2]func(...func(*Options)) *Log
	logs  [2]*Log
	lead  int
	epoch int32
}

func newTxnPair(t *testing.T, seed uint64) *txnPair {
	p := &txnPair{t: t, rand: rand.New(rand.NewPCG(seed, 3)), epoch: 1}
	for i := range p.logs {
		disk := newDisk(seed)
		p.disks[i] = disk
		p.open[i] = func(change ...func(*Options)) *Log { return openTest(t, disk, change...) }
		p.logs[i] = p.open[i]()
	}
	return p
}

func (p *txnPair) step() {
	leader, follower := p.logs[p.lead], p.logs[1-p.lead]
	switch n := p.rand.IntN(100); {
	case n < 50:
		p.write(leader)
	case n < 72:
		p.copy(leader, follower)
	case n < 80:
		p.lead, p.epoch = 1-p.lead, p.epoch+1
		p.must(leader.TruncateIn(p.epoch, follower.End()))
	case n < 86:
		p.must(follower.TruncateIn(p.epoch, p.rand.Int64N(follower.End()+1)))
	case n < 90:
		p.must(p.logs[p.rand.IntN(2)].Sync())
	case n < 96:
		p.restart(p.rand.IntN(2), func(i int) { p.disks[i].KillProcess() })
	case n < 98:
		p.restart(1-p.lead, func(i int) { p.disks[i].LoseUnsynced() })
	default:
		i := p.rand.IntN(2)
		p.logs[i] = p.open[i](cleanly(mustClose(p.t, p.logs[i])))
	}
}

func (p *txnPair) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *txnPair) restart(i int, end func(int)) {
	l := p.logs[i]
	rp, hw := l.RecoveryPoint(), l.HighWatermark()
	end(i)
	p.logs[i] = p.open[i](point(p.rand.Int64N(rp+1)), func(o *Options) { o.HighWatermark = hw })
}

// write adds a record to a transaction, or ends one with the next epoch.
func (p *txnPair) write(l *Log) {
	pid := 1 + p.rand.Int64N(3)
	g, err := l.TxnGuard(pid)
	p.must(err)
	if g.First >= 0 && p.rand.IntN(2) == 0 {
		_, err := l.AppendMarker(endTxn(pid, g.Epoch+1, p.rand.IntN(2) == 0, 1), p.epoch, t0)
		p.must(err)
		return
	}
	seq := int32(0)
	for _, x := range l.Producers() {
		if x.ID == pid {
			seq = x.LastSequence + 1
		}
	}
	_, err = l.Append(txnal(spec{id: true, pid: pid, epoch: max(g.Epoch, 0), seq: seq, size: p.rand.IntN(700)}).build(), p.epoch, t0)
	p.must(err)
}

func (p *txnPair) copy(from, to *Log) {
	if to.End() == from.End() {
		return
	}
	s, err := from.Read(ReadOptions{From: to.End(), Before: noLimit, MaxBytes: 1 + p.rand.IntN(5000), WholeFirst: true})
	p.must(err)
	b, err := s.Append(nil)
	s.Release()
	p.must(err)
	_, err = to.CopyIn(p.epoch, b)
	p.must(err)
	to.SetHighWatermark(to.End())
	from.SetHighWatermark(to.End())
}

func (p *txnPair) check() {
	for i, l := range p.logs {
		open, aborted := map[int64]int64{}, []AbortedTxn(nil)
		for _, b := range readAll(p.t, l, 0) {
			id := b.ProducerID()
			if first, ok := open[id]; !b.Control() && !ok {
				open[id] = b.BaseOffset()
			} else if b.Control() {
				if kind, _, err := batch.ParseControl(b); err != nil {
					p.t.Error(err)
				} else if ok && kind == batch.ControlAbort {
					aborted = append(aborted, AbortedTxn{id, first, b.BaseOffset()})
				}
				delete(open, id)
			}
		}
		if diff := cmp.Diff(aborted, l.Aborted(0, l.End())); diff != "" {
			p.t.Errorf("log %d: %s", i, diff)
		}
		for _, x := range l.Producers() {
			if first, ok := open[x.ID]; ok && first != x.TxnFirst || !ok && x.TxnFirst >= 0 {
				p.t.Errorf("log %d: producer %d: open from %d, the log has %d, %v", i, x.ID, x.TxnFirst, first, ok)
			}
			delete(open, x.ID)
		}
		if len(open) > 0 {
			p.t.Errorf("log %d: forgotten: %v", i, open)
		}
	}
}
