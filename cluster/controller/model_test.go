package controller

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/internal/uuid"
)

// world is an image and what the brokers' logs really hold. Decisions are taken on the image of any moment and applied
// later, as the metadata log does it.
type world struct {
	t     *rapid.T
	im    *metadata.Image
	index uint64
	life  map[metadata.BrokerID]byte // incarnations
	// hw is the high watermark of each partition, has how much of it each broker has for sure.
	hw  map[int32]int
	has map[replica]int
	// known is who was in ISR and ELR when they last had everything, all of them.
	known map[int32][]metadata.BrokerID
	// late are decisions under way.
	late []metadata.Command
	// off are brokers that lost something and have not registered since: what the image says of them is not true.
	off  map[metadata.BrokerID]bool
	seen map[string]int
}

type replica struct {
	partition int32
	broker    metadata.BrokerID
}

const brokers, partitions = 4, 3

func newWorld(t *rapid.T) *world {
	w := &world{
		t: t, im: metadata.Empty(), life: map[metadata.BrokerID]byte{}, hw: map[int32]int{}, has: map[replica]int{}, known: map[int32][]metadata.BrokerID{},
		seen: map[string]int{},
	}
	for id := metadata.BrokerID(1); id <= brokers; id++ {
		w.register(id, true)
	}
	w.apply(metadata.CreateTopic{
		ID: uuid.UUID{1}, Name: "t", Partitions: [][]metadata.BrokerID{{1, 2, 3}, {2, 3}, {3}},
		Configs: map[string]string{"min.insync.replicas": "2"},
	})
	return w
}

func (w *world) view() View {
	return View{Image: w.im, Self: 1, Defaults: config.Topics{NumPartitions: 1}}
}

func (w *world) topic() *metadata.Topic {
	t, _ := w.im.Topic("t")
	return t
}

func incarnation(id metadata.BrokerID, life byte) uuid.UUID { return uuid.UUID{byte(id), life} }

func (w *world) apply(c metadata.Command) error {
	w.index++
	before := w.topic()
	if before != nil {
		w.note(before)
	}
	im, _, err := w.im.Apply(w.index, c)
	w.im = im
	if err == nil && before != nil {
		w.lost(before, c)
	}
	w.check(c)
	return err
}

// note remembers who was in ISR and ELR as long as all of them have everything.
func (w *world) note(t *metadata.Topic) {
	for i := range t.Partitions {
		n, p := int32(i), &t.Partitions[i]
		all := append(slices.Clone(p.ISR), p.ELR...)
		if !slices.ContainsFunc(all, func(id metadata.BrokerID) bool { return w.has[replica{n, id}] < w.hw[n] }) {
			w.known[n] = all
		}
	}
}

// lost lowers the high watermark to what a new leader has, and sees to it that this was the most that could be saved.
func (w *world) lost(before *metadata.Topic, c metadata.Command) {
	for i := range w.topic().Partitions {
		n, p, old := int32(i), &w.topic().Partitions[i], &before.Partitions[i]
		has := w.has[replica{n, p.Leader}]
		if p.Leader == metadata.NoBroker || p.LeaderEpoch == old.LeaderEpoch || has >= w.hw[n] || w.off[p.Leader] {
			continue
		}
		for _, id := range w.known[n] {
			if more := w.has[replica{n, id}]; more > has && slices.Contains(p.Replicas, id) && !unclean(c) {
				w.t.Fatalf("after %+v broker %d leads partition %d with %d of %d, and %d had %d: %+v", c, p.Leader, i, has, w.hw[n], id, more, p)
			}
		}
		w.seen["lost"]++
		w.hw[n] = has
	}
}

func unclean(c metadata.Command) bool {
	a, ok := c.(metadata.AlterPartitions)
	return ok && slices.ContainsFunc(a.Changes, func(ch metadata.PartitionChange) bool { return ch.Kind == metadata.ChangeUnclean })
}

// register starts a broker again; without proof its log lost everything.
func (w *world) register(id metadata.BrokerID, proven bool) {
	old := incarnation(id, w.life[id])
	w.life[id]++
	c := metadata.RegisterBroker{
		Broker: metadata.Broker{ID: id, Incarnation: incarnation(id, w.life[id])},
		Starts: []uuid.UUID{old, incarnation(id, w.life[id])}, Proof: metadata.ProofFull,
	}
	if !proven {
		c.Proof = metadata.ProofNone
	}
	if err := w.apply(c); err != nil {
		w.t.Fatalf("register: %v", err)
	}
}

// lose takes from a broker's logs what was not synced.
func (w *world) lose(id metadata.BrokerID) {
	w.note(w.topic())
	for i := range int32(partitions) {
		r := replica{i, id}
		w.has[r] = rapid.IntRange(0, w.has[r]).Draw(w.t, "left")
	}
}

// check: who is in ISR or ELR has everything below the high watermark.
func (w *world) check(c metadata.Command) {
	t := w.topic()
	if t == nil {
		return
	}
	for i := range t.Partitions {
		n, p := int32(i), &t.Partitions[i]
		if len(p.ISR)+len(p.ELR) == 0 {
			w.t.Fatalf("after %+v nobody may lead partition %d: %+v", c, i, p)
		}
		if p.Leader != metadata.NoBroker && (!slices.Contains(p.ISR, p.Leader) || p.Unproven) {
			w.t.Fatalf("after %+v the leader of partition %d is not in the ISR, or has no proof: %+v", c, i, p)
		}
		if p.Unproven || len(w.off) > 0 {
			continue
		}
		for _, id := range append(slices.Clone(p.ISR), p.ELR...) {
			if w.has[replica{n, id}] < w.hw[n] {
				w.t.Fatalf("after %+v broker %d is to have everything of partition %d up to %d, but has %d: %+v", c, id, i, w.hw[n], w.has[replica{n, id}], p)
			}
		}
	}
}

// produce moves high watermarks: all of the ISR have what is below.
func (w *world) produce() {
	for i := range w.topic().Partitions {
		n, p := int32(i), &w.topic().Partitions[i]
		bar := w.view().bar("t", len(p.Replicas))
		if p.Leader == metadata.NoBroker || len(p.ISR) < int(bar) || len(p.ELR) > 0 {
			continue
		}
		w.hw[n]++
		for _, id := range p.ISR {
			w.has[replica{n, id}] = w.hw[n]
		}
		w.seen["produced"]++
	}
}

// isr is what a leader proposes: any of its followers that live, after they have caught up.
func (w *world) isr(n int32, v View) {
	p := &w.topic().Partitions[n]
	if p.Leader == metadata.NoBroker {
		return
	}
	c := ISRChange{TopicID: uuid.UUID{1}, Partition: n, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch}
	for _, id := range p.Replicas {
		if id == p.Leader || rapid.Bool().Draw(w.t, "in") {
			c.ISR = append(c.ISR, v.member(id))
			w.has[replica{n, id}] = max(w.has[replica{n, id}], w.hw[n])
		}
	}
	cmd, err := v.ChangeISR(v.member(p.Leader), c)
	if err == nil && w.apply(cmd) == nil {
		w.seen["isr"]++
	}
}

func (w *world) step() {
	v := w.view()
	id := metadata.BrokerID(rapid.IntRange(1, brokers).Draw(w.t, "broker"))
	n := int32(rapid.IntRange(0, partitions-1).Draw(w.t, "partition"))
	switch rapid.SampledFrom([]string{
		"produce", "produce", "isr", "isr", "fence", "return", "return", "lose", "repair", "repair", "drain", "reassign", "cancel", "prefer",
		"bar", "late", "give-up", "elect", "recover", "power", "lose",
	}).Draw(w.t, "step") {
	case "produce":
		w.produce()
	case "isr":
		w.isr(n, v)
	case "fence":
		if c, ok := v.Fence(id); ok {
			w.propose(c)
		}
	case "return":
		w.register(id, true)
	case "lose":
		w.lose(id)
		w.register(id, false)
	case "power": // all lose it at once, and some never had what others have
		for _, id := range rapid.Permutation([]metadata.BrokerID{1, 2, 3, 4}).Draw(w.t, "order") {
			if c, ok := w.view().Fence(id); ok && rapid.Bool().Draw(w.t, "noticed") {
				_ = w.apply(c)
			}
		}
		for id := metadata.BrokerID(1); id <= brokers; id++ {
			w.lose(id)
		}
		w.off = map[metadata.BrokerID]bool{1: true, 2: true, 3: true, 4: true}
		for _, id := range rapid.Permutation([]metadata.BrokerID{1, 2, 3, 4}).Draw(w.t, "back") {
			delete(w.off, id)
			w.register(id, false)
		}
		for i := range int32(partitions) {
			w.recover(i, w.view())
		}
	case "repair":
		for _, c := range v.Repair(w.topic()) {
			w.propose(metadata.AlterPartitions{Broker: metadata.NoBroker, Changes: []metadata.PartitionChange{c}})
		}
	case "drain":
		if c, _, err := v.Drain(id, rapid.Bool().Draw(w.t, "on")); err == nil {
			w.propose(c)
		}
	case "reassign":
		target := rapid.SliceOfNDistinct(rapid.Map(rapid.IntRange(1, brokers), func(n int) metadata.BrokerID { return metadata.BrokerID(n) }), 1, 3, rapid.ID).Draw(w.t, "target")
		w.change(v.Reassign(Reassignment{Partition: Partition{"t", n}, Replicas: target}))
	case "cancel":
		w.change(v.Reassign(Reassignment{Partition: Partition{"t", n}}))
	case "prefer":
		for _, c := range v.PreferredLeaders(2, func(metadata.BrokerID) bool { return true }) {
			w.change(c, nil)
		}
	case "bar":
		bar := fmt.Sprint(rapid.IntRange(1, 3).Draw(w.t, "bar"))
		_ = w.apply(metadata.SetConfigs{
			Resource: metadata.Resource{Type: metadata.ResourceTopic, Name: "t"}, Set: map[string]string{"min.insync.replicas": bar},
		})
	case "late":
		if len(w.late) > 0 {
			c := w.late[0]
			w.late = w.late[1:]
			_ = w.apply(c)
		}
	case "give-up":
		if c, ok := v.GiveUp(id, Partition{"t", n}); ok {
			w.change(c, nil)
		}
	case "elect":
		c, err := v.ElectLeader(Partition{"t", n}, rapid.Bool().Draw(w.t, "unclean"))
		w.change(c, err)
	case "recover":
		w.recover(n, v)
	}
}

func (w *world) recover(n int32, v View) {
	p := &w.topic().Partitions[n]
	if !v.NeedsRecovery(p) {
		return
	}
	var ends []LogEnd
	for _, id := range p.LastKnown {
		ends = append(ends, LogEnd{Replica: v.member(id), Epoch: p.LeaderEpoch, End: int64(w.has[replica{n, id}])})
	}
	if c, ok := v.Recover(w.topic(), n, ends); ok {
		if w.apply(metadata.AlterPartitions{Broker: metadata.NoBroker, Changes: []metadata.PartitionChange{c}}) == nil {
			w.seen["recovered"]++
		}
	}
}

func (w *world) change(c metadata.PartitionChange, err error) {
	if err == nil {
		w.propose(metadata.AlterPartitions{Broker: metadata.NoBroker, Changes: []metadata.PartitionChange{c}})
	}
}

// propose applies at once, or when others were faster.
func (w *world) propose(c metadata.Command) {
	if rapid.IntRange(0, 3).Draw(w.t, "late") == 0 {
		w.late = append(w.late, c)
		return
	}
	before := w.im.Index()
	if err := w.apply(c); err != nil {
		w.t.Fatalf("decided on the newest image (%d), and refused: %v\n%+v\n%+v", before, err, c, w.topic())
	}
	w.seen[fmt.Sprintf("%T", c)]++
}

// heal brings all brokers back and lets the controller work until nothing is left to do: then every partition has a leader,
// and the bar is met where brokers are.
func (w *world) heal() {
	for id := metadata.BrokerID(1); id <= brokers; id++ {
		w.register(id, true)
	}
	w.late = nil
	for range 10 {
		for i := range w.topic().Partitions {
			w.recover(int32(i), w.view())
			for _, c := range w.view().Repair(w.topic()) {
				if err := w.apply(metadata.AlterPartitions{Broker: metadata.NoBroker, Changes: []metadata.PartitionChange{c}}); err != nil {
					w.t.Fatalf("repair refused: %v", err)
				}
			}
		}
	}
	for i := range w.topic().Partitions {
		p := &w.topic().Partitions[i]
		if p.Leader == metadata.NoBroker && !w.allEmpty(int32(i), p) {
			w.t.Fatalf("all brokers are there, and nobody leads partition %d: %+v", i, p)
		}
	}
}

// allEmpty: who was known to have everything came back with nothing while others have replicas: people decide.
func (w *world) allEmpty(n int32, p *metadata.Partition) bool {
	return p.Unproven && !slices.ContainsFunc(p.LastKnown, func(id metadata.BrokerID) bool { return w.has[replica{n, id}] > 0 })
}

// TestEligibleReplicasHaveEverything lets brokers fail in all ways while the controller decides, also on old images: whoever
// is in ISR or ELR has all that was committed, somebody always is, and in the end somebody leads.
func TestEligibleReplicasHaveEverything(t *testing.T) {
	seen := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range rapid.IntRange(10, 80).Draw(t, "steps") {
			w.step()
		}
		w.heal()
		for k, n := range w.seen {
			seen[k] += n
		}
	})
	for _, k := range []string{"produced", "isr", "recovered", "metadata.FenceBroker", "metadata.DrainBroker", "metadata.AlterPartitions"} {
		if seen[k] == 0 {
			t.Errorf("%s never happened: %v", k, seen)
		}
	}
}
