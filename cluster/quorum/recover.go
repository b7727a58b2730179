package quorum

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/karstlog/karst/cluster/metadata"
)

// Generation of the cluster, for the greeting between brokers: 1 from its first entry on, one more after each Recover; 0
// while nothing of a cluster is here. It comes with snapshots, which is all that a recovered server has to give to others.
func (q *Quorum) Generation() uint64 { return q.machine.generation.Load() }

// CheckGeneration compares a peer's generation with this node's. When the peer's is newer, the cluster was recovered from a
// lost quorum without this node, which must then stop (*FencedError, also from Run): what it would vote for or serve is of
// a cluster that no longer exists. An older peer is refused.
func (q *Quorum) CheckGeneration(peer uint64) error {
	own := q.Generation()
	if own == peer || own == 0 || peer == 0 {
		return nil
	}
	err := &FencedError{Own: own, Peer: peer}
	if peer > own {
		q.fail(err)
	}
	return err
}

// Existing returns the server that a directory belongs to; false when it belongs to none yet.
func Existing(dir string) (Server, bool, error) {
	path := filepath.Join(dir, serverIDName)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return Server{}, false, nil
	}
	if err != nil {
		return Server{}, false, err
	}
	id := strings.TrimSpace(string(b))
	broker, ok := parseServerID(id)
	if !ok {
		return Server{}, false, &DamageError{Path: path, Err: fmt.Errorf("%q is no server id", id)}
	}
	return Server{ID: id, Broker: broker}, true, nil
}

// Recovery is what Recover gives up and keeps.
type Recovery struct {
	Server     Server   // the only voter from then on
	GivenUp    []Server // the other members: their directories must not take part again
	Generation uint64   // the new one
	Index      uint64   // of the last entry that is kept
	Brokers    int      // in the image
	Topics     int
}

// Recover makes the server of a directory the only member of its quorum, when too many of the others are lost for good. No
// process may have the directory open (*LockedError). All entries of its log count as committed, also those that were
// not; what only the lost servers had is gone. The raised generation keeps the other members, should they come back, from
// taking part: their directories must be emptied and join anew. With dry nothing is changed.
func Recover(dir string, dry bool) (Recovery, error) {
	server, ok, err := Existing(dir)
	if err != nil {
		return Recovery{}, err
	}
	if !ok {
		return Recovery{}, &IdentityError{Dir: dir, Want: "a member of a cluster"}
	}
	q, err := Open(Options{Dir: dir, LocalID: server.Broker})
	if err != nil {
		return Recovery{}, err
	}
	r, err := q.recover(server, dry)
	return r, errors.Join(err, q.Close())
}

func (q *Quorum) recover(server Server, dry bool) (Recovery, error) {
	if err := q.replayAll(); err != nil {
		return Recovery{}, err
	}
	im := q.Image()
	r := Recovery{
		Server: server, Generation: q.Generation() + 1, Index: q.machine.index,
		Brokers: len(im.Brokers()), Topics: im.TopicCount(),
	}
	servers, _ := q.Servers()
	for _, s := range servers {
		if s.ID != server.ID {
			r.GivenUp = append(r.GivenUp, s)
		}
	}
	if dry {
		return r, nil
	}
	q.machine.generation.Store(r.Generation)
	// Raft applies the log once more, to which this machine says that it is done, and takes its snapshot.
	err := raft.RecoverCluster(q.config(nil), recovering{q.machine}, q.log, q.stable, q.snaps, loopback(q.serverID), raft.Configuration{
		Servers: []raft.Server{{Suffrage: raft.Voter, ID: q.serverID, Address: raft.ServerAddress(q.serverID)}},
	})
	if err != nil {
		return r, fmt.Errorf("recover %s: %w", q.o.Dir, err)
	}
	return r, nil
}

// replayAll applies the whole log, committed or not.
func (q *Quorum) replayAll() error {
	last, err := q.log.LastIndex()
	if err != nil {
		return err
	}
	for i := q.machine.index + 1; i <= last; i++ {
		var l raft.Log
		if err := q.log.GetLog(i, &l); errors.Is(err, raft.ErrLogNotFound) {
			continue // the snapshot has it; open has checked what follows that
		} else if err != nil {
			return err
		}
		q.machine.ApplyBatch([]*raft.Log{&l})
		if q.machine.failed != nil {
			return q.machine.failed
		}
	}
	return nil
}

// recovering is a machine that has everything already.
type recovering struct{ *machine }

// Restore is part of raft.FSM.
func (recovering) Restore(r io.ReadCloser) error { return r.Close() }

// parseServerID returns the broker of a server id.
func parseServerID(id string) (metadata.BrokerID, bool) {
	broker, ok := nodeOf(raft.ServerID(id))
	_, dir, _ := strings.Cut(id, "-")
	return broker, ok && dir != ""
}
