package replica

import (
	"errors"
	"testing"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/partition"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/storage"
)

// A leader that reads for a follower may have become a follower itself by the time the disk answers, and its log may hold
// what another leader wrote. None of that goes out in the name of the old leadership.
func TestNothingIsGivenOfALaterLeadership(t *testing.T) {
	fs := vfs.NewFaulty(vfs.NewMem(1))
	b := newBenchOn(t, fs, false)
	replicas := []metadata.BrokerID{1, 2, 3}
	in := func(leader metadata.BrokerID, epoch metadata.LeaderEpoch) metadata.Partition {
		return metadata.Partition{Replicas: replicas, ISR: replicas, Leader: leader, LeaderEpoch: epoch}
	}
	follower := partition.Member{Broker: 3, Incarnation: uuid.UUID{3}}
	peers := []partition.Peer{{Member: follower, MayJoin: true}}
	b.Become(in(1, 6), peers...)
	for range 3 {
		b.append(t, 1)
	}
	feed := &Feed{follower: Follower{Broker: 3, Epoch: BrokerEpoch(follower.Incarnation)}}
	c := &cursor{feed: feed, p: b.Partition, from: 1, maxBytes: 1 << 20}

	other := batchesOf(t, 3, 7)
	moved := false
	fs.SetHook(func(op vfs.Op) *vfs.Fault {
		if op.Kind == vfs.Read && !moved {
			moved = true
			b.Become(in(2, 7), peers...)
			if err := b.log.TruncateIn(7, 0); err != nil {
				t.Error(err)
			}
			if _, err := b.log.CopyIn(7, other); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
	res, ok := b.give(c, 1<<20)
	if !moved || !ok {
		t.Fatalf("moved %v, answered %v", moved, ok)
	}
	if !errors.As(res.Err, new(*NotLeaderError)) || res.Slice.Len() != 0 {
		t.Errorf("gave %d bytes, error %v, want none and that it leads no more", res.Slice.Len(), res.Err)
	}
}

// batchesOf are n batches of one record from offset 0 on, as a leader in epoch has them.
func batchesOf(t *testing.T, n int, epoch int32) []byte {
	t.Helper()
	log, err := storage.Open(storage.Options{FS: vfs.NewMem(2), Dir: "/other-0", Topic: "other", Config: storage.DefaultConfig()})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	var all []byte
	for range n {
		x := records(t, 1, 10)
		if _, err := log.Append(x, epoch, time.UnixMilli(1)); err != nil {
			t.Fatal(err)
		}
		all = append(all, x...)
	}
	return all
}
