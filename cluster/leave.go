package cluster

import (
	"context"
	"time"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
)

const (
	// leavePatience bounds how long a broker that stops waits for others to lead what it led.
	leavePatience = 10 * time.Second
	// goodbyePatience bounds the last word of a broker that stops: others find out without it.
	goodbyePatience = time.Second
)

// Leave prepares the end of this process: leaderships go to other members of the ISRs, this broker leaves the ISRs that are
// large enough without it, and another node becomes the controller. Partitions that nobody else can lead are told in the
// log and keep this broker. Its clients are to be served until it returns.
func (c *Cluster) Leave(ctx context.Context) {
	c.mu.Lock()
	c.mu.leaving = true
	c.mu.Unlock()
	if c.alone() || len(c.Image().Brokers()) < 2 || !c.handsOver() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leavePatience)
	defer cancel()
	stuck, err := c.Drain(ctx, c.o.BrokerID, true)
	if err != nil {
		c.o.Logger.Warn("leaderships not handed over", "err", err)
	}
	if len(stuck) > 0 {
		c.o.Logger.Warn("nobody else can lead some partitions while this broker is away", "partitions", len(stuck), "first", stuck[0])
	}
	if c.o.Quorum.IsLeader() {
		if err := c.o.Quorum.TransferLeadership(ctx); err != nil {
			c.o.Logger.Warn("the controller's place was not handed over", "err", err)
		}
	}
}

// handsOver: controlled.shutdown.enable.
func (c *Cluster) handsOver() bool {
	l := c.View().Layers()
	v, ok := l.BrokerValue("controlled.shutdown.enable")
	return !ok || v.Value != "false"
}

// Goodbye is the last word of a process whose partitions are closed: it is out of use from here on.
func (c *Cluster) Goodbye(ctx context.Context) {
	if c.alone() || len(c.Image().Brokers()) < 2 || c.Incarnation().IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, goodbyePatience)
	defer cancel()
	err := c.decideAll(ctx, func(v controller.View) []metadata.Command {
		me, ok := v.Image.Broker(c.o.BrokerID)
		fence, could := v.Fence(c.o.BrokerID)
		if !ok || !could || me.Incarnation != c.Incarnation() {
			return nil
		}
		return []metadata.Command{fence}
	})
	if err != nil {
		c.o.Logger.Debug("not fenced at the end", "err", err)
	}
}

// Drain takes a broker's leaderships and places in ISRs away, as far as others can do without it, or with on false takes
// that back. stuck are the partitions it still leads. Error: *metadata.UnknownBrokerError and those of quorum.
func (c *Cluster) Drain(ctx context.Context, id metadata.BrokerID, on bool) (stuck []controller.Partition, err error) {
	if err := c.catchUp(ctx); err != nil {
		return nil, err
	}
	var refused error
	err = c.decideAll(ctx, func(v controller.View) []metadata.Command {
		var cmd metadata.DrainBroker
		if cmd, stuck, refused = v.Drain(id, on); refused != nil {
			return nil
		}
		b, _ := v.Image.Broker(id)
		if b.Draining == on && len(cmd.Changes) == 0 {
			return nil
		}
		return []metadata.Command{cmd}
	})
	if refused != nil {
		return nil, refused
	}
	return stuck, err
}

// decideAll decides and proposes until nothing is left to do: what lost against other changes is decided again.
func (c *Cluster) decideAll(ctx context.Context, decision func(controller.View) []metadata.Command) error {
	var last error
	for range maxDecisions {
		cmds := decision(c.View())
		if len(cmds) == 0 {
			return nil
		}
		last = nil
		for _, err := range c.propose(ctx, cmds) {
			if err != nil && !controller.IsConflict(err) {
				return err
			}
			if err != nil {
				last = err
			}
		}
	}
	return last
}
