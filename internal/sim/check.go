package sim

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/check"
	"github.com/karstlog/karst/internal/uuid"
)

// truth is what a partition may never lose: what some leader has found committed, and what was acknowledged.
type truth struct {
	recs    []rec           // committed; the index is the offset
	firm    int64           // up to here they must be kept; what is above may be lost with nobody to blame
	acked   map[int64]int64 // value by offset, acknowledged with acks=all
	leaders map[metadata.LeaderEpoch]uuid.UUID
	current *replica // leads in the newest epoch
	epoch   metadata.LeaderEpoch

	bar     int            // the least in-sync members that records were committed with since all replicas were in sync
	damaged map[*node]bool // lost power or disk since they were in sync
	losses  int            // how often records were lost that could not be kept
}

func (w *World) truthOf(p part) *truth {
	t := w.truths[p]
	if t == nil {
		t = &truth{acked: map[int64]int64{}, leaders: map[metadata.LeaderEpoch]uuid.UUID{}, epoch: -1, damaged: map[*node]bool{}}
		t.bar = minInsync(w.newest(), p.name)
		w.truths[p] = t
		w.parts = append(w.parts, p)
	}
	return t
}

func (p part) checked() check.Partition {
	return check.Partition{Topic: fmt.Sprintf("%s/%s", p.name, p.topic), Index: p.index}
}

func valueOf(payload []byte) (int64, error) { return check.Value(payload) }

// imageAt is the image after the entry of that index, as the first who applied it found it.
func (w *World) imageAt(index int) *metadata.Image {
	for len(w.images) <= index {
		i := len(w.images)
		im := w.images[i-1]
		for _, p := range w.raft.log[i-1].proposals {
			for _, c := range p.commands {
				next, d, err := im.Apply(uint64(i), c)
				if w.say != nil {
					w.sayCommand(i, c, d, err)
				}
				if err == nil {
					w.checkDelta(im, next, d, c)
				}
				im = next
			}
		}
		w.images = append(w.images, im)
	}
	return w.images[index]
}

func (w *World) sayCommand(index int, c metadata.Command, d metadata.Delta, err error) {
	w.logf("%d: %T %v", index, c, err)
	for _, t := range d.Topics {
		if t.After == nil {
			continue
		}
		for i, p := range t.After.Partitions {
			if t.Before == nil || i >= len(t.Before.Partitions) || t.Before.Partitions[i].PartitionEpoch != p.PartitionEpoch {
				w.logf("    %s-%d: leader %d epoch %d, isr %v elr %v, last known %v %v, replicas %v adding %v removing %v, partition epoch %d", t.Name, i,
					p.Leader, p.LeaderEpoch, p.ISR, p.ELR, p.LastKnown, p.Unproven, p.Replicas, p.Adding, p.Removing, p.PartitionEpoch)
			}
		}
	}
}

// newest is the image after all that is committed.
func (w *World) newest() *metadata.Image { return w.imageAt(len(w.raft.log)) }

// checkImage: one log leads to one image.
func (w *World) checkImage(n *node) {
	want := w.imageAt(n.applied)
	if n.image.Checksum() != want.Checksum() {
		w.fail("broker %d has another image at %d: checksum %x, another broker %x", n.id, n.applied, n.image.Checksum(), want.Checksum())
	}
}

// checkDelta holds what a command did to partitions against the rules of their epochs.
func (w *World) checkDelta(_, after *metadata.Image, d metadata.Delta, c metadata.Command) {
	for _, t := range d.Topics {
		if t.Before == nil || t.After == nil {
			continue
		}
		for i := range t.Before.Partitions {
			a, b := &t.Before.Partitions[i], &t.After.Partitions[i]
			if a.PartitionEpoch == b.PartitionEpoch && a.LeaderEpoch == b.LeaderEpoch && a.Leader == b.Leader && slices.Equal(a.ISR, b.ISR) {
				continue
			}
			if why := brokenStep(a, b, after); why != "" {
				w.fail("%s-%d: %T: %s: %+v became %+v", t.Name, i, c, why, *a, *b)
			}
		}
	}
}

func brokenStep(a, b *metadata.Partition, after *metadata.Image) string {
	switch {
	case b.PartitionEpoch <= a.PartitionEpoch:
		return "a change without a new partition epoch"
	case b.LeaderEpoch < a.LeaderEpoch:
		return "the leader epoch went back"
	case b.Leader != a.Leader && b.LeaderEpoch == a.LeaderEpoch:
		return "another leader in the same epoch"
	case b.Leader != metadata.NoBroker && !slices.Contains(b.ISR, b.Leader):
		return "the leader is not in sync"
	case len(b.ISR)+len(b.ELR) == 0:
		return "nobody is left who may have everything"
	}
	for _, id := range b.ISR {
		x, ok := after.Broker(id)
		// With the longest log of all that may have everything it leads, if it leaves or not: nobody else can.
		recovered := a.Unproven && id == b.Leader && slices.Contains(a.LastKnown, id)
		if joined := !slices.Contains(a.ISR, id) && !slices.Contains(a.ELR, id); joined && (!ok || x.Fenced || x.Draining && !recovered) {
			return fmt.Sprintf("broker %d joined the in-sync set although it may not", id)
		}
	}
	return ""
}

// checkAppend: one leader in an epoch, in one start of its process.
func (w *World) checkAppend(r *replica) {
	t := w.truthOf(r.part)
	if who, ok := t.leaders[r.view.LeaderEpoch]; ok && who != r.n.incarnation {
		w.fail("%s: two leaders append in epoch %d", r, r.view.LeaderEpoch)
	}
	t.leaders[r.view.LeaderEpoch] = r.n.incarnation
}

// checkLeader: who begins to lead has everything that was committed or acknowledged.
func (w *World) checkLeader(r *replica) {
	w.checkAppend(r)
	t := w.truthOf(r.part)
	topic, ok := w.newest().TopicByID(r.part.topic)
	if !ok || topic.Partitions[r.part.index].LeaderEpoch > r.view.LeaderEpoch {
		return // its image is old: nobody follows it
	}
	if r.view.LeaderEpoch > t.epoch {
		t.current, t.epoch = r, r.view.LeaderEpoch
	}
	if same := commonPrefix(remnant{r.base, r.recs}, t.recs); same >= t.firm && same < int64(len(t.recs)) {
		w.logf("%s-%d: lost from %d to %d", r.part.name, r.part.index, same, len(t.recs))
		t.recs = t.recs[:same]
		t.losses++
	}
	w.checkHolds(r, t, 0)
}

func (w *World) checkHolds(r *replica, t *truth, from int64) {
	for i := max(from, r.base); i < int64(len(t.recs)); i++ { // below the base they were deleted
		if got, ok := r.at(i); !ok || got != t.recs[i] {
			w.fail("%s leads epoch %d without committed offset %d: has %v (%v), committed is %v; log %d to %d", r, r.view.LeaderEpoch, i, got, ok, t.recs[i], r.base, r.log.End())
			return
		}
	}
	for _, offset := range sortedKeys(t.acked) {
		if got, ok := r.at(offset); offset >= r.base && offset >= from && (!ok || got.value != t.acked[offset]) {
			w.fail("%s leads epoch %d without acknowledged offset %d: has %v (%v), acknowledged value %d", r, r.view.LeaderEpoch, offset, got, ok, t.acked[offset])
			return
		}
	}
}

func sortedKeys[V any](m map[int64]V) []int64 {
	ks := make([]int64, 0, len(m))
	for k := range m {
		ks = append(ks, k)
	}
	slices.Sort(ks)
	return ks
}

func (r *replica) at(offset int64) (rec, bool) {
	if offset < r.base || offset >= r.base+int64(len(r.recs)) {
		return rec{}, false
	}
	return r.recs[offset-r.base], true
}

// checkCommitted: logs are the same up to the high watermark, whoever knows it.
func (w *World) checkCommitted(r *replica, hw int64) {
	t := w.truthOf(r.part)
	for i := max(r.base, r.checked); i < hw; i++ {
		got, ok := r.at(i)
		if !ok {
			w.fail("%s: high watermark %d above what is there, %d", r, hw, i)
			return
		}
		w.mix(uint64(i), uint64(got.value), uint64(got.epoch))
		switch {
		case i >= t.firm && r.view.LeaderEpoch < t.epoch && (i >= int64(len(t.recs)) || t.recs[i] != got) && t.losses > 0:
			return // of a past that was lost
		case i < int64(len(t.recs)) && t.recs[i] != got:
			w.fail("%s: committed offset %d holds %v, elsewhere %v", r, i, got, t.recs[i])
			return
		case i > int64(len(t.recs)):
			w.fail("%s: committed offset %d, the committed log ends at %d", r, i, len(t.recs))
			return
		case i == int64(len(t.recs)):
			t.recs = append(t.recs, got)
			if c := t.current; c != nil && c != r && c.leader != nil && c.n.up && c.view.LeaderEpoch > r.view.LeaderEpoch {
				w.checkHolds(c, t, i)
			}
		}
	}
	r.checked = max(r.checked, hw)
	if r == t.current && len(t.damaged) == 0 {
		t.firm = max(t.firm, hw)
	}
}

// checkCut: what was verified above the cut will have to be verified again.
func (w *World) checkCut(r *replica, to int64) { r.checked = min(r.checked, to) }

// checkSeen: a consumer is given only what is committed, save by a leader that does not know yet that it is none, whose
// past was lost.
func (w *World) checkSeen(p part, epoch metadata.LeaderEpoch, offset int64, x rec) {
	t := w.truthOf(p)
	if t.losses > 0 && (offset >= t.firm || epoch < t.epoch) {
		return
	}
	if offset >= int64(len(t.recs)) || t.recs[offset] != x {
		w.fail("%s-%d: a consumer was given %v at %d, which is not what is committed", p.name, p.index, x, offset)
	}
}

// checkReadable: a consumer that has seen records finds them.
func (w *World) checkReadable(r *replica, from int64) {
	if t := w.truthOf(r.part); from <= int64(len(t.recs)) && r == t.current {
		w.fail("%s: a consumer at %d is out of range, the log ends at %d", r, from, r.log.End())
	}
}

// acked notes an acknowledgement.
func (w *World) acked(p part, ws []check.Write, offset int64, acks int8) {
	if acks != -1 {
		return
	}
	w.ackCount += int64(len(ws))
	t := w.truthOf(p)
	for i, x := range ws {
		if w.excused[x.Value] {
			continue
		}
		if at := offset + int64(i); at < int64(len(t.recs)) && t.recs[at].value != x.Value && t.losses == 0 {
			w.fail("%s-%d: value %d was acknowledged at %d, where %d is committed", p.name, p.index, x.Value, at, t.recs[at].value)
		}
		t.acked[offset+int64(i)] = x.Value
	}
}

// afterLoss works out what had to survive a power cut or a lost disk: everything, while fewer than min.insync.replicas
// machines have lost something since they were last in sync. Otherwise what the worst of them has left is what counts.
func (w *World) afterLoss(n *node, wiped bool) {
	im := w.newest()
	for _, p := range w.parts {
		topic, ok := im.TopicByID(p.topic)
		if !ok || !slices.Contains(topic.Partitions[p.index].Replicas, n.id) {
			continue
		}
		m, t := &topic.Partitions[p.index], w.truthOf(p)
		if !wiped && isFsync(im, p.name) {
			continue // what counts was on disk
		}
		t.damaged[n] = true
		if len(t.damaged) < min(t.bar, minInsync(im, p.name), len(m.Replicas)) {
			continue
		}
		keep := int64(len(t.recs))
		for _, x := range w.nodes {
			if t.damaged[x] {
				keep = min(keep, commonPrefix(x.remains(p), t.recs))
			}
		}
		w.lose(p, t, keep)
	}
}

func (w *World) lose(p part, t *truth, keep int64) {
	w.logf("%s-%d: may lose what is at %d and above, committed is %d", p.name, p.index, keep, len(t.recs))
	t.firm = min(t.firm, keep)
	for _, x := range t.recs[min(keep, int64(len(t.recs))):] {
		w.excused[x.value] = true
	}
	for _, offset := range sortedKeys(t.acked) {
		if offset >= keep {
			w.excused[t.acked[offset]] = true
			delete(t.acked, offset)
		}
	}
	for _, x := range w.nodes {
		if r := x.replicas[p]; r != nil {
			r.checked = min(r.checked, keep)
		}
	}
}

// remnant is what is left of a log.
type remnant struct {
	base int64
	recs []rec
}

// remains is what a machine has of a partition: in its process, or on its disk.
func (n *node) remains(p part) remnant {
	if r := n.replicas[p]; n.up && r != nil {
		return remnant{r.base, r.recs}
	}
	return n.left[p]
}

// commonPrefix is up to which offset a log holds what is committed.
func commonPrefix(a remnant, committed []rec) int64 {
	i := min(a.base, int64(len(committed)))
	for i < int64(len(committed)) && i-a.base < int64(len(a.recs)) && a.recs[i-a.base] == committed[i] {
		i++
	}
	return i
}

// trim deletes records of a partition below an offset, as DeleteRecords does.
func (w *World) trim(r *replica) {
	hw, start := r.log.HighWatermark(), r.log.Start()
	if r.leader == nil || hw <= start {
		return
	}
	to := start + 1 + w.rng.Int64N(hw-start)
	w.logf("%s: records below %d are deleted", r, to)
	r.advanceStart(to)
	t := w.truthOf(r.part)
	for _, x := range t.recs[:min(to, int64(len(t.recs)))] {
		w.excused[x.value] = true
	}
	for _, offset := range sortedKeys(t.acked) {
		if offset < to {
			delete(t.acked, offset)
		}
	}
}

// mended takes note of machines that are in sync again.
func (w *World) mended() {
	im := w.newest()
	for _, p := range w.parts {
		t := w.truthOf(p)
		topic, ok := im.TopicByID(p.topic)
		if !ok {
			continue
		}
		m := &topic.Partitions[p.index]
		if bar := minInsync(im, p.name); bar < t.bar || len(m.ISR) == len(m.Replicas) {
			t.bar = bar
		}
		for _, n := range w.nodes {
			b, known := im.Broker(n.id)
			if t.damaged[n] && n.up && known && b.Incarnation == n.incarnation && m.Leader != metadata.NoBroker && slices.Contains(m.ISR, n.id) {
				delete(t.damaged, n)
			}
		}
	}
}

func isFsync(im *metadata.Image, topic string) bool {
	return im.Configs(metadata.Resource{Type: metadata.ResourceTopic, Name: topic})["karst.durability"] == "fsync"
}

func minInsync(im *metadata.Image, topic string) int {
	n, err := strconv.Atoi(im.Configs(metadata.Resource{Type: metadata.ResourceTopic, Name: topic})["min.insync.replicas"])
	if err != nil {
		return 1
	}
	return n
}
