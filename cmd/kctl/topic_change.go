package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/karstlog/karst/config"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"
)

func topicCreateCommand(s *session) *cli.Command {
	cols := changeColumns(
		detail("partitions", "", "number of partitions", plainText),
		detail("replication_factor", "RF", "replicas of each partition", plainText),
		detail("id", "-", "the id of the topic", nil),
		detail("configs", "-", "the settings given", nil),
	)
	return &cli.Command{
		Name:      "create",
		Usage:     "create topics",
		ArgsUsage: "TOPIC...",
		Description: describe("Waits until every live broker knows the topic and each partition has a leader.",
			"kctl topic create orders",
			"kctl topic create orders -p 6 -r 3 -c retention.ms=7d -c cleanup.policy=compact,delete",
			"kctl topic create orders --if-not-exists --dry-run -o json",
			"kctl topic create placed --assignments '0:1,2;1:2,3'"),
		Flags: flagSet([]cli.Flag{
			&cli.IntFlag{Name: "partitions", Aliases: []string{"p"}, Usage: "`N` partitions (default: the broker's num.partitions)"},
			&cli.IntFlag{Name: "replication-factor", Aliases: []string{"r"}, Usage: "`N` replicas of each (default: the broker's default.replication.factor)"},
			configFlag(),
			&cli.StringSliceFlag{Name: "assignments", Usage: "`PARTITION:BROKER,BROKER`: place replicas by hand, the preferred leader first; repeat or separate by semicolons"},
			&cli.BoolFlag{Name: "if-not-exists", Usage: "no error when the topic is there already"},
			dryRunFlag(), noWaitFlag(),
		}, outputFlags(), clientFlags()),
		Action: listing(s, cols, s.topicCreate),
	}
}

func (s *session) topicCreate(c *cli.Context) ([]change, error) {
	if err := needArgs(c, 1, -1, "topic"); err != nil {
		return nil, err
	}
	template, err := newTopic(c)
	if err != nil {
		return nil, err
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis, req.ValidateOnly = int32(l.timeout.Milliseconds()), c.Bool("dry-run")
	for _, name := range c.Args().Slice() {
		t := template
		t.Topic = name
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, l.cl)
	if err != nil {
		return nil, err
	}
	var done []change
	var made []string
	err = each(resp.Topics, func(t kmsg.CreateTopicsResponseTopic) error {
		row := change{topic: t.Topic, action: "create", status: status(req.ValidateOnly)}
		switch {
		case t.ErrorCode == kerr.TopicAlreadyExists.Code && c.Bool("if-not-exists"):
			row.status = "unchanged"
		case t.ErrorCode != 0:
			return about("topic "+t.Topic, configHint(kafkaError(t.ErrorCode, t.ErrorMessage), template.Configs))
		default:
			made = append(made, t.Topic)
		}
		row.details = createDetails(t, template)
		done = append(done, row)
		return nil
	})
	if len(made) > 0 && !req.ValidateOnly && !c.Bool("no-wait") {
		if waitErr := l.waitForTopics(ctx, made, 1); waitErr != nil && err == nil {
			err = waitErr
		}
	}
	return done, err
}

func newTopic(c *cli.Context) (kmsg.CreateTopicsRequestTopic, error) {
	t := kmsg.NewCreateTopicsRequestTopic()
	t.NumPartitions, t.ReplicationFactor = -1, -1
	for _, f := range []struct {
		name string
		set  func(int)
		most int
	}{
		{"partitions", func(n int) { t.NumPartitions = int32(n) }, 1 << 24},
		{"replication-factor", func(n int) { t.ReplicationFactor = int16(n) }, 1<<15 - 1},
	} {
		if n := c.Int(f.name); c.IsSet(f.name) {
			if n < 1 || n > f.most {
				return t, usage("--%s is at least 1", f.name)
			}
			f.set(n)
		}
	}
	var err error
	if t.ReplicaAssignment, err = parseAssignments(c.StringSlice("assignments")); err != nil {
		return t, err
	}
	if len(t.ReplicaAssignment) > 0 && (t.NumPartitions != -1 || t.ReplicationFactor != -1) {
		return t, usage("--assignments says both number of partitions and replication factor; leave -p and -r out")
	}
	pairs, err := configPairs(c.StringSlice("config"))
	for _, m := range pairs {
		cfg := kmsg.NewCreateTopicsRequestTopicConfig()
		v := canonical(config.ScopeTopic, m.key, m.value.(string))
		cfg.Name, cfg.Value = m.key, &v
		t.Configs = append(t.Configs, cfg)
	}
	return t, err
}

// canonical turns "7d" into what Kafka understands where the option is known and the value right; everything else goes
// to the broker as it is, which knows its own settings best.
func canonical(scope config.Scope, name, value string) string {
	if o, ok := config.Lookup(scope, name); ok {
		if v, err := o.Canonical(value); err == nil {
			return v
		}
	}
	return value
}

// configHint adds the name that was perhaps meant to a broker's refusal of a setting.
func configHint(err error, given []kmsg.CreateTopicsRequestTopicConfig) error {
	for _, g := range given {
		if _, known := config.Lookup(config.ScopeTopic, g.Name); !known && err != nil {
			if near := config.Suggest(config.ScopeTopic, g.Name); near != "" {
				return &failure{err: err, advice: fmt.Sprintf("%s is not known; did you mean %s?", g.Name, near)}
			}
		}
	}
	return err
}

func createDetails(t kmsg.CreateTopicsResponseTopic, asked kmsg.CreateTopicsRequestTopic) object {
	var o object
	if n := max(t.NumPartitions, asked.NumPartitions, int32(len(asked.ReplicaAssignment))); n > 0 {
		o = append(o, member{"partitions", n})
	}
	if n := max(t.ReplicationFactor, asked.ReplicationFactor); n > 0 {
		o = append(o, member{"replication_factor", n})
	}
	if t.TopicID != [16]byte{} {
		o = append(o, member{"id", topicID(t.TopicID)})
	}
	configs := object{}
	for _, c := range asked.Configs {
		configs = append(configs, member{c.Name, *c.Value})
	}
	return append(o, member{"configs", configs})
}

// parseAssignments reads "0:1,2;1:2,3".
func parseAssignments(given []string) ([]kmsg.CreateTopicsRequestTopicReplicaAssignment, error) {
	var out []kmsg.CreateTopicsRequestTopicReplicaAssignment
	for _, part := range strings.Split(strings.Join(given, ";"), ";") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		number, brokers, ok := strings.Cut(part, ":")
		p, err := strconv.ParseInt(number, 10, 32)
		if !ok || err != nil || p < 0 {
			return nil, usage("--assignments %s: want PARTITION:BROKER,BROKER", part)
		}
		a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		a.Partition = int32(p)
		for _, b := range strings.Split(brokers, ",") {
			id, err := strconv.ParseInt(strings.TrimSpace(b), 10, 32)
			if err != nil || id < 0 {
				return nil, usage("--assignments %s: %q is no broker id", part, b)
			}
			a.Replicas = append(a.Replicas, int32(id))
		}
		out = append(out, a)
	}
	return out, nil
}

func topicAddPartitionsCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "add-partitions",
		Usage:     "give topics more partitions",
		ArgsUsage: "TOPIC...",
		Description: describe("Partitions cannot be taken away again. Records with a key go to other partitions afterwards than before, so their order across the change is lost.",
			"kctl topic add-partitions orders --to 12",
			"kctl topic add-partitions orders --to 12 --dry-run"),
		Flags: flagSet([]cli.Flag{
			&cli.IntFlag{Name: "to", Usage: "`N` partitions in all"},
			dryRunFlag(), noWaitFlag(),
		}, outputFlags(), clientFlags()),
		Action: listing(s, changeColumns(
			detail("from", "", "partitions before", plainText), detail("to", "", "partitions after", plainText),
		), s.topicAddPartitions),
	}
}

func (s *session) topicAddPartitions(c *cli.Context) ([]change, error) {
	if err := needArgs(c, 1, -1, "topic"); err != nil {
		return nil, err
	}
	to := c.Int("to")
	if to < 1 {
		return nil, usage("missing --to N, the number of partitions in all")
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	topics, err := l.topics(ctx, c.Args().Slice(), "", true)
	if err != nil {
		return nil, err
	}
	from := map[string]int{}
	req := kmsg.NewPtrCreatePartitionsRequest()
	req.TimeoutMillis, req.ValidateOnly = int32(l.timeout.Milliseconds()), c.Bool("dry-run")
	for _, t := range topics {
		from[*t.Topic] = len(t.Partitions)
		r := kmsg.NewCreatePartitionsRequestTopic()
		r.Topic, r.Count = *t.Topic, int32(to)
		req.Topics = append(req.Topics, r)
	}
	s.say("%s records with a key will go to other partitions than before", s.paint("33", "warning:"))
	resp, err := req.RequestWith(ctx, l.cl)
	if err != nil {
		return nil, err
	}
	var done []change
	var grown []string
	err = each(resp.Topics, func(t kmsg.CreatePartitionsResponseTopic) error {
		if t.ErrorCode != 0 {
			return about("topic "+t.Topic, kafkaError(t.ErrorCode, t.ErrorMessage))
		}
		grown = append(grown, t.Topic)
		done = append(done, change{t.Topic, "add-partitions", status(req.ValidateOnly), object{{"from", from[t.Topic]}, {"to", to}}})
		return nil
	})
	if len(grown) > 0 && !req.ValidateOnly && !c.Bool("no-wait") {
		if waitErr := l.waitForTopics(ctx, grown, to); waitErr != nil && err == nil {
			err = waitErr
		}
	}
	return done, err
}
