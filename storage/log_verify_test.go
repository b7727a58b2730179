package storage

import (
	"errors"
	"strings"
	"testing"
)

func TestVerifyFindsDamageInEveryFile(t *testing.T) {
	mem := newDisk(1)
	want, _, _, e := flipLog(t, mem)
	r, err := Verify(mem, testDir, VerifyOptions{Deep: true})
	if err != nil || len(r.Problems) != 0 || r.Batches != int64(len(want)) || r.Records != e.End || r.End != e.End || r.Bytes != e.Size {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, name := range listed(t, mem) {
		p := contents(t, mem, name)
		if len(p) == 0 {
			continue
		}
		flip(t, mem, name, int64(len(p)/2), 3)
		r, err := Verify(mem, testDir, VerifyOptions{})
		if err != nil || len(r.Problems) == 0 || r.Problems[0].File != name || r.Damaged() != strings.HasSuffix(name, suffixLog) {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
		put(t, mem, name, p)
	}
}

func TestDumpShowsEveryFile(t *testing.T) {
	mem := newDisk(1)
	want, _, aborted, _ := flipLog(t, mem)
	counts := map[string]int{}
	for _, name := range listed(t, mem) {
		err := Dump(mem, testDir+"/"+name, func(e DumpEntry) error {
			switch {
			case e.Bad != nil:
				return e.Bad
			case e.Batch != nil:
				counts["batch"]++
			case e.Aborted != nil:
				counts["aborted"]++
			case e.Epoch != nil:
				counts["epoch"]++
			case e.Producer != nil:
				counts["producer"]++
			case e.Offset != nil:
				counts["offset"]++
			case e.Time != nil:
				counts["time"]++
			}
			return nil
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if counts["batch"] != len(want) || counts["aborted"] != len(aborted) || counts["epoch"] != 3 || counts["producer"] < 3 ||
		counts["offset"] < 10 || counts["time"] < 10 {
		t.Fatal(counts)
	}
	if err := Dump(mem, testDir+"/x", func(DumpEntry) error { return nil }); err == nil {
		t.Fatal("dumped a file that is no log's")
	}
}

// Nothing in a partition's directory makes opening it panic or lose what is sound in front.
func FuzzRecover(f *testing.F) {
	mem := newDisk(1)
	flipLog(f, mem)
	for _, name := range listed(f, mem) {
		if name == segmentName(0)+suffixLog {
			f.Add(contents(f, mem, name), contents(f, mem, segmentName(0)+suffixIndex), contents(f, mem, segmentName(0)+suffixTime))
		}
	}
	f.Fuzz(func(t *testing.T, log, index, times []byte) {
		mem := newDisk(1)
		if err := mem.MkdirAll(testDir, 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, mem, segmentName(0)+suffixLog, log)
		put(t, mem, segmentName(0)+suffixIndex, index)
		put(t, mem, segmentName(0)+suffixTime, times)
		if _, err := Verify(mem, testDir, VerifyOptions{Deep: true}); err != nil {
			t.Fatal(err)
		}
		for _, how := range []func(*Options){point(0), point(5), func(o *Options) { o.Clean = true }} {
			l, err := tryOpen(mem, how)
			if err != nil {
				if !errors.As(err, new(*CorruptError)) {
					t.Fatal(err)
				}
				continue
			}
			_, _ = tryReadAll(l, l.Start(), 1000)
			_, _, _ = l.OffsetForTime(t0.UnixMilli(), noLimit)
			_, _, _ = l.MaxTimestamp()
			mem.KillProcess()
		}
	})
}

func FuzzIndexes(f *testing.F) {
	f.Add(unhex("000000c7 000187bf"), int64(200000))
	f.Add(unhex("0000018bcfe56be8 000000c7"), int64(1000))
	f.Add(unhex("0000 0000000000000001 0000000000000002 0000000000000003 0000000000000004"), int64(1))
	f.Fuzz(func(t *testing.T, p []byte, size int64) {
		if es, whole := decodeOffsets(p, max(0, size)); whole && string(encodeOffsets(nil, es)) != string(p[:len(es)*offsetEntrySize]) {
			t.Fatalf("%x", p)
		}
		if es, whole := decodeTimes(p, maxRel); whole && string(encodeTimes(nil, es)) != string(p[:len(es)*timeEntrySize]) {
			t.Fatalf("%x", p)
		}
		if es, whole := decodeAborted(p); whole && string(encodeAborted(nil, es)) != string(p) {
			t.Fatalf("%x", p)
		}
	})
}
