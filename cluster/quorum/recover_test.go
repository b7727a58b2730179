package quorum

import (
	"context"
	"errors"
	"testing"

	"github.com/karstlog/karst/cluster/metadata"
)

// TestRecoverFromALostQuorum: one of three goes on alone with all it has; the others are fenced when they come back, and
// new nodes make a quorum with it.
func TestRecoverFromALostQuorum(t *testing.T) {
	tr := begin(t, shape{nodes: 3, disk: true})
	tr.leader().create(t, 0, 20)
	tr.agree()
	im := tr.leader().Image()
	if _, err := Recover(tr.dirs[0], true); !errors.As(err, new(*LockedError)) {
		t.Errorf("with the directory in use: %v", err)
	}
	for _, m := range tr.all() {
		tr.kill(m)
	}
	dry, err := Recover(tr.dirs[0], true)
	if err != nil {
		t.Fatal(err)
	}
	done, err := Recover(tr.dirs[0], false)
	if err != nil {
		t.Fatal(err)
	}
	if done.Server.ID != serverOf(1).ID || len(done.GivenUp) != 2 || done.Generation != 2 || done.Topics != 20 {
		t.Errorf("recovered %+v", done)
	}
	if dry.Index != done.Index || dry.Generation != done.Generation || len(dry.GivenUp) != 2 {
		t.Errorf("announced %+v, done %+v", dry, done)
	}
	first := tr.start(1, Options{}, nil)
	if err := first.Barrier(context.Background()); err != nil {
		t.Fatal(err)
	}
	if first.Image().Checksum() != im.Checksum() || first.Generation() != 2 {
		t.Errorf("image %x, was %x; generation %d", first.Image().Checksum(), im.Checksum(), first.Generation())
	}
	second := tr.start(2, Options{}, nil)
	if err := first.CheckGeneration(second.Generation()); !errors.As(err, new(*FencedError)) {
		t.Errorf("the recovered node meets an old one: %v", err)
	}
	if err := second.CheckGeneration(first.Generation()); !errors.As(err, new(*FencedError)) {
		t.Errorf("an old node meets the recovered one: %v", err)
	}
	if err := second.stop(); !errors.As(err, new(*FencedError)) {
		t.Errorf("the old node ends with %v", err)
	}
	tr.kill(second)
	fresh := tr.start(4, Options{Dir: t.TempDir()}, nil)
	if err := first.CheckGeneration(fresh.Generation()); err != nil {
		t.Errorf("a new node: %v", err)
	}
	first.change(t, first.AddNonvoter, fresh.ServerID())
	first.change(t, first.AddVoter, fresh.ServerID())
	tr.agree()
	if fresh.Generation() != 2 {
		t.Errorf("a new node has generation %d", fresh.Generation())
	}
	first.create(t, 20, 21)
}

func TestRecoverNeedsAMember(t *testing.T) {
	if _, err := Recover(t.TempDir(), true); !errors.As(err, new(*IdentityError)) {
		t.Errorf("an empty directory: %v", err)
	}
	if s, ok, err := Existing(t.TempDir()); ok || err != nil {
		t.Errorf("an empty directory is of %+v, %v", s, err)
	}
	r := start(t, Options{Dir: t.TempDir(), LocalID: 3})
	if s, ok, err := Existing(r.o.Dir); !ok || err != nil || s.Broker != 3 || s.ID != r.ServerID() {
		t.Errorf("%+v, %v, %v", s, ok, err)
	}
}

// TestChecksumsOfOldImages are known for a while.
func TestChecksumsOfOldImages(t *testing.T) {
	var c checksums
	for i := uint64(1); i <= checksumsKept+10; i++ {
		c.add(2*i, i)
	}
	for _, want := range []struct {
		index, sum uint64
		ok         bool
	}{
		{2 * (checksumsKept + 10), checksumsKept + 10, true},
		{2 * 11, 11, true},
		{2 * 10, 0, false}, // no longer kept
		{25, 0, false},     // never was
		{0, 0, false},
		{1 << 40, 0, false},
	} {
		if sum, ok := c.at(want.index); ok != want.ok || ok && sum != want.sum {
			t.Errorf("at %d: %d, %v", want.index, sum, ok)
		}
	}
}

// TestBarrierSeesWhatOthersWrote: whoever passes it has all that was answered anywhere before.
func TestBarrierSeesWhatOthersWrote(t *testing.T) {
	tr := begin(t, shape{nodes: 3})
	tr.leader()
	nodes := tr.all()
	for n := range 30 {
		writer, reader := nodes[n%3], nodes[(n+1)%3]
		if err := writer.Propose(context.Background(), topic(n)); err != nil {
			t.Fatal(err)
		}
		if err := reader.Barrier(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, ok := reader.Image().Topic(topic(n).Name); !ok {
			t.Errorf("node %d does not see topic %d of node %d", reader.id, n, writer.id)
		}
	}
}

// TestManyCommandsOfAFollowerKeepTheirOrder and are bounded entries.
func TestManyCommandsOfAFollowerKeepTheirOrder(t *testing.T) {
	tr := begin(t, shape{nodes: 3})
	f := tr.followers()[0]
	var cs []metadata.Command
	for n := range 600 {
		cs = append(cs, topic(n), metadata.DeleteTopic{ID: topic(n).ID})
	}
	cs = append(cs, topic(3))
	for i, err := range f.ProposeEach(context.Background(), cs) {
		if err != nil {
			t.Fatalf("command %d: %v", i, err)
		}
	}
	if n := f.Image().TopicCount(); n != 1 {
		t.Errorf("%d topics", n)
	}
}
