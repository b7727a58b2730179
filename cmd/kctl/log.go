package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/urfave/cli/v2"
)

func logCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:        "log",
		Usage:       "read the files of a log, without a broker",
		Subcommands: []*cli.Command{logDumpCommand(s)},
	}
}

func logDumpCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "dump",
		Usage:     "show what is in a file of a partition",
		ArgsUsage: "FILE | DIRECTORY...",
		Description: describe("Reads .log, .index, .timeindex, .txnindex, .snapshot, leader-epoch-checkpoint, partition.metadata and the checkpoints of a log directory, whether Karst or Apache Kafka wrote them. "+
			"Of a directory it shows the .log files. A line for each batch or entry; -o jsonl has the same as json. Exit status 10 when something is damaged.",
			"kctl log dump karst-data/log/orders-0/00000000000000000000.log",
			"kctl log dump karst-data/log/orders-0 --records --from 100",
			"kctl log dump karst-data/log/orders-0/leader-epoch-checkpoint -o jsonl"),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "records", Usage: "also the records in each batch"},
			&cli.Int64Flag{Name: "from", Usage: "leave out batches that end before `OFFSET`"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Category: "Output", Usage: "`FORMAT`: text (default) or jsonl"},
			colorFlag(),
		},
		Action: s.logDump,
	}
}

// dumper prints entries of one file after the other.
type dumper struct {
	s       *session
	jsonl   bool
	records bool
	from    int64
	file    string
	bad     int
	reader  *batch.Reader
}

// maxRecordsBytes bounds what the records of one batch may become when they are unpacked.
const maxRecordsBytes = 1 << 30

func (s *session) logDump(c *cli.Context) error {
	if err := needArgs(c, 1, -1, "file"); err != nil {
		return err
	}
	d := &dumper{s: s, records: c.Bool("records"), from: c.Int64("from"), reader: batch.NewReader(maxRecordsBytes)}
	defer d.reader.Close()
	switch o := c.String("output"); o {
	case "", "text", "table":
	case "json", "jsonl":
		d.jsonl = true
	default:
		return usage("unknown output format %q; there are text and jsonl", o)
	}
	files, err := logFiles(c.Args().Slice())
	if err != nil {
		return err
	}
	for _, f := range files {
		d.file = f
		if !d.jsonl && len(files) > 1 {
			fmt.Fprintf(s.out, "%s\n", f)
		}
		if err := storage.Dump(vfs.OS(), f, d.show); err != nil {
			return about(f, err)
		}
	}
	if d.bad > 0 {
		return &failure{status: exitUnhealthy, text: fmt.Sprintf("%d damaged places", d.bad), advice: "`kctl storage verify` checks whole directories"}
	}
	return nil
}

// logFiles replaces directories by the .log files in them.
func logFiles(names []string) ([]string, error) {
	var out []string
	for _, name := range names {
		info, err := vfs.OS().Stat(name)
		if err != nil {
			return nil, &failure{status: exitNotFound, err: err}
		}
		if !info.IsDir() {
			out = append(out, name)
			continue
		}
		found, err := filepath.Glob(filepath.Join(name, "*.log"))
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, &failure{status: exitNotFound, text: name + " has no .log files", advice: "name a partition's directory, such as karst-data/log/orders-0"}
		}
		slices.Sort(found)
		out = append(out, found...)
	}
	return out, nil
}

func (d *dumper) show(e storage.DumpEntry) error {
	if e.Batch != nil && e.Bad == nil && e.Batch.LastOffset() < d.from {
		return nil
	}
	if e.Bad != nil {
		d.bad++
	}
	o := append(object{}, entryMembers(e)...)
	if err := d.print(o); err != nil {
		return err
	}
	if e.Batch != nil && e.Bad == nil && d.records {
		return d.showRecords(e.Batch)
	}
	return nil
}

func (d *dumper) print(o object) error {
	if d.jsonl {
		b, err := jsonBytes(append(object{{"file", d.file}}, o...))
		if err != nil {
			return err
		}
		_, err = d.s.out.Write(append(b, '\n'))
		return err
	}
	var words []string
	for _, m := range o {
		if m.key == "kind" {
			continue
		}
		words = append(words, m.key+"="+cmp.Or(plainText(m.value), "-"))
	}
	_, err := fmt.Fprintln(d.s.out, strings.Join(words, " "))
	return err
}

func entryMembers(e storage.DumpEntry) object {
	switch {
	case e.Batch != nil:
		return batchMembers(e)
	case e.Bad != nil:
		return object{{"kind", "damage"}, {"position", e.Pos}, {"damage", e.Bad.Error()}}
	case e.Offset != nil:
		return object{{"kind", "index"}, {"offset", e.Offset.Offset}, {"position", e.Offset.Position}}
	case e.Time != nil:
		return object{{"kind", "timeindex"}, {"timestamp", formatMillis(e.Time.Timestamp)}, {"offset", e.Time.Offset}}
	case e.Aborted != nil:
		return object{{"kind", "aborted"}, {"producer_id", e.Aborted.ProducerID}, {"first_offset", e.Aborted.First}, {"last_offset", e.Aborted.Last}}
	case e.Producer != nil:
		p := e.Producer
		return object{
			{"kind", "producer"},
			{"producer_id", p.ID},
			{"producer_epoch", p.Epoch},
			{"last_sequence", p.LastSequence},
			{"last_timestamp", formatMillis(p.LastTimestamp)},
			{"coordinator_epoch", p.CoordinatorEpoch},
			{"txn_first_offset", p.TxnFirst},
		}
	case e.Epoch != nil:
		return object{{"kind", "epoch"}, {"epoch", e.Epoch.Epoch}, {"start_offset", e.Epoch.Start}}
	case e.TopicID != nil:
		return object{{"kind", "topic"}, {"topic_id", e.TopicID.TopicID.String()}}
	}
	o := object{{"kind", "checkpoint"}}
	for _, tp := range sortedPartitions(e.Ends) {
		o = append(o, member{fmt.Sprintf("%s-%d", tp.Topic, tp.Partition), e.Ends[tp]})
	}
	return o
}

func sortedPartitions(m map[storage.TopicPartition]int64) []storage.TopicPartition {
	var out []storage.TopicPartition
	for tp := range m {
		out = append(out, tp)
	}
	slices.SortFunc(out, func(a, b storage.TopicPartition) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return out
}

func batchMembers(e storage.DumpEntry) object {
	b := e.Batch
	stamped := "CreateTime"
	if b.LogAppendTime() {
		stamped = "LogAppendTime"
	}
	o := object{
		{"kind", "batch"},
		{"position", e.Pos},
		{"base_offset", b.BaseOffset()},
		{"last_offset", b.LastOffset()},
		{"count", b.RecordCount()},
		{"epoch", b.LeaderEpoch()},
		{"producer_id", b.ProducerID()},
		{"producer_epoch", b.ProducerEpoch()},
		{"sequence", b.BaseSequence()},
		{"transactional", b.Transactional()},
		{"control", b.Control()},
		{"codec", b.Codec().String()},
		{"timestamp_type", stamped},
		{"max_timestamp", formatMillis(b.MaxTimestamp())},
		{"size", b.Size()},
		{"crc", "ok"},
	}
	if e.Bad != nil {
		o[len(o)-1].value = "bad"
		o = append(o, member{"damage", e.Bad.Error()})
	}
	return o
}

func (d *dumper) showRecords(b batch.Batch) error {
	if err := d.reader.Reset(b); err != nil {
		d.bad++
		return d.print(object{{"kind", "damage"}, {"base_offset", b.BaseOffset()}, {"damage", err.Error()}})
	}
	for d.reader.Next() {
		r := d.reader.Record()
		rec := &kgo.Record{Offset: r.Offset, Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: string(h.Key), Value: h.Value})
		}
		line := fmt.Appendf(nil, "  offset=%d timestamp=%s key=%s headers=%s value=%s\n", r.Offset, formatMillis(r.Timestamp),
			appendBytes(nil, r.Key), appendHeaders(nil, rec.Headers), appendBytes(nil, r.Value))
		if d.jsonl {
			line = appendString([]byte(`{"file":`), []byte(d.file))
			line = fmt.Appendf(line, `,"kind":"record","offset":%d,"timestamp":%q,"key":%s,"headers":%s,"value":%s}`+"\n", r.Offset, formatMillis(r.Timestamp),
				appendBytes(nil, r.Key), appendHeaders(nil, rec.Headers), appendBytes(nil, r.Value))
		}
		if _, err := d.s.out.Write(line); err != nil {
			return err
		}
	}
	if err := d.reader.Err(); err != nil {
		d.bad++
		return d.print(object{{"kind", "damage"}, {"base_offset", b.BaseOffset()}, {"damage", err.Error()}})
	}
	return nil
}
