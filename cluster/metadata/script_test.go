package metadata

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/karstlog/karst/internal/uuid"
)

// TestScripts runs the specification in testdata. After each script the log is replayed and must lead to the same sum;
// so must a snapshot taken in its middle and the rest of the log.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{im: Empty()}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.run(t, d) })
		s.checkReplay(t)
	})
}

type script struct {
	im    *Image
	index uint64
	log   [][]byte // entries as they are in the Raft log
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "apply":
		var out strings.Builder
		for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
			fmt.Fprintln(&out, s.apply(t, line))
		}
		return out.String()
	case "show":
		return show(s.im)
	case "snapshot":
		s.im = throughSnapshot(t, s.im)
		return "same\n"
	}
	t.Fatalf("unknown command %s", d.Cmd)
	return ""
}

func (s *script) apply(t *testing.T, line string) string {
	s.index++
	entry := Encode([]Command{parseCommand(t, line)})
	cs, err := Decode(entry)
	if err != nil {
		t.Fatal(err)
	}
	s.log = append(s.log, entry)
	before := s.im
	im, delta, err := before.Apply(s.index, cs[0])
	s.im = im
	if im.Index() != s.index {
		t.Errorf("index %d after entry %d", im.Index(), s.index)
	}
	if err != nil {
		if im.Checksum() != before.Checksum() || !delta.IsEmpty() {
			t.Errorf("%q was refused and changed something", line)
		}
		return fmt.Sprintf("%d %s: %v", s.index, strings.TrimPrefix(fmt.Sprintf("%T", err), "*metadata."), err)
	}
	if got, want := im.Checksum(), sumOfAll(im); got != want {
		t.Errorf("after %q the running sum is %x, over everything it is %x", line, got, want)
	}
	if diff := Diff(before, im); showDelta(sorted(diff)) != showDelta(sorted(delta)) {
		t.Errorf("after %q the delta is %s, the difference is %s", line, showDelta(delta), showDelta(diff))
	}
	return fmt.Sprintf("%d ok%s", s.index, showDelta(delta))
}

func (s *script) checkReplay(t *testing.T) {
	for cut := 0; cut <= len(s.log); cut += max(1, len(s.log)/5) {
		im := Empty()
		for i, entry := range s.log {
			if i == cut {
				im = throughSnapshot(t, im)
			}
			cs, err := Decode(entry)
			if err != nil {
				t.Fatal(err)
			}
			im, _, _ = im.Apply(uint64(i+1), cs[0])
		}
		if im.Checksum() != s.im.Checksum() || show(im) != show(s.im) {
			t.Errorf("replay with a snapshot after %d entries leads to another image:\n%s", cut, show(im))
		}
	}
}

func throughSnapshot(t testing.TB, im *Image) *Image {
	t.Helper()
	var b bytes.Buffer
	if err := im.WriteSnapshot(&b); err != nil {
		t.Fatal(err)
	}
	out, err := ReadSnapshot(&b)
	if err != nil {
		t.Fatal(err)
	}
	if d := Diff(im, out); !d.IsEmpty() || out.Checksum() != im.Checksum() || out.Index() != im.Index() {
		t.Fatalf("an image and its snapshot differ: %+v", d)
	}
	return out
}

// sumOfAll computes the checksum the slow way.
func sumOfAll(im *Image) uint64 {
	sum := sumClusterID(im.clusterID) ^ sumNextProducerID(im.nextProducerID) ^ sumNextBrokerID(im.nextBrokerID)
	for _, a := range im.allotted {
		sum ^= a.sum()
	}
	for _, b := range im.brokers {
		sum ^= b.sum()
	}
	partitions, near := 0, 0
	for t := range im.Topics() {
		sum ^= t.sum()
		partitions += len(t.Partitions)
		if byID, ok := im.TopicByID(t.ID); !ok || byID != t {
			panic("topic " + t.Name + " is not the one of its id")
		}
		if key, special := nearKey(t.Name); special {
			near++
			if name, ok := im.near.Get(key); !ok || name != t.Name {
				panic("topic " + t.Name + " is not near itself")
			}
		}
	}
	if partitions != im.PartitionCount() || near != im.near.Len() || im.topics.Len() != im.topicIDs.Len() {
		panic("counts are wrong")
	}
	for r := range im.ConfigResources() {
		c, _ := im.configs.Get(configKey(r))
		sum ^= c.sum()
	}
	return sum
}

// parseCommand reads one line: a word, then fields name=value or bare words.
func parseCommand(t *testing.T, line string) Command {
	words := strings.Fields(line)
	kind, fields := words[0], map[string]string{}
	var bare []string
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok {
			fields[k] = v
		} else {
			bare = append(bare, w)
		}
	}
	num := func(name string) int64 {
		n, err := strconv.ParseInt("0"+fields[name], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	id := uuid.UUID{15: byte(num("id"))}
	incarnation := uuid.UUID{0: byte(num("incarnation"))}
	switch kind {
	case "cluster-id":
		return SetClusterID{id}
	case "register":
		b := Broker{ID: BrokerID(num("broker")), Incarnation: incarnation, Rack: fields["rack"], Fenced: slices.Contains(bare, "fenced")}
		if host := fields["host"]; host != "" {
			b.Endpoints = []Endpoint{{"PLAINTEXT", host, 9092, "PLAINTEXT"}}
		}
		c := RegisterBroker{Broker: b, Fsync: slices.Contains(bare, "fsync")}
		for _, start := range parseReplicas(t, fields["starts"]) {
			for _, n := range start {
				c.Starts = append(c.Starts, uuid.UUID{0: byte(n)})
			}
		}
		c.Proof = map[string]Proof{"": ProofNone, "full": ProofFull, "synced": ProofSynced}[fields["proof"]]
		return c
	case "create":
		c := CreateTopic{ID: id, Partitions: parseReplicas(t, fields["partitions"]), LeaderEpoch: LeaderEpoch(num("epoch"))}
		c.Name, _ = strconv.Unquote(fields["name"])
		c.Configs = parseConfigs(fields["configs"])
		return c
	case "delete":
		return DeleteTopic{id}
	case "add":
		return CreatePartitions{id, int32(num("count")), parseReplicas(t, fields["new"])}
	case "set":
		c := SetConfigs{Resource: parseResource(t, bare[0]), Set: parseConfigs(fields["set"])}
		if fields["delete"] != "" {
			c.Delete = strings.Split(fields["delete"], ",")
		}
		if _, ok := fields["version"]; ok {
			c.CheckVersion, c.Version = true, uint64(num("version"))
		}
		return c
	case "fence":
		return FenceBroker{ID: BrokerID(num("broker")), Incarnation: incarnation}
	case "drain":
		return DrainBroker{ID: BrokerID(num("broker")), Incarnation: incarnation, Draining: !slices.Contains(bare, "no")}
	case "unregister":
		return UnregisterBroker{BrokerID(num("broker")), incarnation}
	case "allot":
		c := AllotBrokerID{Request: id, Want: NoBroker}
		if fields["want"] != "" {
			c.Want = BrokerID(num("want"))
		}
		return c
	case "change":
		c := AlterPartitions{Broker: NoBroker, Changes: []PartitionChange{parseChange(t, id, fields, bare)}}
		if fields["by"] != "" {
			c.Broker, c.Incarnation = BrokerID(num("by")), incarnation
		}
		return c
	case "allocate":
		return AllocateProducerIDs{BrokerID(num("broker")), incarnation, int32(num("count"))}
	}
	t.Fatalf("unknown command %q", line)
	return nil
}

// parseChange reads "partition=0 epoch=1 version=2 leader=3 isr=3,1:2 elr=.. replicas=.. bar=2", a member as broker:incarnation.
func parseChange(t *testing.T, topic uuid.UUID, fields map[string]string, bare []string) PartitionChange {
	num := func(name string) int32 {
		n, err := strconv.ParseInt("0"+strings.TrimPrefix(fields[name], "-"), 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(fields[name], "-") {
			n = -n
		}
		return int32(n)
	}
	list := func(name string) []BrokerID {
		if fields[name] == "" {
			return nil
		}
		return parseReplicas(t, fields[name])[0]
	}
	c := PartitionChange{
		TopicID: topic, Partition: num("partition"), LeaderEpoch: LeaderEpoch(num("epoch")), PartitionEpoch: PartitionEpoch(num("version")),
		Leader: BrokerID(num("leader")), NewEpoch: slices.Contains(bare, "new-epoch"), ELR: list("elr"), Replicas: list("replicas"),
		Adding: list("adding"), Removing: list("removing"), MinInsync: num("bar"),
		Kind: map[string]ChangeKind{"": ChangeClean, "recovered": ChangeRecovered, "unclean": ChangeUnclean}[fields["kind"]],
	}
	for _, m := range strings.Split(fields["isr"], ",") {
		id, life, named := strings.Cut(m, ":")
		n, err := strconv.Atoi("0" + id)
		l, lerr := strconv.Atoi("0" + life)
		if err != nil || lerr != nil {
			t.Fatal(m)
		}
		if id == "" {
			continue
		}
		member := Member{Broker: BrokerID(n)}
		if named {
			member.Incarnation[0] = byte(l)
		}
		c.ISR = append(c.ISR, member)
	}
	return c
}

var resourceTypes = map[string]ResourceType{
	"topic": ResourceTopic, "broker": ResourceBroker, "group": ResourceGroup, "client-metrics": ResourceClientMetrics,
}

func parseResource(t *testing.T, s string) Resource {
	kind, name, _ := strings.Cut(s, ":")
	r, ok := resourceTypes[kind]
	if !ok {
		n, err := strconv.Atoi(kind)
		if err != nil {
			t.Fatal(err)
		}
		r = ResourceType(n)
	}
	return Resource{r, name}
}

// parseReplicas reads "1,2/2,1".
func parseReplicas(t *testing.T, s string) [][]BrokerID {
	var out [][]BrokerID
	if s == "" {
		return nil
	}
	for _, p := range strings.Split(s, "/") {
		var ids []BrokerID
		for _, b := range strings.Split(p, ",") {
			if b == "" {
				continue
			}
			n, err := strconv.Atoi(b)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, BrokerID(n))
		}
		out = append(out, ids)
	}
	return out
}

// parseConfigs reads "a:1,b:2".
func parseConfigs(s string) map[string]string {
	if s == "" {
		return nil
	}
	out := map[string]string{}
	for _, kv := range strings.Split(s, ",") {
		k, v, _ := strings.Cut(kv, ":")
		out[k] = v
	}
	return out
}

func sorted(d Delta) Delta {
	d.Topics = slices.SortedFunc(slices.Values(d.Topics), topicOrder)
	return d
}

func showDelta(d Delta) string {
	var b strings.Builder
	for _, t := range d.Topics {
		sign := "~"
		switch {
		case t.Before == nil:
			sign = "+"
		case t.After == nil:
			sign = "-"
		}
		fmt.Fprintf(&b, " %stopic:%s", sign, t.Name)
	}
	for _, id := range d.Brokers {
		fmt.Fprintf(&b, " broker:%d", id)
	}
	for _, r := range d.Configs {
		fmt.Fprintf(&b, " configs:%d:%s", r.Type, r.Name)
	}
	if d.ClusterID {
		b.WriteString(" cluster-id")
	}
	return b.String()
}

func show(im *Image) string {
	var b strings.Builder
	fmt.Fprintf(&b, "index %d cluster %s next-producer-id %d topics %d partitions %d\n",
		im.Index(), im.ClusterID(), im.NextProducerID(), im.TopicCount(), im.PartitionCount())
	for _, r := range im.Brokers() {
		fmt.Fprintf(&b, "broker %d incarnation=%d rack=%q fenced=%v endpoints=%v producer-ids=%d+%d\n", r.ID, r.Incarnation[0], r.Rack,
			r.Fenced, r.Endpoints, r.ProducerIDs.First, r.ProducerIDs.Count)
		if r.Draining || r.RaftServer+r.ClusterAddr != "" {
			fmt.Fprintf(&b, "  draining=%v cluster=%q server=%q\n", r.Draining, r.ClusterAddr, r.RaftServer)
		}
	}
	for _, a := range im.allotted {
		fmt.Fprintf(&b, "allotted %d to %d\n", a.id, a.request[15])
	}
	for t := range im.Topics() {
		fmt.Fprintf(&b, "topic %s id=%d\n", t.Name, t.ID[15])
		for i, p := range t.Partitions {
			fmt.Fprintf(&b, "  %d replicas=%v isr=%v leader=%d leader-epoch=%d partition-epoch=%d\n", i, p.Replicas, p.ISR, p.Leader,
				p.LeaderEpoch, p.PartitionEpoch)
			if len(p.ELR)+len(p.Adding)+len(p.Removing)+len(p.LastKnown) > 0 || p.Unproven {
				fmt.Fprintf(&b, "    elr=%v adding=%v removing=%v last-known=%v unproven=%v\n", p.ELR, p.Adding, p.Removing, p.LastKnown, p.Unproven)
			}
		}
	}
	for r := range im.ConfigResources() {
		fmt.Fprintf(&b, "configs %d:%q version=%d", r.Type, r.Name, im.ConfigVersion(r))
		values := im.Configs(r)
		for _, k := range slices.Sorted(maps.Keys(values)) {
			fmt.Fprintf(&b, " %s=%s", k, values[k])
		}
		b.WriteString("\n")
	}
	return b.String()
}

func isCorrupt(err error) bool { return errors.As(err, new(*CorruptError)) }
