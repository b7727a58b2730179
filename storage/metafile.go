package storage

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

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

// parseProperties reads the format of java.util.Properties, as far as Kafka's tools and an editor produce it: comments,
// key and value divided by =, : or white space, lines continued by a backslash, escapes. A key that comes twice is refused.
func parseProperties(b []byte) (map[string]string, error) {
	if !utf8.Valid(b) {
		return nil, fmt.Errorf("not text")
	}
	ps := map[string]string{}
	lines := strings.Split(strings.ReplaceAll(strings.ReplaceAll(string(b), "\r\n", "\n"), "\r", "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimLeft(lines[i], " \t\f")
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		for continued(line) && i+1 < len(lines) {
			i++
			line = line[:len(line)-1] + strings.TrimLeft(lines[i], " \t\f")
		}
		k, v, err := splitProperty(line)
		if err != nil {
			return nil, err
		}
		if _, twice := ps[k]; twice {
			return nil, fmt.Errorf("%q is there twice", k)
		}
		ps[k] = v
	}
	return ps, nil
}

// continued tells whether a line ends with an odd number of backslashes.
func continued(line string) bool {
	return (len(line)-len(strings.TrimRight(line, `\`)))%2 == 1
}

func splitProperty(line string) (key, value string, err error) {
	end := 0
	for end < len(line) && !strings.ContainsRune("=: \t\f", rune(line[end])) {
		if line[end] == '\\' {
			end++
		}
		end++
	}
	end = min(end, len(line))
	rest := strings.TrimLeft(line[end:], " \t\f")
	if rest != "" && (rest[0] == '=' || rest[0] == ':') {
		rest = strings.TrimLeft(rest[1:], " \t\f")
	}
	if key, err = unescapeProperty(line[:end]); err != nil {
		return "", "", err
	}
	value, err = unescapeProperty(rest)
	return key, value, err
}

func unescapeProperty(s string) (string, error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}
	var b strings.Builder
	var units []uint16 // of \uXXXX escapes in a row, which may be surrogate pairs
	flush := func() {
		b.WriteString(string(utf16.Decode(units)))
		units = units[:0]
	}
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			flush()
			b.WriteByte(s[i])
			continue
		}
		i++
		if s[i] == 'u' {
			if len(s)-i < 5 {
				return "", fmt.Errorf("escape %.10q is cut off", s[i-1:])
			}
			u, err := strconv.ParseUint(s[i+1:i+5], 16, 16)
			if err != nil {
				return "", fmt.Errorf("escape %.10q is not hexadecimal", s[i-1:])
			}
			units = append(units, uint16(u))
			i += 4
			continue
		}
		flush()
		switch s[i] {
		case 't':
			b.WriteByte('\t')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 'f':
			b.WriteByte('\f')
		default:
			b.WriteByte(s[i])
		}
	}
	flush()
	return b.String(), nil
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
