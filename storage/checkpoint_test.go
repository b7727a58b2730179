package storage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/karstlog/karst/internal/vfs"
)

// kafkaDir is a log directory that Apache Kafka 4.4 wrote and closed, unpacked to dir.
func kafkaDir(t testing.TB, fsys vfs.FS, dir string) {
	t.Helper()
	f, err := os.Open("testdata/kafka-4.4-logdir.tgz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := fsys.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		name := path.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = fsys.MkdirAll(name, 0o755)
		} else {
			var b []byte
			if b, err = io.ReadAll(r); err == nil {
				err = errors.Join(fsys.MkdirAll(path.Dir(name), 0o755), writeSynced(fsys, name, b), fsys.SyncDir(path.Dir(name)))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func slurp(t testing.TB, fsys vfs.FS, name string) string {
	t.Helper()
	b, err := readFile(fsys, name, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestKafkaCheckpointsAreRead(t *testing.T) {
	m := vfs.NewMem(1)
	kafkaDir(t, m, "/k")
	points, err := ReadCheckpoint(m, "/k/"+recoveryPointFile)
	if err != nil || len(points) != 59 || points[TopicPartition{"plain", 0}] != 3000 || points[TopicPartition{"txn", 0}] != 36 {
		t.Errorf("%d recovery points, %v, %v", len(points), points, err)
	}
	starts, err := ReadCheckpoint(m, "/k/"+logStartFile)
	if d := cmp.Diff(map[TopicPartition]int64{{"trimmed", 0}: 60}, starts); d != "" || err != nil {
		t.Error(d, err)
	}
	if m, err := ReadCheckpoint(m, "/k/cleaner-offset-checkpoint"); err != nil || len(m) != 0 {
		t.Errorf("empty file: %v %v", m, err)
	}
	epochs, err := ReadEpochFile(m, "/k/trimmed-0/leader-epoch-checkpoint")
	if d := cmp.Diff([]EpochStart{{0, 60}}, epochs); d != "" || err != nil {
		t.Error(d, err)
	}
	if got, want := string(appendEpochs(nil, epochs)), slurp(t, m, "/k/trimmed-0/leader-epoch-checkpoint"); got != want {
		t.Errorf("wrote %q, Kafka %q", got, want)
	}
}

func TestCheckpointIsWrittenAsKafkaReadsIt(t *testing.T) {
	m := vfs.NewMem(1)
	at := map[TopicPartition]int64{{"b", 1}: 7, {"a", 10}: 0, {"a", 2}: 1 << 62}
	if err := WriteCheckpoint(m, "/c", at); err != nil {
		t.Fatal(err)
	}
	want := "0\n4\na 2 4611686018427387904\na 10 0\nb 1 7\nkarst:crc32c 0 3154195271\n"
	if d := cmp.Diff(want, slurp(t, m, "/c")); d != "" {
		t.Error(d)
	}
}

func TestCheckpointsSurviveARoundTrip(t *testing.T) {
	topics := rapid.StringMatching(`[a-zA-Z0-9._-]{1,30}`).Filter(validTopic)
	rapid.Check(t, func(t *rapid.T) {
		m, want := vfs.NewMem(1), map[TopicPartition]int64{}
		for range rapid.IntRange(0, 20).Draw(t, "n") {
			tp := TopicPartition{topics.Draw(t, "topic"), rapid.Int32Min(0).Draw(t, "partition")}
			want[tp] = rapid.Int64Min(0).Draw(t, "offset")
		}
		if err := WriteCheckpoint(m, "/c", want); err != nil {
			t.Fatal(err)
		}
		got, err := ReadCheckpoint(m, "/c")
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Fatal(d, err)
		}
		var es []EpochStart
		e, o := int32(-1), int64(-1)
		for range rapid.IntRange(0, 20).Draw(t, "epochs") {
			e += rapid.Int32Range(1, 100).Draw(t, "step")
			o += rapid.Int64Range(1, 1<<40).Draw(t, "offset")
			es = append(es, EpochStart{e, o})
		}
		if err := WriteEpochFile(m, "/e", es); err != nil {
			t.Fatal(err)
		}
		if back, err := ReadEpochFile(m, "/e"); !slices.Equal(es, back) || err != nil {
			t.Fatal(es, back, err)
		}
	})
}

// Every flipped bit and every cut of a checkpoint is noticed.
func TestDamagedCheckpointsAreNoticed(t *testing.T) {
	m := vfs.NewMem(1)
	want := map[TopicPartition]int64{{"orders", 0}: 1234567, {"orders", 1}: 99, {"x", 0}: 8}
	if err := WriteCheckpoint(m, "/c", want); err != nil {
		t.Fatal(err)
	}
	good := []byte(slurp(t, m, "/c"))
	for i := range len(good) * 8 {
		bad := bytes.Clone(good)
		bad[i/8] ^= 1 << (i % 8)
		if got, err := parseCheckpoint(bad); err == nil && !cmp.Equal(got, want) {
			if _, renamed := strings.CutPrefix(string(bad), string(good[:bytes.Index(good, []byte(checksumName))])); !renamed {
				t.Fatalf("bit %d: %q passes", i, bad)
			}
		}
	}
	for n := 1; n < len(good); n++ {
		if _, err := parseCheckpoint(good[:n]); err == nil {
			t.Fatalf("first %d bytes pass", n)
		}
	}
}

func TestStrictParsers(t *testing.T) {
	for _, text := range []string{
		"1\n0\n", "0\n", "0", "0\n1\n", "0\n0\nx 0 1\n", "0\n1\nx 0 1", "0\n1\nx 0\n", "0\n1\nx 0 1 2\n", "0\n1\nx 0 -1\n", "0\n1\nx 00 1\n",
		"0\n1\nx +0 1\n", "0\n1\n../x 0 1\n", "0\n1\n. 0 1\n", "0\n2\nx 0 1\nx 0 2\n", "0\n1\nx 4294967296 1\n", "0\n1\nx 0 9223372036854775808\n",
		"0\n1000000000\nx 0 1\n", "0\n-1\n", "\x00\x00\x00", "0\r\n0\r\n", "0\n2\nkarst:crc32c 0 233933036\nx 0 1\n",
	} {
		if m, err := parseCheckpoint([]byte(text)); err == nil {
			t.Errorf("%q: %v", text, m)
		}
	}
	for _, text := range []string{
		"0\n1\n0\n", "0\n2\n1 5\n0 9\n", "0\n2\n1 5\n2 5\n", "0\n1\n1 5 6\n", "0\n1\n-1 5\n", "0\n1\n1 5", "\x00\x00\x00\x00", "0\n2\n1 5\n", "1\n0\n",
	} {
		if es, err := parseEpochs([]byte(text)); err == nil {
			t.Errorf("%q: %v", text, es)
		}
	}
}

func TestDamageIsTyped(t *testing.T) {
	m := vfs.NewMem(1)
	if _, err := ReadCheckpoint(m, "/c"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := writeAtomic(m, "/c", []byte("0\n1\nhalf a li")); err != nil {
		t.Fatal(err)
	}
	var damage *CorruptError
	if _, err := ReadCheckpoint(m, "/c"); !errors.As(err, &damage) || damage.Path != "/c" {
		t.Error(err)
	}
	if _, err := ReadEpochFile(m, "/c"); !errors.As(err, &damage) {
		t.Error(err)
	}
}

// writeAtomic leaves the old content or the new one, whatever operation fails or is the last before a power cut, and the
// new one once it has returned without an error.
func TestAtomicWriteAtEveryCrash(t *testing.T) {
	for n := 1; ; n++ {
		for seed := range uint64(20) {
			m := vfs.NewMem(seed)
			if err := writeAtomic(m, "/c", []byte("old")); err != nil {
				t.Fatal(err)
			}
			f := vfs.NewFaulty(m)
			f.CrashAt(n, vfs.Changes()...)
			err := writeAtomic(f, "/c", bytes.Repeat([]byte("new"), 5000))
			m.PowerCut()
			got := slurp(t, m, "/c")
			if got != "old" && len(got) != 15000 || err == nil && got == "old" {
				t.Fatalf("crash at %d, seed %d: %d bytes, %v", n, seed, len(got), err)
			}
			if !f.Crashed() {
				want := "[create /c.tmp write /c.tmp 0+15000 sync /c.tmp rename /c.tmp /c syncdir /]"
				if ops := fmt.Sprint(f.Ops()); ops != want {
					t.Errorf("operations %s", ops)
				}
				return
			}
		}
	}
}

func FuzzCheckpoint(f *testing.F) {
	f.Add([]byte("0\n2\na 0 1\nkarst:crc32c 0 1\n"))
	f.Add([]byte("0\n1\ntrimmed 0 60\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseCheckpoint(b)
		if err != nil {
			return
		}
		m := vfs.NewMem(1)
		if err := WriteCheckpoint(m, "/c", got); err != nil {
			t.Fatal(err)
		}
		if back, err := ReadCheckpoint(m, "/c"); err != nil || !cmp.Equal(got, back) {
			t.Fatal(err, got, back)
		}
	})
}

func FuzzEpochFile(f *testing.F) {
	f.Add([]byte("0\n2\n0 0\n3 60\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if es, err := parseEpochs(b); err == nil && len(b) > 0 && !bytes.Equal(appendEpochs(nil, es), b) {
			t.Fatalf("%q is read as %v", b, es)
		}
	})
}
