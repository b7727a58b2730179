package karsttest_test

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/karstlog/karst/karsttest"
)

// Commits that later ones have replaced go from the disk while the broker runs, and the last ones are there after a restart.
func TestOldCommitsGo(t *testing.T) {
	const partitions, rounds = 100, 600
	b := karsttest.Start(t, karsttest.OnDisk(t.TempDir()), karsttest.Topic("t", partitions),
		karsttest.Setting("offsets.topic.num.partitions", "1"), karsttest.Setting("offsets.topic.segment.bytes", "1048576"),
		karsttest.Setting("log.cleaner.backoff.ms", "100"))
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Bootstrap()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	size := func() int64 {
		dirs, err := adm.DescribeAllLogDirs(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		n := int64(0)
		dirs.Each(func(d kadm.DescribedLogDir) { n += d.Topics["__consumer_offsets"][0].Size })
		return n
	}
	written := int64(0)
	for round := range rounds {
		offsets := kadm.Offsets{}
		for p := range int32(partitions) {
			offsets.Add(kadm.Offset{Topic: "t", Partition: p, At: int64(round), LeaderEpoch: -1})
		}
		if err := adm.CommitAllOffsets(t.Context(), "g", offsets); err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			written = size()
		}
	}
	most := written * rounds / 3 // a segment that is written to, and little more
	for end := time.Now().Add(time.Minute); size() > most; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are left of %d commits of %d bytes", size(), rounds, written)
		}
	}
	b.Restart()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, err := adm.FetchOffsets(ctx, "g")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	got.Each(func(o kadm.OffsetResponse) {
		if n++; o.At != rounds-1 || o.Err != nil {
			t.Errorf("partition %d: %+v", o.Partition, o)
		}
	})
	if n != partitions {
		t.Errorf("offsets of %d partitions", n)
	}
}
