package node

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"github.com/karstlog/karst/cluster"
	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/storage"
)

// firstNodeID is the id of a node that was not given one and is the first of its cluster.
const firstNodeID = 1

// identify finds this node's id: given, else what its directories say, else the first.
func (n *Node) identify() error {
	given := n.o.Config.NodeID
	if given >= 0 {
		n.id = metadata.BrokerID(given)
		return nil
	}
	n.id = firstNodeID
	for _, dir := range n.o.Config.LogDirs {
		m, err := storage.ReadMetaProperties(n.o.FS, dir)
		if err == nil && m.NodeID >= 0 {
			n.id = metadata.BrokerID(m.NodeID)
			return nil
		}
	}
	return nil
}

// form gives a new cluster its id; the image of an old one has it. With --import the topics of Kafka's directories
// become the first commands of the metadata log.
func (n *Node) form(ctx context.Context) error {
	if id := n.quorum.Image().ClusterID(); !id.IsZero() {
		if !n.clusterID.IsZero() && id != n.clusterID {
			return &cluster.ForeignClusterError{Directories: n.clusterID, Log: id}
		}
		n.clusterID = id
		return nil
	}
	found, err := storage.ImportScan(n.o.FS, n.o.Config.LogDirs)
	if err != nil {
		return err
	}
	if len(found.Topics) > 0 && !n.o.Config.Import {
		return foreignError(n.o.Config.LogDirs, found)
	}
	id := n.clusterID
	if id.IsZero() { // not agreed on with others
		if id, err = n.newClusterID(found); err != nil {
			return err
		}
	}
	commands, err := n.importTopics(found)
	if err != nil {
		return err
	}
	// The id comes last: a start that is cut off before it begins again and skips the topics that are there.
	if err := n.quorum.Propose(ctx, append(commands, metadata.SetClusterID{ID: id})...); err != nil {
		return fmt.Errorf("form the cluster: %w", err)
	}
	n.clusterID = id
	return nil
}

func foreignError(dirs []string, found storage.Import) error {
	names := make([]string, 0, len(found.Topics))
	for _, t := range found.Topics {
		names = append(names, t.Name)
	}
	sort.Strings(names)
	if len(names) > 5 {
		names = append(names[:5], "...")
	}
	return fmt.Errorf("%s holds %d topics (%s) that this node's metadata does not know: start once with --import to take them over, or name another --data",
		strings.Join(dirs, ", "), len(found.Topics), strings.Join(names, ", "))
}

// newClusterID keeps the id of an imported cluster, so that clients and directories see the one they know; else it takes
// the one that was given, if any.
func (n *Node) newClusterID(found storage.Import) (uuid.UUID, error) {
	text := found.ClusterID
	if text == "" {
		text = n.o.Config.ClusterID
	}
	if text == "" {
		return uuid.New(rand.Reader)
	}
	id, err := uuid.Parse(text)
	if err != nil {
		return uuid.UUID{}, fmt.Errorf("id of the cluster: %w", err)
	}
	return id, nil
}

// importTopics makes the commands for what was found. Topics that Kafka keeps for itself stay files.
func (n *Node) importTopics(found storage.Import) ([]metadata.Command, error) {
	var commands []metadata.Command
	view := controller.View{Image: n.quorum.Image(), Self: n.id}
	for _, t := range found.Topics {
		_, there := view.Image.Topic(t.Name)
		if there || metadata.IsKafkasOwn(t.Name) || len(t.Partitions) == 0 {
			continue
		}
		id, err := uuid.New(rand.Reader)
		if err != nil {
			return nil, err
		}
		last := slices.MaxFunc(t.Partitions, func(a, b storage.ImportedPartition) int { return int(a.Partition) - int(b.Partition) })
		epoch := int32(0)
		for _, p := range t.Partitions {
			epoch = max(epoch, p.LastEpoch)
		}
		c, err := view.ImportTopic(controller.ImportTopic{
			Name: t.Name, ID: t.ID, Partitions: last.Partition + 1,
			LeaderEpoch: metadata.LeaderEpoch(epoch + 1),
		}, controller.Draw{ID: id})
		if err != nil {
			return nil, fmt.Errorf("import topic %s: %w", t.Name, err)
		}
		if t.Compacted { // otherwise retention would delete what compaction kept for ever
			c.Configs = map[string]string{"cleanup.policy": "compact"}
		}
		commands = append(commands, c)
		n.log.Info("topic imported", "topic", t.Name, "partitions", len(t.Partitions))
	}
	return commands, nil
}

// perIP resolves max.connections.per.ip.overrides; a name that does not resolve limits nobody.
func perIP(overrides map[string]int32) map[netip.Addr]int {
	out := make(map[netip.Addr]int, len(overrides))
	for host, limit := range overrides {
		addrs, err := net.LookupIP(host)
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if ip, ok := netip.AddrFromSlice(a); ok {
				out[ip.Unmap()] = int(limit)
			}
		}
	}
	return out
}
