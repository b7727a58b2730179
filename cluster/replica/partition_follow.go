package replica

import (
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/partition"
)

// logState is what the follower's machine looks at. It does not load the log.
func (p *Partition) logState() partition.LogState {
	return partition.LogState{
		Start: p.log.Start(), End: p.log.End(), HighWatermark: p.log.HighWatermark(),
		LastEpoch: metadata.LeaderEpoch(p.log.LastEpoch()),
	}
}

func (p *Partition) endOf(epoch metadata.LeaderEpoch) partition.EpochEnd {
	e := p.log.EndOf(int32(epoch))
	return partition.EpochEnd{Epoch: metadata.LeaderEpoch(e.Epoch), End: e.End}
}

// follows tells whether this broker follows in that leadership.
func (p *Partition) follows(epoch metadata.LeaderEpoch) bool {
	r := p.role.Load()
	return r.err == nil && !r.leads && r.meta.LeaderEpoch == epoch
}

// learned takes what the leader of epoch says about the high watermark and the log start, after bytes more were copied.
// Consumers who read here are woken.
func (p *Partition) learned(epoch metadata.LeaderEpoch, bytes int, hw, start int64) error {
	p.mu.Lock()
	if !p.follows(epoch) {
		p.mu.Unlock()
		return nil
	}
	appended := p.appended.Add(int64(bytes))
	before := p.log.HighWatermark()
	p.log.SetHighWatermark(hw)
	after := p.log.HighWatermark()
	readable := p.countReadable(appended, before, after, p.log.End())
	var woken []*Waiter
	if p.mu.parked.head != nil {
		woken = p.mu.parked.arrived(readable, nil)
	}
	p.mu.Unlock()
	fire(woken)
	if start = min(start, after); start > p.log.Start() {
		return p.log.AdvanceStart(start)
	}
	return nil
}
