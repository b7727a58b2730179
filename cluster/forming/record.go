package forming

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
)

// recordName is the file in the data directory.
const recordName = "cluster.json"

const maxRecordBytes = 1 << 20

// Record is what a data directory remembers of its cluster. It is written and synced before anybody is told of it.
type Record struct {
	Directory uuid.UUID         // of this data: drawn at the first start, never changed
	ClusterID uuid.UUID         // zero: it belongs to none yet
	Node      metadata.BrokerID // counts when ClusterID or Promise is set
	// Promise is the one cluster that this broker is willing to form; nil: none. It stays until that cluster is there.
	Promise *Promise
	// Settled says that the metadata log of the cluster has been seen. An empty log after that is a lost one.
	Settled bool
}

// Promise names the members of a cluster that is being formed, in the order of their node ids.
type Promise struct {
	ClusterID uuid.UUID
	Members   []Candidate
	// From is the directory of the member that asked the others. It alone writes the first entry of the log, when all have
	// agreed; so its word that it no longer will is enough to take a promise back.
	From uuid.UUID
}

// Candidate is a broker that takes part in forming a cluster.
type Candidate struct {
	Directory uuid.UUID
	Node      metadata.BrokerID // NoBroker: none was given
	Addr      string            // of its cluster port
}

// mine tells whether this directory is the one that asks.
func (r Record) mine() bool { return r.Promise != nil && r.Promise.From == r.Directory }

// find returns the member with a directory.
func (p *Promise) find(directory uuid.UUID) (Candidate, bool) {
	for _, c := range p.Members {
		if c.Directory == directory {
			return c, true
		}
	}
	return Candidate{}, false
}

// same tells whether two promises are about the same cluster; addresses may have changed.
func (p *Promise) same(q *Promise) bool {
	if p.ClusterID != q.ClusterID || len(p.Members) != len(q.Members) {
		return false
	}
	for i, c := range p.Members {
		if c.Directory != q.Members[i].Directory || c.Node != q.Members[i].Node {
			return false
		}
	}
	return true
}

// The file: JSON with ids in their text form, for people who have to look.
type fileRecord struct {
	Directory string       `json:"directory_id"`
	Cluster   string       `json:"cluster_id,omitempty"`
	Node      int32        `json:"node_id"`
	Settled   bool         `json:"settled,omitempty"`
	Promise   *filePromise `json:"promise,omitempty"`
}

type filePromise struct {
	Cluster string       `json:"cluster_id"`
	From    string       `json:"from_directory_id"`
	Members []fileMember `json:"members"`
}

type fileMember struct {
	Directory string `json:"directory_id"`
	Node      int32  `json:"node_id"`
	Addr      string `json:"addr"`
}

func idText(id uuid.UUID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

func (r Record) encode() ([]byte, error) {
	f := fileRecord{Directory: r.Directory.String(), Cluster: idText(r.ClusterID), Node: int32(r.Node), Settled: r.Settled}
	if r.Promise != nil {
		f.Promise = &filePromise{Cluster: r.Promise.ClusterID.String(), From: r.Promise.From.String()}
		for _, c := range r.Promise.Members {
			f.Promise.Members = append(f.Promise.Members, fileMember{c.Directory.String(), int32(c.Node), c.Addr})
		}
	}
	b, err := json.MarshalIndent(f, "", "  ")
	return append(b, '\n'), err
}

// parser keeps the first error.
type parser struct{ err error }

func (p *parser) id(text string, required bool) uuid.UUID {
	if text == "" && !required {
		return uuid.UUID{}
	}
	id, err := uuid.Parse(text)
	p.err = errors.Join(p.err, err)
	return id
}

func decodeRecord(b []byte) (Record, error) {
	var f fileRecord
	if err := json.Unmarshal(b, &f); err != nil {
		return Record{}, err
	}
	var p parser
	r := Record{Directory: p.id(f.Directory, true), ClusterID: p.id(f.Cluster, false), Node: metadata.BrokerID(f.Node), Settled: f.Settled}
	if f.Promise != nil {
		r.Promise = &Promise{ClusterID: p.id(f.Promise.Cluster, true), From: p.id(f.Promise.From, true)}
		for _, m := range f.Promise.Members {
			r.Promise.Members = append(r.Promise.Members, Candidate{p.id(m.Directory, true), metadata.BrokerID(m.Node), m.Addr})
		}
		if _, ok := r.Promise.find(r.Directory); !ok {
			p.err = errors.Join(p.err, errors.New("the promise leaves this directory out"))
		}
	}
	return r, p.err
}

// Load reads the record of a data directory; false when there is none.
func Load(files vfs.FS, dir string) (Record, bool, error) {
	path := filepath.Join(dir, recordName)
	f, err := files.OpenFile(path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Record{Node: metadata.NoBroker}, false, nil
	}
	if err != nil {
		return Record{}, false, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxRecordBytes))
	if err != nil {
		return Record{}, false, err
	}
	r, err := decodeRecord(b)
	if err != nil {
		return Record{}, false, fmt.Errorf("%s is damaged (%w): restore it, or start with an empty data directory as a new broker", path, err)
	}
	return r, true, nil
}

// Save replaces the record, durably: after it has returned the new one is there whatever happens, before the old one.
func Save(files vfs.FS, dir string, r Record) error {
	b, err := r.encode()
	if err != nil {
		return err
	}
	if err := files.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	path := filepath.Join(dir, recordName)
	f, err := files.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := files.Rename(path+".tmp", path); err != nil {
		return err
	}
	return errors.Join(files.SyncDir(dir), files.SyncDir(filepath.Dir(dir)))
}
