package storage

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/karstlog/karst/internal/properties"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
)

// Names of the identity files, as in Apache Kafka.
const (
	metaPropertiesFile    = "meta.properties"    // in the root of a log directory
	partitionMetadataFile = "partition.metadata" // in a partition's directory
)

const maxMetaBytes = 64 << 10

// PartitionMetadata is the content of partition.metadata: whose records a directory holds (KIP-516). A topic that is
// deleted and made again under its name has another id.
type PartitionMetadata struct{ TopicID uuid.UUID }

// ReadPartitionMetadata reads dir's partition.metadata. It is missing (fs.ErrNotExist) in directories of Kafka before
// 2.8 and in one whose creation was interrupted; damage is a *CorruptError and treated alike.
func ReadPartitionMetadata(fs vfs.FS, dir string) (PartitionMetadata, error) {
	path := filepath.Join(dir, partitionMetadataFile)
	b, err := readFile(fs, path, maxMetaBytes)
	if err != nil {
		return PartitionMetadata{}, err
	}
	m, err := parsePartitionMetadata(string(b))
	if err != nil {
		return PartitionMetadata{}, &CorruptError{Path: path, Pos: -1, Reason: err.Error()}
	}
	return m, nil
}

// WritePartitionMetadata replaces dir's partition.metadata atomically and durably.
func WritePartitionMetadata(fs vfs.FS, dir string, m PartitionMetadata) error {
	return writeAtomic(fs, filepath.Join(dir, partitionMetadataFile), m.encode())
}

// encode gives Kafka's 43 bytes; there is no final newline.
func (m PartitionMetadata) encode() []byte {
	return []byte("version: 0\ntopic_id: " + m.TopicID.String())
}

func parsePartitionMetadata(s string) (PartitionMetadata, error) {
	text, ok := strings.CutPrefix(strings.TrimSuffix(s, "\n"), "version: 0\ntopic_id: ")
	if !ok {
		return PartitionMetadata{}, fmt.Errorf("content is %.60q", s)
	}
	id, err := parseID(text)
	if err != nil {
		return PartitionMetadata{}, err
	}
	return PartitionMetadata{id}, nil
}

// parseID reads an id in its one canonical form. The 22nd character has four bits that base64 ignores and a damaged byte
// could hide in.
func parseID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return uuid.UUID{}, err
	}
	if id.IsZero() || id.String() != text {
		return uuid.UUID{}, fmt.Errorf("id %q is not valid", text)
	}
	return id, nil
}

// MetaProperties is the content of meta.properties: whose log directory this is.
type MetaProperties struct {
	Version     int       // 0 (ZooKeeper era) or 1 (KRaft)
	ClusterID   string    // 22 characters, or whatever somebody chose for an old Kafka cluster
	NodeID      int32     // node.id; broker.id in version 0
	DirectoryID uuid.UUID // zero in version 0 and in version 1 before Kafka 3.7
}

// ReadMetaProperties reads the meta.properties of a log directory.
func ReadMetaProperties(fs vfs.FS, dir string) (MetaProperties, error) {
	path := filepath.Join(dir, metaPropertiesFile)
	b, err := readFile(fs, path, maxMetaBytes)
	if err != nil {
		return MetaProperties{}, err
	}
	m, err := parseMetaProperties(b)
	if err != nil {
		return MetaProperties{}, &CorruptError{Path: path, Pos: -1, Reason: err.Error()}
	}
	return m, nil
}

// WriteMetaProperties replaces the meta.properties of a log directory atomically and durably. now goes into the comment.
func WriteMetaProperties(fs vfs.FS, dir string, m MetaProperties, now time.Time) error {
	return writeAtomic(fs, filepath.Join(dir, metaPropertiesFile), m.encode(now))
}

// encode writes what java.util.Properties would, in Kafka's order; ids need no escapes, a chosen cluster id might.
func (m MetaProperties) encode(now time.Time) []byte {
	var b strings.Builder
	b.WriteString("#\n#" + now.UTC().Format("Mon Jan 02 15:04:05 MST 2006") + "\n")
	id := "node.id"
	if m.Version == 0 {
		id = "broker.id"
	}
	fmt.Fprintf(&b, "%s=%d\n", id, m.NodeID)
	if !m.DirectoryID.IsZero() {
		fmt.Fprintf(&b, "directory.id=%s\n", m.DirectoryID)
	}
	fmt.Fprintf(&b, "version=%d\n", m.Version)
	if m.ClusterID != "" {
		fmt.Fprintf(&b, "cluster.id=%s\n", escapeProperty(m.ClusterID))
	}
	return []byte(b.String())
}

func parseMetaProperties(b []byte) (MetaProperties, error) {
	ps, err := parseProperties(b)
	if err != nil {
		return MetaProperties{}, err
	}
	m := MetaProperties{ClusterID: ps["cluster.id"]}
	idKey := "node.id"
	switch ps["version"] {
	case "0":
		idKey = "broker.id"
	case "1":
		m.Version = 1
	default:
		return MetaProperties{}, fmt.Errorf("version is %.20q, want 0 or 1", ps["version"])
	}
	node, err := number(ps[idKey], 32)
	if err != nil {
		return MetaProperties{}, fmt.Errorf("%s is %.20q", idKey, ps[idKey])
	}
	m.NodeID = int32(node)
	if m.Version == 1 && m.ClusterID == "" {
		return MetaProperties{}, fmt.Errorf("cluster.id is missing")
	}
	if text, ok := ps["directory.id"]; ok {
		if m.DirectoryID, err = parseID(text); err != nil {
			return MetaProperties{}, fmt.Errorf("directory.id: %w", err)
		}
	}
	return m, nil
}

// parseProperties refuses what is not text, and a key that comes twice.
func parseProperties(b []byte) (map[string]string, error) {
	if !utf8.Valid(b) {
		return nil, fmt.Errorf("not text")
	}
	list, err := properties.Parse(string(b))
	if err != nil {
		return nil, err
	}
	ps := make(map[string]string, len(list))
	for _, p := range list {
		if _, twice := ps[p.Name]; twice {
			return nil, fmt.Errorf("%q is there twice", p.Name)
		}
		ps[p.Name] = p.Value
	}
	return ps, nil
}

func escapeProperty(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == ' ' && i == 0, strings.ContainsRune(`\=:#!`, r):
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r > 0x7e:
			for _, u := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04X`, u)
			}
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
