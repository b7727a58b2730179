package group

// Expire removes the offsets that were kept long enough, and the group with its last one. When that is depends on who
// uses the group (KIP-211):
//   - a group that had members: offsets.retention.minutes after the last of them left. While it is rebalancing nothing
//     expires; while it is Stable, the offsets of topics that no consumer of it subscribes to, counted from the commit;
//   - a group that never had members: counted from the commit;
//   - an offset with a retention of its own: at its time, under the same conditions.
//
// Offsets that are in flight stay.
func (g *Group) Expire(now Now) Decision {
	s := &step{now: now}
	if !g.exists() || g.writes.deleting != 0 {
		return s.out
	}
	var tps []TopicPartition
	for _, o := range g.Offsets() {
		if g.expired(&o, now) {
			tps = append(tps, o.TopicPartition)
		}
	}
	f := &flight{offsets: tps}
	if g.class.state == Empty && len(g.class.reserved) == 0 && len(tps) == g.commit.count && len(g.writes.open) == 0 {
		g.bury(s, f)
	} else if len(tps) > 0 {
		g.write(s, f, g.tombstones(tps)...)
	}
	return s.out
}

// expired tells whether an offset was kept long enough.
func (g *Group) expired(o *CommittedOffset, now Now) bool {
	since, ok := g.unusedSince(o)
	if !ok || g.writes.touched[o.TopicPartition] > 0 || g.Subscribed(o.Topic) {
		return false
	}
	if o.ExpireTime >= 0 {
		return now.Wall >= o.ExpireTime
	}
	return now.Wall-since >= g.conf.Retention.Milliseconds()
}

// unusedSince is the time from which the retention of an offset counts; false while it cannot expire.
func (g *Group) unusedSince(o *CommittedOffset) (int64, bool) {
	c := &g.class
	switch {
	case c.state == Stable && c.protocolType == consumerType:
		return o.CommitTime, true
	case c.state != Empty:
		return 0, false
	case c.protocolType == "" || c.since < 0:
		return o.CommitTime, true
	}
	// A tool may have committed after the last member left. Kafka does not look at that, and drops what was just reset.
	return max(c.since, o.CommitTime), true
}
