package node

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/protocol"
)

// followSettings has settings of this broker that are changed at run time take effect. Those of topics are followed by the
// partitions themselves.
func (n *Node) followSettings(ctx context.Context) error {
	sub := n.quorum.Subscribe()
	defer sub.Close()
	for {
		im, delta, err := sub.Next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("follow the settings: %w", err)
		}
		for _, r := range delta.Configs {
			if r.Type == metadata.ResourceBroker && (r.Name == "" || r.Name == strconv.Itoa(int(n.id))) {
				n.applySettings(im)
				break
			}
		}
	}
}

// applySettings takes over what may be changed while the broker runs.
func (n *Node) applySettings(im *metadata.Image) {
	b, err := n.effectiveSettings(im)
	if err != nil { // each was checked when it was set
		n.log.Error("settings are not usable together, going on with those before", "err", err)
		return
	}
	n.server.SetConnectionLimits(connectionLimits(b.Network))
	n.dirs.SetCleaner(cleaner(b.Storage.Cleaner))
	n.dirs.SetMoveRate(b.Storage.MoveBytesPerSecond)
	n.dirs.SetLimits(dirsLimits(b.Storage))
	n.handlers.SetVerification(b.Transactions.Verify)
}

// settingsAtStart are the settings with which the logs are opened: what was set at run time counts here too.
func (n *Node) settingsAtStart() *config.Broker {
	b, err := n.effectiveSettings(n.quorum.Image())
	if err != nil { // applySettings tells of it
		return n.o.Config
	}
	return b
}

// effectiveSettings are the broker's settings with those that were set for it, and for all brokers, at run time.
func (n *Node) effectiveSettings(im *metadata.Image) (*config.Broker, error) {
	merged := maps.Clone(n.o.Static)
	if merged == nil {
		merged = map[string]string{}
	}
	maps.Copy(merged, im.Configs(metadata.Resource{Type: metadata.ResourceBroker}))
	maps.Copy(merged, im.Configs(metadata.Resource{Type: metadata.ResourceBroker, Name: strconv.Itoa(int(n.id))}))
	b, _, err := config.ParseBroker(merged)
	return b, err
}

func connectionLimits(c config.Network) protocol.ConnectionLimits {
	return protocol.ConnectionLimits{
		Max: connectionLimit(int(c.MaxConnections), descriptors()), MaxPerIP: int(c.MaxConnectionsPerIP), PerIP: perIP(c.PerIPOverrides),
	}
}
