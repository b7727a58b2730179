package quorum

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bberrors "go.etcd.io/bbolt/errors"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

const (
	boltName     = "raft.db"
	serverIDName = "server-id"
	snapshotsDir = "snapshots" // as raft names it
	// lockTimeout is how long another process may take to let go of the log.
	lockTimeout = 250 * time.Millisecond
	// mapBytes are reserved as addresses, not as memory: a mapping that never has to move never waits for a reader.
	mapBytes = 1 << 30
	// A file of this size of which three quarters are free pages is written anew at start; bbolt never gives back.
	compactBytes = 64 << 20
)

// term is the key under which Raft keeps its term.
var termKey = []byte("CurrentTerm")

// open sets up the parts that Run works with.
func (q *Quorum) open() error {
	q.log = &logStore{
		path: filepath.Join(q.o.Dir, boltName), timeout: q.o.StoreTimeout, fatal: q.fail, stored: q.metrics.store, added: q.news,
		jobs: make(chan *storeJob), done: make(chan struct{}), exited: make(chan struct{}),
	}
	var err error
	if q.o.Dir == "" {
		err = q.openMemory()
	} else {
		err = q.openDisk()
	}
	if err != nil {
		return err
	}
	snap, err := q.restore()
	if err != nil {
		return err
	}
	if err := q.newMachine(snap); err != nil {
		return err
	}
	index := snap.index
	err = guard(func() error { return q.log.check(index) })
	if err != nil {
		return &DamageError{Path: q.log.path, Err: err}
	}
	last, err := q.log.LastIndex()
	if err != nil {
		return err
	}
	if last > 0 && q.machine.generation.Load() == 0 {
		q.machine.generation.Store(1)
	}
	if err := q.checkTerm(last, snap.head.term); err != nil {
		return err
	}
	return q.bootstrap(index)
}

// checkTerm: a server's term is never behind that of its entries. One that were would vote for what is past.
func (q *Quorum) checkTerm(last, snapshot uint64) error {
	term, err := q.stable.GetUint64(termKey)
	if err != nil && err.Error() != raftboltdb.ErrKeyNotFound.Error() {
		return err
	}
	newest := snapshot
	if last > 0 {
		var l raft.Log
		if err := q.log.GetLog(last, &l); err != nil {
			return &DamageError{Path: q.log.path, Err: err}
		}
		newest = max(newest, l.Term)
	}
	if term < newest {
		return &DamageError{Path: q.log.path, Err: fmt.Errorf("term %d, but entries of term %d", term, newest)}
	}
	return nil
}

// newMachine makes the machine whose state is the newest snapshot's.
func (q *Quorum) newMachine(snap restored) error {
	m := newMachine(metadata.Empty(), q.fail)
	m.applied, m.snapshot, m.self = q.applied, q.newestMembers, q.serverID
	m.removed = q.wasRemoved
	m.stuck = func() {
		select {
		case q.restart <- struct{}{}:
		default:
		}
	}
	var b [8]byte
	if _, err := io.ReadFull(q.o.Random, b[:]); err != nil {
		return err
	}
	m.proposer = binary.BigEndian.Uint64(b[:]) | 1
	q.machine = m
	if snap.index > 0 {
		m.install(snap.head, snap.image)
		m.index = max(m.index, snap.index)
		m.setMembers(q.newestMembers())
	}
	return nil
}

// applied follows what the machine has applied, which was committed just before.
func (q *Quorum) applied(index uint64) {
	q.log.applied(index)
	q.news()
}

// newestMembers is the configuration in the newest snapshot.
func (q *Quorum) newestMembers() members {
	list, err := q.snaps.List()
	if err != nil || len(list) == 0 {
		return members{}
	}
	return members{list[0].Configuration.Servers, list[0].ConfigurationIndex}
}

func (q *Quorum) openMemory() error {
	store := raft.NewInmemStore()
	q.log.LogStore, q.stable, q.snaps = store, store, raft.NewInmemSnapshotStore()
	dir, err := q.dirID()
	q.serverID = serverID(q.o.LocalID, dir)
	return err
}

// dirID is what tells this directory from others of the same node.
func (q *Quorum) dirID() (uuid.UUID, error) {
	if !q.o.DirID.IsZero() {
		return q.o.DirID, nil
	}
	return uuid.New(q.o.Random)
}

// serverID is the node's id and the directory's: a node that lost its directory is another server, since it may have
// voted with what it lost.
func serverID(node metadata.BrokerID, dir uuid.UUID) raft.ServerID {
	return raft.ServerID(fmt.Sprintf("%d-%s", node, dir))
}

func (q *Quorum) openDisk() error {
	if err := os.MkdirAll(q.o.Dir, 0o755); err != nil {
		return err
	}
	known, err := q.knownServerID()
	if err != nil {
		return err
	}
	if info, err := os.Stat(q.log.path); known && (err != nil || info.Size() == 0) {
		return &DamageError{Path: q.log.path, Err: errors.New("the file is gone, but " + serverIDName + " is there")}
	}
	store, err := openBolt(q.log.path, compactBytes)
	if err != nil {
		return err
	}
	q.log.LogStore, q.stable, q.log.closer = store, store, store.Close
	q.metrics.bolt = store.Stats
	if q.snaps, err = raft.NewFileSnapshotStoreWithLogger(q.o.Dir, retainSnapshots, raftLogger(q.o.Logger)); err != nil {
		return err
	}
	if known {
		return nil
	}
	return q.newServerID()
}

// knownServerID reads the file that says whose directory this is. There is none before the first start has come so far.
func (q *Quorum) knownServerID() (bool, error) {
	path := filepath.Join(q.o.Dir, serverIDName)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	id := raft.ServerID(strings.TrimSpace(string(b)))
	_, dir, _ := strings.Cut(string(id), "-")
	node, ok := nodeOf(id)
	if _, err := uuid.Parse(dir); !ok || err != nil {
		return false, &DamageError{Path: path, Err: fmt.Errorf("%q is no server id", id)}
	}
	if node != q.o.LocalID {
		return false, &IdentityError{Dir: q.o.Dir, Want: fmt.Sprint(q.o.LocalID), Have: string(id)}
	}
	q.serverID = id
	return true, nil
}

// newServerID makes the directory this node's. The log must be empty: a log without the file has lost it.
func (q *Quorum) newServerID() error {
	used, err := raft.HasExistingState(q.log, q.stable, q.snaps)
	if err != nil || used {
		return &DamageError{Path: q.o.Dir, Err: errors.Join(err, errors.New("there is a log but no file "+serverIDName))}
	}
	dir, err := q.dirID()
	if err != nil {
		return err
	}
	q.serverID = serverID(q.o.LocalID, dir)
	if err := writeFile(filepath.Join(q.o.Dir, serverIDName), string(q.serverID)+"\n"); err != nil {
		return err
	}
	return syncDir(filepath.Dir(q.o.Dir)) // Dir itself may be new
}

// writeFile replaces a file so that it has the old or the new content, whenever power is cut. What else was created in
// its directory is durable then as well.
func writeFile(path, content string) error {
	tmp := path + ".tmp"
	f, err := os.Create(tmp)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// openBolt opens the log's file, after writing it anew when it has at least large bytes and is mostly free.
func openBolt(path string, large int64) (*raftboltdb.BoltStore, error) {
	store, err := openBoltStore(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() < large {
		return store, err
	}
	free := int64(store.Stats().FreePageN) * int64(os.Getpagesize())
	if free < info.Size()/4*3 {
		return store, nil
	}
	if err := store.Close(); err != nil {
		return nil, err
	}
	if err := compact(path); err != nil {
		return nil, fmt.Errorf("compact %s: %w", path, err)
	}
	return openBoltStore(path)
}

func openBoltStore(path string) (store *raftboltdb.BoltStore, err error) {
	if err := checkBolt(path); errors.As(err, new(*LockedError)) {
		return nil, err
	} else if err != nil {
		return nil, &DamageError{Path: path, Err: err}
	}
	err = guard(func() (err error) {
		store, err = raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions()})
		return err
	})
	switch {
	case errors.Is(err, bberrors.ErrTimeout):
		return nil, &LockedError{path}
	case err != nil && !errors.As(err, new(*os.PathError)):
		return nil, &DamageError{Path: path, Err: err}
	}
	return store, err
}

// boltOptions: the list of free pages is not written with each commit but found again at start.
func boltOptions() *bbolt.Options {
	return &bbolt.Options{
		Timeout: lockTimeout, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, InitialMmapSize: mapBytes,
	}
}

// compact copies what is in use into a new file and puts it in place of the old one.
func compact(path string) error {
	tmp := path + ".compact"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	from, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout, ReadOnly: true})
	if err != nil {
		return err
	}
	to, err := bbolt.Open(tmp, 0o600, boltOptions())
	if err != nil {
		return errors.Join(err, from.Close())
	}
	err = guard(func() error { return bbolt.Compact(to, from, 8<<20) })
	if err = errors.Join(err, to.Sync(), to.Close(), from.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// guard runs f, which reads pages that may be damaged: bbolt panics on those, and a file that is shorter than its pages
// say is a fault of the mapping.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("read: %v", p)
		}
	}()
	return f()
}

// restored is a snapshot; its index is 0 when there is none.
type restored struct {
	head  snapshotHead
	image *metadata.Image
	index uint64
}

// restore reads the newest snapshot. Raft would go on with an older one when it cannot be read, and skip one whose
// description is unreadable; here both are damage, since the log may no longer reach back to the older one.
func (q *Quorum) restore() (restored, error) {
	list, err := q.snaps.List()
	if err != nil {
		return restored{}, err
	}
	newest, err := q.newestSnapshot()
	if err != nil {
		return restored{}, err
	}
	if len(list) == 0 && newest == "" {
		return restored{}, nil
	}
	path := filepath.Join(q.o.Dir, snapshotsDir, newest)
	if len(list) == 0 || list[0].ID != newest {
		return restored{}, &DamageError{Path: path, Err: errors.New("its description cannot be read")}
	}
	meta, r, err := q.snaps.Open(newest)
	if err != nil {
		return restored{}, &DamageError{Path: path, Err: err}
	}
	defer r.Close()
	head, im, err := readSnapshot(r)
	if err != nil {
		return restored{}, &DamageError{Path: path, Err: err}
	}
	if im.Index() > meta.Index {
		return restored{}, &DamageError{Path: path, Err: fmt.Errorf("image of %d in a snapshot of %d", im.Index(), meta.Index)}
	}
	return restored{head, im, meta.Index}, nil
}

// newestSnapshot is the directory that Raft wrote last, by its name: term-index-time.
func (q *Quorum) newestSnapshot() (string, error) {
	if q.o.Dir == "" {
		return "", nil
	}
	entries, err := os.ReadDir(filepath.Join(q.o.Dir, snapshotsDir))
	if err != nil {
		return "", err
	}
	var newest string
	var best [3]uint64
	for _, e := range entries {
		var at [3]uint64
		n, _ := fmt.Sscanf(e.Name(), "%d-%d-%d", &at[0], &at[1], &at[2])
		if !e.IsDir() || n != 3 || strings.HasSuffix(e.Name(), ".tmp") {
			continue
		}
		if newest == "" || at[0] > best[0] || at[0] == best[0] && (at[1] > best[1] || at[1] == best[1] && at[2] > best[2]) {
			newest, best = e.Name(), at
		}
	}
	return newest, nil
}

// bootstrap writes the first entry of an empty log, the first configuration: Options.Bootstrap, or this node as the one
// voter. A first start that was cut off between the term and that entry is made again; nothing can have been voted for in
// it.
func (q *Quorum) bootstrap(snapshot uint64) error {
	last, err := q.log.LastIndex()
	if err != nil || last > 0 || snapshot > 0 || q.o.Network != nil && len(q.o.Bootstrap) == 0 {
		return err
	}
	term, err := q.stable.GetUint64(termKey)
	if err != nil && err.Error() != raftboltdb.ErrKeyNotFound.Error() {
		return err
	}
	if term > 1 {
		return &DamageError{Path: q.log.path, Err: fmt.Errorf("no entries, but term %d", term)}
	}
	if term == 1 {
		if err := q.stable.SetUint64(termKey, 0); err != nil {
			return err
		}
	}
	q.fresh = true
	return raft.BootstrapCluster(q.config(nil), q.log, q.stable, q.snaps, loopback(q.serverID), q.firstConfiguration())
}

func (q *Quorum) firstConfiguration() raft.Configuration {
	var first raft.Configuration
	for _, s := range q.o.Bootstrap {
		server := raft.Server{ID: raft.ServerID(s.ID), Address: raft.ServerAddress(s.ID)}
		if s.Suffrage == Nonvoter {
			server.Suffrage = raft.Nonvoter
		}
		first.Servers = append(first.Servers, server)
	}
	if len(first.Servers) == 0 {
		first.Servers = []raft.Server{{ID: q.serverID, Address: raft.ServerAddress(q.serverID)}}
	}
	return first
}
