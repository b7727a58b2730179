package main

import (
	"fmt"
	"path/filepath"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/storage"
	"github.com/urfave/cli/v2"
)

// repaired is a range that was given up in one partition's directory.
type repaired struct {
	dir string
	storage.Repaired
}

func repairColumns() []column[repaired] {
	return []column[repaired]{
		{key: "directory", doc: "the partition's directory", value: func(r repaired) any { return r.dir }},
		{key: "file", doc: "name of the damaged file", value: func(r repaired) any { return r.File }},
		{key: "position", right: true, doc: "where the damage begins", value: func(r repaired) any { return r.Pos }},
		{key: "bytes", right: true, doc: "bytes of it", value: func(r repaired) any { return r.Bytes }},
		{key: "from", right: true, doc: "first offset that is given up", value: func(r repaired) any { return r.From }},
		{key: "to", right: true, doc: "first offset behind; the same as from where a torn end is cut off", value: func(r repaired) any { return r.To }},
		{key: "reason", doc: "what is wrong", value: func(r repaired) any { return r.Reason }},
	}
}

func storageRepairCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "repair",
		Usage:     "give up the damaged records of logs that have no other copy",
		ArgsUsage: "[DIRECTORY...]",
		Description: describe("Replaces damaged batches by empty ones that take their offsets, and cuts the log behind its last sound batch. All else stays. The damaged files are kept beside the new ones, "+
			"ending in .damaged. Where the cluster has another replica, do not repair: delete the partition's directory and let the broker copy it. The broker must not be running.",
			"kctl storage repair --dry-run --data karst-data",
			"kctl storage repair --yes karst-data/log/orders-0"),
		Flags: flagSet([]cli.Flag{
			&cli.StringSliceFlag{Name: "data", Usage: "`DIRECTORY` to repair; repeatable (default: karst-data)"},
			&cli.BoolFlag{Name: "dry-run", Usage: "show what would be given up, and change nothing"},
			yesFlag(),
		}, outputFlags()),
		Action: listing(s, repairColumns(), s.storageRepair),
	}
}

func (s *session) storageRepair(c *cli.Context) ([]repaired, error) {
	dirs, err := dataDirs(c)
	if err != nil {
		return nil, err
	}
	found, err := repairAll(c, dirs, true)
	if err != nil || len(found) == 0 || c.Bool("dry-run") {
		s.say("%d damaged places in %d partitions", len(found), len(dirs))
		return found, err
	}
	var losses []string
	for _, r := range found {
		losses = append(losses, fmt.Sprintf("%s: %d records at most, offsets %d to %d", filepath.Join(r.dir, r.File), r.To-r.From, r.From, r.To))
	}
	if err := s.confirm(c, losses, "repair"); err != nil {
		return nil, err
	}
	found, err = repairAll(c, dirs, false)
	s.say("%d damaged places given up in %d partitions", len(found), len(dirs))
	return found, err
}

func repairAll(c *cli.Context, dirs []string, check bool) ([]repaired, error) {
	var out []repaired
	for _, dir := range dirs {
		if c.Context.Err() != nil {
			return out, c.Context.Err()
		}
		rs, err := storage.Repair(vfs.OS(), dir, check)
		for _, r := range rs {
			out = append(out, repaired{dir, r})
		}
		if err != nil {
			return out, about(dir, err)
		}
	}
	return out, nil
}
