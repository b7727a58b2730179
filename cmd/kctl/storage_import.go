package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/storage"
	"github.com/urfave/cli/v2"
)

func importColumns() []column[storage.ImportedTopic] {
	return []column[storage.ImportedTopic]{
		{key: "topic", doc: "name of the topic", value: func(t storage.ImportedTopic) any { return t.Name }},
		{key: "id", doc: "its id; all zero when Kafka was older than 2.8", value: func(t storage.ImportedTopic) any { return t.ID.String() }},
		{key: "partitions", right: true, doc: "partitions whose logs are there", value: func(t storage.ImportedTopic) any { return len(t.Partitions) }},
		{key: "records", right: true, doc: "offsets from start to end, where the end is known without opening the logs", value: func(t storage.ImportedTopic) any {
			n := int64(0)
			for _, p := range t.Partitions {
				n += max(0, p.End-p.Start)
			}
			return n
		}},
		{key: "compacted", doc: "whether Kafka's cleaner worked on it: it gets cleanup.policy=compact", value: func(t storage.ImportedTopic) any { return t.Compacted }},
	}
}

func storageImportCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "import",
		Usage:     "copy the log directories of a stopped Apache Kafka broker into a new data directory",
		ArgsUsage: "KAFKA_LOG_DIR...",
		Description: describe("Copies every topic's logs, with ids, epochs and producer state, to DIRECTORY/log, where `kctl serve --import` takes them over at its first start. Kafka's files are not changed. Settings of topics are not beside the logs and have to be made again, but a topic that was compacted stays so.",
			"kctl storage import --dry-run /var/lib/kafka/data",
			"kctl storage import --data karst-data /disk1/kafka /disk2/kafka"),
		Flags: flagSet([]cli.Flag{
			&cli.StringFlag{Name: "data", Value: "karst-data", Usage: "data `DIRECTORY` to make"},
			&cli.BoolFlag{Name: "dry-run", Usage: "show what is there, and copy nothing"},
		}, outputFlags()),
		Action: listing(s, importColumns(), s.storageImport),
	}
}

func (s *session) storageImport(c *cli.Context) ([]storage.ImportedTopic, error) {
	if err := needArgs(c, 1, -1, "log directory of Kafka"); err != nil {
		return nil, err
	}
	from := c.Args().Slice()
	for _, dir := range from {
		if _, err := os.Stat(dir); err != nil {
			return nil, &failure{status: exitNotFound, err: err}
		}
		if err := refuseInUse(vfs.OS(), dir); err != nil {
			return nil, err
		}
	}
	found, err := storage.ImportScan(vfs.OS(), from)
	if err != nil || c.Bool("dry-run") {
		return found.Topics, err
	}
	to := filepath.Join(c.String("data"), "log")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return nil, err
	}
	old, err := os.ReadDir(to)
	if err != nil {
		return nil, err
	}
	if len(old) > 0 {
		return nil, &failure{status: exitCondition, text: to + " is not empty", advice: "name a --data that does not exist yet"}
	}
	for _, dir := range from {
		if err := importDir(c, dir, to); err != nil {
			return nil, about(dir, err)
		}
	}
	s.say("%d topics; start the broker with: kctl serve --data %s --import", len(found.Topics), c.String("data"))
	return found.Topics, nil
}

// importDir copies the directories of partitions, and where the logs start and how far they were compacted. What Kafka's directories say about a clean stop is left behind: with several of them it need not be true of all.
func importDir(c *cli.Context, from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		switch {
		case e.IsDir() && partitionDirName.MatchString(name) && !strings.HasPrefix(name, "__"):
			err = copyDir(c, filepath.Join(from, name), filepath.Join(to, name))
		case !e.IsDir() && name == "meta.properties":
			if err = copyFile(filepath.Join(from, name), filepath.Join(to, name)); errors.Is(err, fs.ErrExist) {
				err = nil // of the first directory: all are of one cluster and node
			}
		case !e.IsDir() && (name == "log-start-offset-checkpoint" || name == "cleaner-offset-checkpoint"):
			err = mergeCheckpoint(filepath.Join(from, name), filepath.Join(to, name))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func mergeCheckpoint(from, to string) error {
	m, err := storage.ReadCheckpoint(vfs.OS(), from)
	if err != nil {
		return err
	}
	if have, err := storage.ReadCheckpoint(vfs.OS(), to); err == nil {
		for tp, offset := range have {
			m[tp] = offset
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return storage.WriteCheckpoint(vfs.OS(), to, m)
}

func copyDir(c *cli.Context, from, to string) error {
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := c.Context.Err(); err != nil {
			return err
		}
		if !e.Type().IsRegular() {
			continue
		}
		if err := copyFile(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return vfs.OS().SyncDir(to)
}

// copyFile copies a file with its time. It does not link: the broker goes on writing to the last segment, and Kafka's
// files stay as they are.
func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	if _, err = io.Copy(out, in); err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return os.Chtimes(to, info.ModTime(), info.ModTime())
}
