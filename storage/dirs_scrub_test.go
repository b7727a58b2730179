package storage

import (
	"errors"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// A bit that flips in a closed segment is found within one round, and told once; what is read goes on being read.
func TestScrubberFindsAFlippedBit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		r.o.Scrub = ScrubOptions{BytesPerSecond: 10_000, Interval: time.Hour}
		type found struct {
			tp       TopicPartition
			from, to int64
		}
		var told []found
		r.o.OnDamaged = func(l *Log, dmg Damage) {
			told = append(told, found{l.TopicPartition(), dmg.From, dmg.To})
			if !isCorrupt(dmg.Err) {
				t.Error(dmg.Err)
			}
		}
		d := r.start()
		stop := r.run(d)
		l, other := r.log(d, orders, 1), r.log(d, clicks, 2)
		r.fill(l, 100)
		r.fill(other, 100)
		after(10 * time.Minute)
		if len(told) != 0 {
			t.Fatalf("%+v though nothing is wrong", told)
		}
		info := l.Segments()[1]
		r.flip(join("/d", orders.String(), segmentName(info.Base)+suffixLog), 8*(int(info.Size)-20))
		began := time.Now()
		after(2 * time.Hour)
		if len(told) != 1 || told[0].tp != orders || told[0].from != info.End-1 || told[0].to != info.End {
			t.Fatalf("%+v, segment %+v", told, info)
		}
		if took := time.Since(began); took < time.Hour {
			t.Fatal(took)
		}
		if dmg := l.Damaged(); dmg == nil || other.Damaged() != nil {
			t.Error("the wrong log is marked")
		}
		if err := l.TruncateAll(0); err != nil || l.Damaged() != nil {
			t.Errorf("rebuilt: %v, %v", err, l.Damaged())
		}
		stop()
		r.close(d)
	})
}

// When others fill the disk, the room that was kept goes to the checkpoints; once there is space again it is kept anew.
func TestBallastMakesRoomForCheckpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20
		r := newRig(t, 1)
		r.o.Ballast, r.o.Reserve = size, DiskReserve{MaxBytes: 8 << 20}
		r.disk.SetCapacity(100 << 20)
		d := r.start()
		stop := r.run(d)
		l := r.log(d, orders, 1)
		r.fill(l, 10)
		after(time.Minute)
		if got := r.size("/d/" + ballastFile); got != size {
			t.Fatalf("ballast of %d bytes", got)
		}
		other, err := r.disk.OpenFile("/other", os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		_, free, _ := r.disk.Space("/d")
		if err := other.Truncate(free); err != nil {
			t.Fatal(err)
		}
		l.SetHighWatermark(10)
		after(time.Minute)
		var full *FullError
		if _, err := l.Append(spec{}.build(), 0, time.Now()); !errors.As(err, &full) {
			t.Errorf("append to a full disk: %v", err)
		}
		if r.exists("/d/"+ballastFile) || len(d.Offline()) > 0 {
			t.Error("the ballast was not given up, or the directory")
		}
		if m, err := ReadCheckpoint(r.disk, "/d/"+highWatermarkFile); err != nil || m[orders] != 10 {
			t.Errorf("checkpoint %v, %v", m, err)
		}
		if err := other.Truncate(0); err != nil {
			t.Fatal(err)
		}
		after(time.Minute)
		r.fill(l, 1)
		if !r.exists("/d/" + ballastFile) {
			t.Error("no ballast when there is room again")
		}
		stop()
		r.close(d)
	})
}

// A broker that a full disk has stopped, however, comes up on it: what is there is read, and once there is room all goes on.
func TestStartOnAFullDisk(t *testing.T) {
	for _, kill := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1)
			r.o.Ballast, r.o.Reserve = 1<<20, DiskReserve{MaxBytes: 8 << 20}
			r.disk.SetCapacity(100 << 20)
			d := r.start()
			stop := r.run(d)
			l := r.log(d, orders, 1)
			r.fill(l, 50)
			after(2 * time.Minute)
			r.fill(l, 10)
			stop()
			if kill {
				r.kill()
			} else {
				r.close(d)
			}
			other, err := r.disk.OpenFile("/other", os.O_RDWR|os.O_CREATE, 0o644)
			if err != nil {
				t.Fatal(err)
			}
			_, free, _ := r.disk.Space("/d")
			if err := other.Truncate(free); err != nil {
				t.Fatal(err)
			}
			MakeRoom(r.disk, r.o.Paths, slog.New(slog.DiscardHandler))
			d = r.start()
			stop = r.run(d)
			l = r.log(d, orders, 1)
			r.ends(l, 0, 60)
			var full *FullError
			if _, err := l.Append(spec{}.build(), 0, time.Now()); !errors.As(err, &full) {
				t.Errorf("append to a full disk: %v", err)
			}
			after(10 * time.Minute)
			if len(d.Offline()) > 0 {
				t.Error("the directory is offline")
			}
			if err := other.Truncate(0); err != nil {
				t.Fatal(err)
			}
			after(time.Minute)
			r.fill(l, 3)
			stop()
			r.close(d)
			if !r.exists("/d/" + ballastFile) {
				t.Error("no ballast when there is room again")
			}
		})
	}
}

func TestCordonedDirectoriesGetNoNewLogs(t *testing.T) {
	r := newRig(t, 1, "/a", "/b")
	r.o.Cordoned = []string{"/a/"}
	d := r.start()
	for i := range int32(3) {
		if l := r.log(d, TopicPartition{"t", i}, 1); l.Dir()[:2] != "/b" {
			t.Errorf("made in %s", l.Dir())
		}
	}
	r.close(d)
}
