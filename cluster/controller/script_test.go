package controller

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/internal/uuid"
)

// TestScripts runs the specification in testdata. What is decided is applied to the image of the script.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{t: t, im: metadata.Empty(), static: map[string]string{}}
		datadriven.RunTest(t, path, func(_ *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
				fmt.Fprintln(&out, s.line(d.Cmd, strings.Fields(line)))
			}
			return out.String()
		})
	})
}

type script struct {
	t      *testing.T
	im     *metadata.Image
	index  uint64
	static map[string]string
}

func (s *script) view() View {
	return View{Image: s.im, Self: 1, Static: s.static, Defaults: config.Topics{NumPartitions: 2}}
}

func (s *script) apply(c metadata.Command) {
	s.index++
	im, _, err := s.im.Apply(s.index, c)
	if err != nil {
		s.t.Fatalf("%#v: %v", c, err)
	}
	s.im = im
}

func (s *script) line(cmd string, words []string) string {
	fields, bare := map[string]string{}, []string{}
	for _, w := range words {
		if k, v, ok := strings.Cut(w, "="); ok && cmd != "alter" && cmd != "replace" {
			fields[k] = v
		} else {
			bare = append(bare, w)
		}
	}
	num := func(name string, otherwise int64) int64 {
		if fields[name] == "" {
			return otherwise
		}
		n, err := strconv.ParseInt(fields[name], 10, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		return n
	}
	name, err := strconv.Unquote(`"` + fields["name"] + `"`)
	if err != nil {
		s.t.Fatal(err)
	}
	draw := Draw{ID: uuid.UUID{0: 1, 15: byte(s.index)}, Start: uint64(num("start", 0))}
	switch cmd {
	case "static":
		maps.Copy(s.static, fields)
		return "ok"
	case "brokers":
		s.apply(metadata.RegisterBroker{Broker: metadata.Broker{
			ID: metadata.BrokerID(num("id", 0)), Incarnation: uuid.UUID{byte(num("life", 1))}, Rack: fields["rack"], Fenced: slices.Contains(bare, "fenced"),
		}})
		return "ok"
	case "create":
		n := NewTopic{
			Name: name, Partitions: int32(num("partitions", Default)), ReplicationFactor: int16(num("rf", Default)),
			Assignment: s.assignment(fields["assign"]), Configs: configValues(fields["configs"]),
		}
		c, err := s.view().CreateTopic(n, draw)
		if err != nil {
			return refusal(err)
		}
		s.apply(c)
		return fmt.Sprintf("%v %v", c.Partitions, c.Configs)
	case "more":
		m := MorePartitions{Name: name, Count: int32(num("count", 0))}
		for _, a := range s.assignment(fields["assign"]) {
			m.Assignment = append(m.Assignment, a.Brokers)
		}
		c, err := s.view().CreatePartitions(m, draw)
		if err != nil {
			return refusal(err)
		}
		s.apply(c)
		return fmt.Sprintf("%v", c.New)
	case "decide":
		return s.decide(bare, fields)
	case "alter", "replace":
		return s.alter(bare, cmd == "replace")
	}
	s.t.Fatalf("unknown command %s", cmd)
	return ""
}

// decide makes one of the controller's decisions, applies it, and shows what it came to.
func (s *script) decide(bare []string, fields map[string]string) string {
	number := func(text string) int32 {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			s.t.Fatal(err)
		}
		return int32(n)
	}
	list := func(text string) (ids []metadata.BrokerID) {
		for _, w := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' }) {
			ids = append(ids, metadata.BrokerID(number(w)))
		}
		return ids
	}
	v := s.view()
	part := Partition{Topic: fields["topic"]}
	if fields["partition"] != "" {
		part.Partition = number(fields["partition"])
	}
	one := func(c metadata.PartitionChange, err error) (metadata.Command, error) {
		return metadata.AlterPartitions{Broker: metadata.NoBroker, Changes: []metadata.PartitionChange{c}}, err
	}
	var c metadata.Command
	var err error
	note := ""
	switch bare[0] {
	case "fence":
		c, _ = v.Fence(metadata.BrokerID(number(bare[1])))
	case "drain":
		var stuck []Partition
		c, stuck, err = v.Drain(metadata.BrokerID(number(bare[1])), true)
		note = fmt.Sprintf("stuck %v ", stuck)
	case "give-up":
		ch, ok := v.GiveUp(metadata.BrokerID(number(bare[1])), part)
		if !ok {
			return "nothing"
		}
		c, err = one(ch, nil)
	case "repair":
		t, _ := s.im.Topic(fields["topic"])
		c = metadata.AlterPartitions{Broker: metadata.NoBroker, Changes: v.Repair(t)}
	case "prefer":
		c = metadata.AlterPartitions{Broker: metadata.NoBroker, Changes: v.PreferredLeaders(int(number(fields["limit"])), func(metadata.BrokerID) bool { return true })}
	case "raise":
		c = metadata.AlterPartitions{Broker: metadata.NoBroker, Changes: v.RaiseReplication(fields["topic"], 3, 10)}
	case "reassign":
		c, err = one(v.Reassign(Reassignment{part, list(fields["to"]), fields["keep"] != ""}))
	case "cancel":
		c, err = one(v.Reassign(Reassignment{Partition: part}))
	case "elect":
		c, err = one(v.ElectLeader(part, len(bare) > 1))
	case "isr":
		t, _ := s.im.Topic(part.Topic)
		p := t.Partitions[part.Partition]
		ch := ISRChange{TopicID: t.ID, Partition: part.Partition, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch}
		for _, id := range list(fields["to"]) {
			ch.ISR = append(ch.ISR, v.member(id))
		}
		c, err = v.ChangeISR(v.member(p.Leader), ch)
	case "evacuate":
		rs, left, err := v.Evacuate(metadata.BrokerID(number(bare[1])), 10)
		if err != nil {
			return refusal(err)
		}
		return fmt.Sprintf("%v, %d left", rs, left)
	}
	if err != nil {
		return refusal(err)
	}
	if a, ok := c.(metadata.AlterPartitions); ok && len(a.Changes) == 0 {
		return "nothing"
	}
	before := s.im
	s.index++
	if s.im, _, err = before.Apply(s.index, c); err != nil {
		return "refused: " + refusal(err)
	}
	return strings.TrimSpace(note + s.changed(before))
}

// changed shows the partitions that are others now.
func (s *script) changed(before *metadata.Image) string {
	var b strings.Builder
	for _, c := range metadata.Diff(before, s.im).Topics {
		for i, p := range c.After.Partitions {
			if c.Before.Partitions[i].PartitionEpoch == p.PartitionEpoch {
				continue
			}
			fmt.Fprintf(&b, "%s-%d replicas=%v isr=%v leader=%d epoch=%d", c.Name, i, p.Replicas, p.ISR, p.Leader, p.LeaderEpoch)
			if len(p.ELR) > 0 {
				fmt.Fprintf(&b, " elr=%v", p.ELR)
			}
			if Reassigning(&p) {
				fmt.Fprintf(&b, " adding=%v removing=%v", p.Adding, p.Removing)
			}
			b.WriteString("\n")
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func refusal(err error) string {
	kind := fmt.Sprintf("%T", err)
	return kind[strings.LastIndex(kind, ".")+1:] + ": " + err.Error()
}

// assignment reads "0:1,2/1:2,1".
func (s *script) assignment(text string) []Assignment {
	var out []Assignment
	if text == "" {
		return nil
	}
	for _, part := range strings.Split(text, "/") {
		p, list, _ := strings.Cut(part, ":")
		n, err := strconv.Atoi(p)
		if err != nil {
			s.t.Fatal(err)
		}
		a := Assignment{Partition: int32(n)}
		for _, b := range strings.Split(list, ",") {
			if b == "" {
				continue
			}
			id, err := strconv.Atoi(b)
			if err != nil {
				s.t.Fatal(err)
			}
			a.Brokers = append(a.Brokers, metadata.BrokerID(id))
		}
		out = append(out, a)
	}
	return out
}

// configValues reads "a:1;b:null".
func configValues(text string) []ConfigValue {
	var out []ConfigValue
	if text == "" {
		return nil
	}
	for _, kv := range strings.Split(text, ";") {
		k, v, _ := strings.Cut(kv, ":")
		c := ConfigValue{Name: k, Value: &v}
		if v == "null" {
			c.Value = nil
		}
		out = append(out, c)
	}
	return out
}

var opNames = map[string]Op{"set": OpSet, "delete": OpDelete, "append": OpAppend, "subtract": OpSubtract, "op7": 7}

// alter reads "topic:t set a=1 append b=2 delete c".
func (s *script) alter(words []string, replace bool) string {
	kind, name, _ := strings.Cut(words[0], ":")
	types := map[string]metadata.ResourceType{"topic": 2, "broker": 4, "logger": 8, "client-metrics": 16, "group": 32, "unknown": 77}
	c := ConfigChange{Resource: metadata.Resource{Type: types[kind], Name: name}, Replace: replace}
	for i := 1; i+1 < len(words); i += 2 {
		key, value, given := strings.Cut(words[i+1], "=")
		op := ConfigOp{Name: key, Op: opNames[words[i]], Value: &value}
		if !given {
			op.Value = nil
		}
		c.Ops = append(c.Ops, op)
	}
	cmd, err := s.view().AlterConfigs(c)
	if err != nil {
		return refusal(err)
	}
	s.apply(cmd)
	return fmt.Sprintf("set %v delete %v; now %v", cmd.Set, cmd.Delete, s.im.Configs(c.Resource))
}
