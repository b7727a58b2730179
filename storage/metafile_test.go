package storage

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
)

func parseUUID(t testing.TB, s string) uuid.UUID {
	t.Helper()
	id, err := uuid.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestKafkaMetaFilesAreReadAndWrittenByteForByte(t *testing.T) {
	m := vfs.NewMem(1)
	kafkaDir(t, m, "/k")
	meta, err := ReadMetaProperties(m, "/k")
	want := MetaProperties{Version: 1, ClusterID: "MkU3OEVBNTcwNTJENDM2Qg", NodeID: 1, DirectoryID: parseUUID(t, "2zlywZe3jBHgzrbVHmA-LQ")}
	if d := cmp.Diff(want, meta); d != "" || err != nil {
		t.Error(d, err)
	}
	if d := cmp.Diff(slurp(t, m, "/k/meta.properties"), string(want.encode(time.Date(2026, 11, 29, 17, 38, 43, 0, time.UTC)))); d != "" {
		t.Error(d)
	}
	p, err := ReadPartitionMetadata(m, "/k/trimmed-0")
	if err != nil || p.TopicID.String() != "OVz3UowMR8u_lC0Ktg94OQ" {
		t.Error(p, err)
	}
	if d := cmp.Diff(slurp(t, m, "/k/trimmed-0/partition.metadata"), string(p.encode())); d != "" || len(p.encode()) != 43 {
		t.Error(d)
	}
}

func TestMetaPropertiesForms(t *testing.T) {
	id := "2zlywZe3jBHgzrbVHmA-LQ"
	for text, want := range map[string]MetaProperties{
		"version=0\nbroker.id=3\ncluster.id=abc\n":                                   {0, "abc", 3, uuid.UUID{}},
		"version = 0\r\nbroker.id : 3\r\n":                                           {0, "", 3, uuid.UUID{}},
		"! note\n  version=1\ncluster.id=my\\ \\\n   id\nnode.id 2":                  {1, "my id", 2, uuid.UUID{}},
		"version=1\ncluster.id=\\u00e9\\uD83D\\uDE00\nnode.id=0\ndirectory.id=" + id: {1, "é😀", 0, parseUUID(t, id)},
	} {
		got, err := parseMetaProperties([]byte(text))
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%q: %s %v", text, d, err)
		}
	}
	for _, text := range []string{
		"", "version=2\nnode.id=1\ncluster.id=x", "version=1\nnode.id=1", "version=1\ncluster.id=x", "version=1\ncluster.id=x\nnode.id=-1",
		"version=1\ncluster.id=x\nnode.id=1\ndirectory.id=zz", "version=1\nversion=1\ncluster.id=x\nnode.id=1", "version=1\ncluster.id=\xff\nnode.id=1",
		"version=1\ncluster.id=\\u00\nnode.id=1", "\x00\x00", "version=0\nnode.id=1",
	} {
		if m, err := parseMetaProperties([]byte(text)); err == nil {
			t.Errorf("%q: %+v", text, m)
		}
	}
}

func TestMetaPropertiesSurviveARoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := vfs.NewMem(1)
		want := MetaProperties{
			Version: 1, ClusterID: rapid.StringN(1, 30, -1).Draw(t, "cluster"), NodeID: rapid.Int32Min(0).Draw(t, "node"),
			DirectoryID: uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id")),
		}
		if err := WriteMetaProperties(m, "/", want, t0); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadMetaProperties(m, "/"); err != nil || got != want {
			t.Fatalf("%+v, want %+v: %v", got, want, err)
		}
	})
}

func TestDamagedPartitionMetadataIsNoticed(t *testing.T) {
	id := parseUUID(t, "OVz3UowMR8u_lC0Ktg94OQ")
	good := PartitionMetadata{id}.encode()
	for i := range len(good) * 8 {
		bad := append([]byte(nil), good...)
		bad[i/8] ^= 1 << (i % 8)
		got, err := parsePartitionMetadata(string(bad))
		if err == nil && (got.TopicID == id || !flippedID(got.TopicID, id)) {
			t.Errorf("bit %d: %q passes as another topic", i, bad)
		}
	}
	for _, text := range []string{"", "version: 0", "version: 1\ntopic_id: OVz3UowMR8u_lC0Ktg94OQ", "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", strings.Repeat("\x00", 43)} {
		if m, err := parsePartitionMetadata(text); err == nil {
			t.Errorf("%q: %v", text, m)
		}
	}
	m := vfs.NewMem(1)
	if _, err := ReadPartitionMetadata(m, "/"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if flippedID(uuid.UUID{1}, uuid.UUID{2}) || flippedID(id, id) || flippedID(uuid.UUID{}, id) {
		t.Error("ids that are no damage of each other")
	}
}

func FuzzMetaProperties(f *testing.F) {
	f.Add([]byte("#\n#Sun Nov 29 17:38:43 UTC 2026\nnode.id=1\ndirectory.id=2zlywZe3jBHgzrbVHmA-LQ\nversion=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMetaProperties(b)
		if err != nil {
			return
		}
		if back, err := parseMetaProperties(m.encode(t0)); err != nil || back != m {
			t.Fatalf("%+v comes back as %+v: %v", m, back, err)
		}
	})
}

func FuzzPartitionMetadata(f *testing.F) {
	f.Add("version: 0\ntopic_id: OVz3UowMR8u_lC0Ktg94OQ")
	f.Fuzz(func(t *testing.T, s string) {
		if m, err := parsePartitionMetadata(s); err == nil && string(m.encode()) != strings.TrimSuffix(s, "\n") {
			t.Fatalf("%q is read as %v", s, m)
		}
	})
}
