package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"
	"gopkg.in/yaml.v3"

	"github.com/karstlog/karst/config"
)

// manifest is what apply -f reads.
type manifest struct {
	Topics  []manifestTopic  `yaml:"topics"`
	Configs []manifestConfig `yaml:"configs"`
}

type manifestTopic struct {
	Name              string               `yaml:"name"`
	Partitions        int32                `yaml:"partitions"`
	ReplicationFactor int16                `yaml:"replication_factor"`
	Configs           map[string]yaml.Node `yaml:"configs"`
}

type manifestConfig struct {
	Resource string               `yaml:"resource"` // "broker default", "broker 1", "group billing"
	Set      map[string]yaml.Node `yaml:"set"`
}

// step is one difference between what a file says and what there is.
type step struct {
	resource, action, key string
	from, to              *string
	status                string
}

func stepColumns() []column[step] {
	show := func(v *string) string {
		if v == nil {
			return ""
		}
		return *v
	}
	return []column[step]{
		{key: "resource", doc: "what is changed", value: func(s step) any { return s.resource }},
		{key: "action", doc: "create, add-partitions, set, unset", value: func(s step) any { return s.action }},
		{key: "key", doc: "the setting, or partitions", value: func(s step) any { return s.key }},
		{key: "from", doc: "before; null: none", value: func(s step) any { return s.from }, text: func(s step) string { return show(s.from) }},
		{key: "to", doc: "after; null: none", value: func(s step) any { return s.to }, text: func(s step) string { return show(s.to) }},
		{key: "status", doc: "done; planned with --dry-run", value: func(s step) any { return s.status }},
	}
}

func applyCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:  "apply",
		Usage: "make topics and settings what a file says",
		Description: describe("The file is yaml or json: topics with name, partitions, replication_factor and configs; configs with a resource (broker default, broker 1, group NAME) and what to set. "+
			"What is so already is left alone; topics that are not in the file are too. Partitions are added, never taken away; replicas are moved by kctl partition reassign.\n\n"+
			"  topics:\n  - name: orders\n    partitions: 6\n    replication_factor: 3\n    configs: {retention.ms: 7d, cleanup.policy: compact}\n  configs:\n  - resource: broker default\n    set: {log.retention.ms: 3d}",
			"kctl apply -f cluster.yaml --dry-run",
			"kctl apply -f cluster.yaml --prune"),
		Flags: flagSet([]cli.Flag{
			&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "`FILE` to read; - is stdin"},
			&cli.BoolFlag{Name: "prune", Usage: "settings of these topics and resources that the file does not name go back to their defaults"},
			&cli.BoolFlag{Name: "detailed-exitcode", Usage: "exit with 11 when a dry run finds something to do"},
			dryRunFlag(), noWaitFlag(),
		}, outputFlags(), clientFlags()),
		Action: listing(s, stepColumns(), s.apply),
	}
}

func (s *session) apply(c *cli.Context) ([]step, error) {
	m, err := s.readManifest(c.String("file"))
	if err != nil {
		return nil, err
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	p := &applyPlan{l: l, ctx: ctx, prune: c.Bool("prune")}
	if err := p.compare(m); err != nil {
		return nil, err
	}
	for i := range p.steps {
		p.steps[i].status = status(c.Bool("dry-run"))
	}
	if len(p.steps) == 0 {
		s.say("nothing to change")
		return nil, nil
	}
	if c.Bool("dry-run") {
		if c.Bool("detailed-exitcode") {
			return p.steps, &failure{status: exitChanges, text: fmt.Sprintf("%d changes", len(p.steps))}
		}
		return p.steps, nil
	}
	return p.steps, p.carryOut(c.Bool("no-wait"))
}

func (s *session) readManifest(file string) (*manifest, error) {
	var text []byte
	var err error
	switch file {
	case "":
		return nil, usage("missing -f FILE")
	case "-":
		text, err = io.ReadAll(s.in)
	default:
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, usage("-f: %s", err)
	}
	var m manifest
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&m); err != nil && !errors.Is(err, io.EOF) {
		return nil, usage("-f %s: %s", file, err)
	}
	seen := map[string]bool{}
	for _, t := range m.Topics {
		if t.Name == "" || seen[t.Name] {
			return nil, usage("-f %s: every topic needs a name of its own (%q)", file, t.Name)
		}
		if t.Partitions < 0 || t.ReplicationFactor < 0 {
			return nil, usage("-f %s: topic %s: partitions and replication_factor are at least 1", file, t.Name)
		}
		if err := checkValues(t.Configs); err != nil {
			return nil, usage("-f %s: topic %s: %s", file, t.Name, err)
		}
		seen[t.Name] = true
	}
	for _, c := range m.Configs {
		if err := checkValues(c.Set); err != nil {
			return nil, usage("-f %s: %s: %s", file, c.Resource, err)
		}
	}
	return &m, nil
}

// checkValues turns lists into Kafka's form, and refuses what is no value of a setting: nothing and a map would silently be
// the empty value.
func checkValues(values map[string]yaml.Node) error {
	for _, k := range sortedKeys(values) {
		n := values[k]
		if n.Kind == yaml.SequenceNode {
			var list []string
			if err := n.Decode(&list); err != nil {
				return fmt.Errorf("%s: want a value or a list of values", k)
			}
			n = yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: strings.Join(list, ",")}
			values[k] = n
		}
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			return fmt.Errorf("%s: want a value; \"\" is the empty one, and --prune takes settings back that are not named", k)
		}
	}
	return nil
}

// applyPlan is the steps and the requests that take them.
type applyPlan struct {
	l       *link
	ctx     context.Context
	prune   bool
	steps   []step
	create  []kmsg.CreateTopicsRequestTopic
	grow    []kmsg.CreatePartitionsRequestTopic
	changes []alteration
}

func (p *applyPlan) compare(m *manifest) error {
	resp, err := p.l.metadata(p.ctx, nil)
	if err != nil {
		return err
	}
	have := map[string]kmsg.MetadataResponseTopic{}
	for _, t := range resp.Topics {
		have[*t.Topic] = t
	}
	for _, t := range m.Topics {
		old, ok := have[t.Name]
		if !ok {
			p.planCreate(t)
			continue
		}
		if err := p.planTopic(t, old); err != nil {
			return err
		}
	}
	for _, c := range m.Configs {
		kind, name, _ := cutSpace(c.Resource)
		r, rest, err := parseResource([]string{kind, name})
		if err != nil || len(rest) > 0 {
			return usage("resource %q: want %s", c.Resource, resourceUsage)
		}
		if err := p.planConfigs(r, c.Set); err != nil {
			return err
		}
	}
	return nil
}

func cutSpace(s string) (before, after string, found bool) {
	for i := range s {
		if s[i] == ' ' {
			return s[:i], s[i+1:], true
		}
	}
	return s, "", false
}

func (p *applyPlan) planCreate(t manifestTopic) {
	req := kmsg.NewCreateTopicsRequestTopic()
	req.Topic, req.NumPartitions, req.ReplicationFactor = t.Name, -1, -1
	if t.Partitions > 0 {
		req.NumPartitions = t.Partitions
	}
	if t.ReplicationFactor > 0 {
		req.ReplicationFactor = t.ReplicationFactor
	}
	name := "topic " + t.Name
	made := step{resource: name, action: "create", key: "partitions"}
	if t.Partitions > 0 { // else num.partitions of the brokers
		made.to = ptr(fmt.Sprint(t.Partitions))
	}
	p.steps = append(p.steps, made)
	for _, k := range sortedKeys(t.Configs) {
		node := t.Configs[k]
		v := canonical(config.ScopeTopic, k, node.Value)
		cfg := kmsg.NewCreateTopicsRequestTopicConfig()
		cfg.Name, cfg.Value = k, &v
		req.Configs = append(req.Configs, cfg)
		p.steps = append(p.steps, step{resource: name, action: "set", key: k, to: &v})
	}
	p.create = append(p.create, req)
}

func (p *applyPlan) planTopic(t manifestTopic, old kmsg.MetadataResponseTopic) error {
	n := int32(len(old.Partitions))
	switch {
	case t.Partitions > 0 && t.Partitions < n:
		return &failure{status: exitCondition, text: fmt.Sprintf("topic %s has %d partitions, the file says %d: partitions cannot be taken away", t.Name, n, t.Partitions)}
	case t.Partitions > n:
		r := kmsg.NewCreatePartitionsRequestTopic()
		r.Topic, r.Count = t.Name, t.Partitions
		p.grow = append(p.grow, r)
		p.steps = append(p.steps, step{resource: "topic " + t.Name, action: "add-partitions", key: "partitions", from: ptr(strconv.Itoa(int(n))), to: ptr(fmt.Sprint(t.Partitions))})
	}
	if rf := len(old.Partitions[0].Replicas); t.ReplicationFactor > 0 && int(t.ReplicationFactor) != rf {
		return &failure{
			status: exitCondition, text: fmt.Sprintf("topic %s has %d replicas, the file says %d", t.Name, rf, t.ReplicationFactor),
			advice: fmt.Sprintf("kctl partition reassign %s -r %d", t.Name, t.ReplicationFactor),
		}
	}
	return p.planConfigs(resource{kmsg.ConfigResourceTypeTopic, t.Name}, t.Configs)
}

func (p *applyPlan) planConfigs(r resource, want map[string]yaml.Node) error {
	rows, err := p.l.configRows(p.ctx, r, nil)
	if err != nil {
		return err
	}
	own := map[string]*string{}
	for _, row := range changedOnly(rows) {
		own[row.key] = row.value
	}
	for _, k := range sortedKeys(want) {
		node := want[k]
		v := canonical(r.scope(), k, node.Value)
		old, set := own[k]
		if set && old != nil && *old == v {
			continue
		}
		p.changes = append(p.changes, alteration{resource: r, key: k, from: old, to: &v, op: kmsg.IncrementalAlterConfigOpSet})
		p.steps = append(p.steps, step{resource: r.String(), action: "set", key: k, from: old, to: &v})
	}
	if !p.prune {
		return nil
	}
	for _, k := range sortedKeys(own) {
		if _, named := want[k]; !named {
			p.changes = append(p.changes, alteration{resource: r, key: k, from: own[k], op: kmsg.IncrementalAlterConfigOpDelete})
			p.steps = append(p.steps, step{resource: r.String(), action: "unset", key: k, from: own[k]})
		}
	}
	return nil
}

// carryOut asks for all that is to be changed. What went wrong with one thing does not keep the others from being done.
func (p *applyPlan) carryOut(noWait bool) error {
	err := errors.Join(p.createTopics(noWait), p.addPartitions(noWait), p.alterConfigs(noWait))
	return err
}

func (p *applyPlan) createTopics(noWait bool) error {
	if len(p.create) == 0 {
		return nil
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis, req.Topics = int32(p.l.timeout.Milliseconds()), p.create
	resp, err := req.RequestWith(p.ctx, p.l.cl)
	if err != nil {
		return err
	}
	var made []string
	err = each(resp.Topics, func(t kmsg.CreateTopicsResponseTopic) error {
		if t.ErrorCode != 0 && t.ErrorCode != kerr.TopicAlreadyExists.Code {
			return about("topic "+t.Topic, kafkaError(t.ErrorCode, t.ErrorMessage))
		}
		made = append(made, t.Topic)
		return nil
	})
	if noWait || len(made) == 0 {
		return err
	}
	return errors.Join(err, p.l.waitForTopics(p.ctx, made, 1))
}

func (p *applyPlan) addPartitions(noWait bool) error {
	if len(p.grow) == 0 {
		return nil
	}
	req := kmsg.NewPtrCreatePartitionsRequest()
	req.TimeoutMillis, req.Topics = int32(p.l.timeout.Milliseconds()), p.grow
	resp, err := req.RequestWith(p.ctx, p.l.cl)
	if err != nil {
		return err
	}
	return each(resp.Topics, func(t kmsg.CreatePartitionsResponseTopic) error {
		if t.ErrorCode != 0 {
			return about("topic "+t.Topic, kafkaError(t.ErrorCode, t.ErrorMessage))
		}
		if i := slices.IndexFunc(p.grow, func(g kmsg.CreatePartitionsRequestTopic) bool { return g.Topic == t.Topic }); i >= 0 && !noWait {
			return p.l.waitForTopics(p.ctx, []string{t.Topic}, int(p.grow[i].Count))
		}
		return nil
	})
}

func (p *applyPlan) alterConfigs(noWait bool) error {
	if len(p.changes) == 0 {
		return nil
	}
	_, err := p.l.alterConfigs(p.ctx, p.changes, alterOptions{noWait: noWait})
	return err
}
