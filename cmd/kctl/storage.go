package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/storage"
	"github.com/urfave/cli/v2"
)

func storageCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:        "storage",
		Usage:       "check, repair and import the data directories of a stopped broker",
		Subcommands: []*cli.Command{storageVerifyCommand(s), storageRepairCommand(s), storageImportCommand(s)},
	}
}

// verdict is what was found in one partition's directory.
type verdict struct {
	dir    string
	report storage.Report
}

type problemJSON struct {
	File       string `json:"file"`
	Position   int64  `json:"position"`
	Reason     string `json:"reason"`
	Repairable bool   `json:"repairable"`
}

func verdictColumns() []column[verdict] {
	return []column[verdict]{
		{key: "directory", doc: "the partition's directory", value: func(v verdict) any { return v.dir }},
		{key: "segments", right: true, doc: "number of .log files", value: func(v verdict) any { return v.report.Segments }},
		{key: "batches", right: true, doc: "batches in them", value: func(v verdict) any { return v.report.Batches }},
		{key: "records", right: true, doc: "records in them", value: func(v verdict) any { return v.report.Records }},
		{key: "start", right: true, doc: "offset of the first batch", value: func(v verdict) any { return v.report.Start }},
		{key: "end", right: true, doc: "offset behind the last batch", value: func(v verdict) any { return v.report.End }},
		{key: "size_bytes", head: "SIZE", right: true, doc: "bytes of the .log files", value: func(v verdict) any { return v.report.Bytes }, text: func(v verdict) string { return formatSize(v.report.Bytes) }},
		{key: "problems", doc: "what is wrong: file, position (-1: all of it), reason, and whether it is made anew from the log by itself", value: func(v verdict) any {
			out := []problemJSON{}
			for _, p := range v.report.Problems {
				out = append(out, problemJSON{p.File, p.Pos, p.Reason, p.Cache})
			}
			return out
		}, text: func(v verdict) string { return fmt.Sprint(len(v.report.Problems)) }},
	}
}

func storageVerifyCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "verify",
		Usage:     "read every file and say what is damaged, changing nothing",
		ArgsUsage: "[DIRECTORY...]",
		Description: describe("Checks length and CRC of every batch, offsets, indexes, epochs and snapshots, of directories that Karst or Apache Kafka wrote. A directory is Karst's --data, a log directory, or one "+
			"partition's. The broker must not be running. Exit status 10 when records are damaged; with --strict also for what a broker makes anew from the log when it starts.",
			"kctl storage verify --data karst-data",
			"kctl storage verify --deep -o json /var/lib/kafka",
			"kctl storage verify karst-data/log/orders-0"),
		Flags: flagSet([]cli.Flag{
			&cli.StringSliceFlag{Name: "data", Usage: "`DIRECTORY` to check; repeatable (default: karst-data)"},
			&cli.BoolFlag{Name: "deep", Usage: "also unpack every batch and read its records"},
			&cli.BoolFlag{Name: "strict", Usage: "exit status 10 also for files that are made anew"},
		}, outputFlags()),
		Action: listing(s, verdictColumns(), s.storageVerify),
	}
}

func (s *session) storageVerify(c *cli.Context) ([]verdict, error) {
	dirs, err := dataDirs(c)
	if err != nil {
		return nil, err
	}
	fs := vfs.OS()
	var out []verdict
	var damaged, repairable int
	for _, dir := range dirs {
		if c.Context.Err() != nil {
			return out, c.Context.Err()
		}
		report, err := storage.Verify(fs, dir, storage.VerifyOptions{Deep: c.Bool("deep")})
		if err != nil {
			return out, about(dir, err)
		}
		out = append(out, verdict{dir, report})
		for _, p := range report.Problems {
			kind := s.paint("31", "damaged:")
			if p.Cache {
				kind = s.paint("33", "made anew at the next start:")
				repairable++
			} else {
				damaged++
			}
			s.say("%s %s at %d: %s", kind, filepath.Join(dir, p.File), p.Pos, p.Reason)
		}
	}
	s.say("%d partitions, %d damaged places, %d files to be made anew", len(out), damaged, repairable)
	if damaged > 0 || repairable > 0 && c.Bool("strict") {
		return out, &failure{
			status: exitUnhealthy, text: "the data is not clean",
			advice: "`kctl log dump FILE` shows what is around a position; keep a copy before anything else",
		}
	}
	return out, nil
}

// dataDirs are the partitions' directories in what --data and the arguments name.
func dataDirs(c *cli.Context) ([]string, error) {
	roots := append(c.StringSlice("data"), c.Args().Slice()...)
	if len(roots) == 0 {
		roots = []string{"karst-data"}
	}
	var dirs []string
	for _, root := range roots {
		found, err := partitionDirs(vfs.OS(), root)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, found...)
	}
	return dirs, nil
}

var partitionDirName = regexp.MustCompile(`^.+-[0-9]+$`)

// partitionDirs finds the directories of partitions in a data directory, a log directory, or the directory itself.
func partitionDirs(fs vfs.FS, root string) ([]string, error) {
	entries, err := fs.ReadDir(root)
	if err != nil {
		return nil, &failure{status: exitNotFound, err: err, advice: "name the data directory: --data DIR"}
	}
	var out []string
	for _, e := range entries {
		switch {
		case !e.IsDir() && filepath.Ext(e.Name()) == ".log" && partitionDirName.MatchString(filepath.Base(filepath.Clean(root))):
			return []string{root}, nil
		case !e.IsDir() && e.Name() == ".lock":
			if err := refuseInUse(fs, root); err != nil {
				return nil, err
			}
		case e.IsDir() && partitionDirName.MatchString(e.Name()):
			out = append(out, filepath.Join(root, e.Name()))
		case e.IsDir() && e.Name() == "log" && len(entries) < 20:
			inner, err := partitionDirs(fs, filepath.Join(root, "log"))
			if err != nil {
				return nil, err
			}
			out = append(out, inner...)
		}
	}
	return out, nil
}

// refuseInUse stops where a broker is at work: what it is writing would look torn.
func refuseInUse(fs vfs.FS, root string) error {
	lock, err := fs.Lock(filepath.Join(root, ".lock"))
	if errors.Is(err, vfs.ErrLocked) {
		return &failure{status: exitCondition, text: root + " is in use by a running broker", advice: "stop it first"}
	}
	if err != nil {
		return nil // not ours to lock (read-only): look anyway
	}
	return lock.Close()
}
