package main

import (
	"github.com/karstlog/karst/config"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"
)

func topicAlterCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "alter",
		Usage:     "change settings of topics",
		ArgsUsage: "TOPIC...",
		Description: describe("Settings that are not named stay as they are. `kctl config set topic` does the same for one topic.",
			"kctl topic alter orders -c retention.ms=3d",
			"kctl topic alter orders payments --unset compression.type -c max.message.bytes=2MiB",
			"kctl topic alter orders -c cleanup.policy=compact --dry-run"),
		Flags: flagSet([]cli.Flag{
			configFlag(),
			&cli.StringSliceFlag{Name: "unset", Usage: "take setting `KEY` back to what holds without it; repeatable"},
			dryRunFlag(), noWaitFlag(),
		}, outputFlags(), clientFlags()),
		Action: listing(s, alterationColumns(), s.topicAlter),
	}
}

func (s *session) topicAlter(c *cli.Context) ([]alteration, error) {
	if err := needArgs(c, 1, -1, "topic"); err != nil {
		return nil, err
	}
	pairs, err := configPairs(c.StringSlice("config"))
	if err != nil {
		return nil, err
	}
	if len(pairs)+len(c.StringSlice("unset")) == 0 {
		return nil, usage("nothing to change: give -c KEY=VALUE or --unset KEY")
	}
	var changes []alteration
	for _, topic := range c.Args().Slice() {
		r := resource{kmsg.ConfigResourceTypeTopic, topic}
		for _, p := range pairs {
			v := canonical(config.ScopeTopic, p.key, p.value.(string))
			changes = append(changes, alteration{resource: r, key: p.key, to: &v, op: kmsg.IncrementalAlterConfigOpSet})
		}
		for _, k := range c.StringSlice("unset") {
			changes = append(changes, alteration{resource: r, key: k, op: kmsg.IncrementalAlterConfigOpDelete})
		}
	}
	return s.alter(c, changes)
}
