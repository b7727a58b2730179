package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
)

// ForeignDirError refuses a log directory of another cluster or node.
type ForeignDirError struct {
	Path      string
	What      string // "cluster" or "node"
	Want, Got string
}

func (e *ForeignDirError) Error() string {
	return fmt.Sprintf("log directory %s belongs to %s %s, this is %s %s", e.Path, e.What, e.Got, e.What, e.Want)
}

// EmptyDirError says that a log directory of a node that ran before came up empty: a disk that is not mounted, most
// likely. Filling it anew would hide the one that was there.
type EmptyDirError struct{ Path string }

func (e *EmptyDirError) Error() string {
	return fmt.Sprintf("log directory %s is empty though this node has run before: is its disk mounted? If the disk is a new one, make a file %s in it",
		e.Path, newFile)
}

// newFile, made by hand in an empty directory, says that it is empty on purpose.
const newFile = "karst.new"

// startFile holds the startRecord in the root of a log directory. Kafka has no such file and ignores it.
const startFile = "karst.start"

// startRecord is written into each directory at each start. Besides naming the run, it repeats meta.properties under a
// checksum, and it knows the other directories, so that one which comes up empty is noticed.
type startRecord struct {
	meta        MetaProperties
	incarnation uuid.UUID            // random, of this run
	boot        string               // id of the machine's boot, under which this run wrote
	siblings    map[string]uuid.UUID // path to id of all directories of the node, this one included
	known       []uuid.UUID          // earlier runs: the last one that was confirmed, and all since
	broken      bool                 // since the one that was confirmed, what was not synced may have been lost
	before      *startRecord         // of the run before; not written
}

const brokenLine = "broken yes"

func (r startRecord) encode() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%s 1\ncluster %s\nnode %d\ndirectory %s\nincarnation %s\nboot %s\n",
		startFile, strconv.Quote(r.meta.ClusterID), r.meta.NodeID, r.meta.DirectoryID, r.incarnation, strconv.Quote(r.boot))
	for _, id := range r.known {
		fmt.Fprintf(&b, "known %s\n", id)
	}
	if r.broken {
		fmt.Fprintln(&b, brokenLine)
	}
	for _, path := range slices.Sorted(maps.Keys(r.siblings)) {
		fmt.Fprintf(&b, "sibling %s %s\n", r.siblings[path], strconv.Quote(path))
	}
	return seal(b.String())
}

func parseStartRecord(b []byte) (startRecord, error) {
	text, err := unseal(b)
	if err != nil {
		return startRecord{}, err
	}
	r := startRecord{meta: MetaProperties{Version: 1}, siblings: map[string]uuid.UUID{}}
	f := sealedFields{rest: text}
	f.word(startFile, func(s string) error { return expect(s, "1") })
	f.word("cluster", func(s string) (err error) { r.meta.ClusterID, err = strconv.Unquote(s); return err })
	f.word("node", func(s string) error {
		n, err := number(s, 32)
		r.meta.NodeID = int32(n)
		return err
	})
	f.word("directory", func(s string) (err error) { r.meta.DirectoryID, err = parseID(s); return err })
	f.word("incarnation", func(s string) (err error) { r.incarnation, err = parseID(s); return err })
	f.word("boot", func(s string) (err error) { r.boot, err = strconv.Unquote(s); return err })
	for strings.HasPrefix(f.rest, "known ") && f.err == nil {
		f.word("known", func(s string) error {
			id, err := parseID(s)
			r.known = append(r.known, id)
			return err
		})
	}
	if rest, ok := strings.CutPrefix(f.rest, brokenLine+"\n"); ok {
		f.rest, r.broken = rest, true
	}
	for f.rest != "" && f.err == nil {
		f.word("sibling", func(s string) error {
			id, quoted, _ := strings.Cut(s, " ")
			path, err := strconv.Unquote(quoted)
			if err != nil {
				return err
			}
			r.siblings[path], err = parseID(id)
			return err
		})
	}
	return r, f.err
}

// identify locks all directories and settles whose they are. What it returns stops the start; a directory that cannot be
// used is failed instead.
func (d *Dirs) identify() error {
	records := make([]*startRecord, len(d.dirs))
	var empty []*directory
	for i, dir := range d.dirs {
		if slices.ContainsFunc(d.dirs[:i], func(o *directory) bool { return o.key == dir.key }) {
			return fmt.Errorf("log directory %s is configured twice", dir.path)
		}
		fresh, err := d.settle(dir, &records[i])
		var foreign *ForeignDirError
		switch {
		case errors.As(err, &foreign), errors.Is(err, vfs.ErrLocked):
			return err
		case err != nil:
			dir.watch.fail(err)
		case fresh:
			empty = append(empty, dir)
		}
	}
	for _, dir := range empty {
		err := d.adopt(dir, records)
		if err != nil {
			dir.watch.fail(err)
		}
	}
	return d.refuseCopies()
}

// settle locks one directory and reads whose it is; fresh when it has never belonged to anybody.
func (d *Dirs) settle(dir *directory, record **startRecord) (fresh bool, err error) {
	if _, err := dir.fs.Stat(dir.path); errors.Is(err, fs.ErrNotExist) && d.o.Existing && len(d.dirs) == 1 {
		return false, &EmptyDirError{dir.path}
	}
	if err := makeDir(d.o.FS, dir.path); err != nil {
		return false, err
	}
	if dir.lock, err = dir.fs.Lock(filepath.Join(dir.path, lockFile)); err != nil {
		return false, fmt.Errorf("lock log directory %s: %w", dir.path, err)
	}
	if *record, err = readStart(dir.fs, dir.path); err != nil {
		return false, err
	}
	m, merr := ReadMetaProperties(dir.fs, dir.path)
	var damaged *CorruptError
	missing := errors.Is(merr, fs.ErrNotExist)
	switch {
	case merr == nil && d.mine(dir, m) == nil && !m.DirectoryID.IsZero():
		dir.id = m.DirectoryID
		return false, nil
	case merr != nil && !missing && !errors.As(merr, &damaged):
		return false, merr
	}
	if r := *record; r != nil && d.mine(dir, r.meta) == nil {
		d.o.Logger.Warn("meta.properties is missing or damaged and written anew", "dir", dir.path, "err", merr)
		dir.id = r.meta.DirectoryID
		return false, WriteMetaProperties(dir.fs, dir.path, r.meta, d.o.Wall())
	}
	switch {
	case merr == nil && d.mine(dir, m) == nil:
		return false, d.name(dir) // Kafka's, from before directories had ids
	case merr == nil:
		return false, d.mine(dir, m)
	case missing && *record == nil:
		return dir.vacant()
	case missing:
		return false, d.mine(dir, (*record).meta)
	}
	return false, merr
}

// mine refuses a directory of another cluster or node.
func (d *Dirs) mine(dir *directory, m MetaProperties) error {
	if m.ClusterID != d.o.ClusterID && m.ClusterID != "" {
		return &ForeignDirError{dir.path, "cluster", d.o.ClusterID, m.ClusterID}
	}
	if m.NodeID != d.o.NodeID {
		return &ForeignDirError{dir.path, "node", strconv.Itoa(int(d.o.NodeID)), strconv.Itoa(int(m.NodeID))}
	}
	return nil
}

// vacant tells whether a directory without an owner is empty. One with partitions is not touched.
func (dir *directory) vacant() (bool, error) {
	entries, err := dir.fs.ReadDir(dir.path)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		if _, kind := parseDirName(e.Name()); e.IsDir() && kind != "?" {
			return false, fmt.Errorf("log directory %s holds partitions (%s) but no %s that says whose they are", dir.path, e.Name(), metaPropertiesFile)
		}
	}
	return true, nil
}

// adopt makes an empty directory one of this node's, unless it was one before under that path.
func (d *Dirs) adopt(dir *directory, records []*startRecord) error {
	known, asked := false, false
	for _, r := range records {
		if r != nil {
			_, has := r.siblings[dir.key]
			known, asked = known || has, true
		}
	}
	note := filepath.Join(dir.path, newFile)
	_, err := dir.fs.Stat(note)
	if d.o.Existing && (known || !asked) && err != nil {
		return &EmptyDirError{dir.path}
	}
	if nerr := d.name(dir); nerr != nil {
		return nerr
	}
	if err == nil {
		d.o.Logger.Warn("an empty log directory is taken as new", "dir", dir.path)
		return dir.fs.Remove(note)
	}
	return nil
}

// name gives the directory an id.
func (d *Dirs) name(dir *directory) error {
	id, err := uuid.New(d.o.Rand)
	if err != nil {
		return err
	}
	dir.id = id
	m := MetaProperties{Version: 1, ClusterID: d.o.ClusterID, NodeID: d.o.NodeID, DirectoryID: id}
	return WriteMetaProperties(dir.fs, dir.path, m, d.o.Wall())
}

// refuseCopies takes a directory offline that has the id of another one: it was copied.
func (d *Dirs) refuseCopies() error {
	for i, dir := range d.dirs {
		for _, other := range d.dirs[:i] {
			if dir.offline() == nil && other.offline() == nil && dir.id == other.id {
				dir.watch.fail(fmt.Errorf("log directory %s is a copy of %s: both have id %s", dir.path, other.path, dir.id))
			}
		}
	}
	return nil
}

// beginRun writes the record of this run into a directory.
func (d *Dirs) beginRun(dir *directory) error {
	if d.incarnation.IsZero() {
		id, err := uuid.New(d.o.Rand)
		if err != nil {
			return err
		}
		d.incarnation = id
	}
	siblings := map[string]uuid.UUID{}
	old, err := readStart(dir.fs, dir.path)
	if err != nil {
		return err
	}
	for _, other := range d.dirs {
		if other.offline() == nil {
			siblings[other.key] = other.id
		} else if old != nil && !old.siblings[other.key].IsZero() {
			siblings[other.key] = old.siblings[other.key]
		}
	}
	dir.start = startRecord{
		meta:        MetaProperties{Version: 1, ClusterID: d.o.ClusterID, NodeID: d.o.NodeID, DirectoryID: dir.id},
		incarnation: d.incarnation, boot: d.o.BootID(), siblings: siblings, known: startsAfter(old), before: old,
	}
	if lost := d.lostSibling(old); lost != "" {
		d.o.Logger.Warn("log directory is gone with what was in it: this broker has to catch up with others", "dir", lost)
		dir.start.known = nil
	}
	dir.start.broken = old != nil && (len(old.known) > 0 && old.broken || !dir.clean.clean && !dir.start.sameBoot())
	return writeAtomic(dir.fs, filepath.Join(dir.path, startFile), dir.start.encode())
}

// lostSibling finds a directory that the last run had and this one has not: its path, or "". One that is offline is not
// lost; who asks for its logs is told.
func (d *Dirs) lostSibling(last *startRecord) string {
	if last == nil {
		return ""
	}
	for _, path := range slices.Sorted(maps.Keys(last.siblings)) {
		here := slices.ContainsFunc(d.dirs, func(dir *directory) bool {
			if dir.offline() != nil {
				return dir.key == path
			}
			return dir.id == last.siblings[path]
		})
		if !here {
			return path
		}
	}
	return ""
}

// readStart reads the record of the last run; nil when there is none or it is damaged.
func readStart(fsys vfs.FS, dir string) (*startRecord, error) {
	b, err := readFile(fsys, filepath.Join(dir, startFile), maxMetaBytes)
	var damaged *CorruptError
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, &damaged) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r, err := parseStartRecord(b)
	if err != nil {
		return nil, nil
	}
	return &r, nil
}

// seal puts a line with a CRC-32C of all before it behind a text, unseal checks it and takes it off.
func seal(text string) []byte {
	return fmt.Appendf(nil, "%scrc %08x\n", text, checksum([]byte(text)))
}

func unseal(b []byte) (string, error) {
	const tail = len("crc 01234567\n")
	if len(b) < tail {
		return "", errors.New("no checksum")
	}
	text := string(b[:len(b)-tail])
	if string(seal(text)) != string(b) {
		return "", errors.New("checksum does not match")
	}
	return text, nil
}

// sealedFields takes lines of a keyword and its value off a text, in order. The first error stays.
type sealedFields struct {
	rest string
	err  error
}

func (f *sealedFields) word(key string, take func(string) error) {
	if f.err != nil {
		return
	}
	line, rest, _ := strings.Cut(f.rest, "\n")
	f.rest = rest
	k, v, _ := strings.Cut(line, " ")
	if f.err = expect(k, key); f.err == nil {
		f.err = take(v)
	}
}

func expect(got, want string) error {
	if got != want {
		return fmt.Errorf("%.40q instead of %q", got, want)
	}
	return nil
}
