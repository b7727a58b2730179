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
			ID: metadata.BrokerID(num("id", 0)), Incarnation: uuid.UUID{1}, Rack: fields["rack"], Fenced: slices.Contains(bare, "fenced"),
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
	case "alter", "replace":
		return s.alter(bare, cmd == "replace")
	}
	s.t.Fatalf("unknown command %s", cmd)
	return ""
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
