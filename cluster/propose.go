package cluster

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/quorum"
)

const (
	retryPause = 20 * time.Millisecond
	// maxDecisions is how often a change is decided again when others were faster.
	maxDecisions = 10
)

// propose puts commands into the metadata log and answers each. What was proposed with an unknown outcome, or while no
// node led, is proposed again until ctx ends: commands carry their precondition, so a second one is refused when the
// first has come through, and settled recognises that.
func (c *Cluster) propose(ctx context.Context, cs []metadata.Command) []error {
	errs := c.o.Quorum.ProposeEach(ctx, cs)
	for {
		var again []int
		for i, err := range errs {
			if retriable(err) {
				again = append(again, i)
			}
		}
		if len(again) == 0 || !sleep(ctx, retryPause) {
			return errs
		}
		part := make([]metadata.Command, len(again))
		for n, i := range again {
			part[n] = cs[i]
		}
		for n, err := range c.o.Quorum.ProposeEach(ctx, part) {
			i := again[n]
			if err != nil && errors.Is(err, ctx.Err()) {
				continue // the earlier error says more
			}
			if settled(c.Image(), cs[i], err) {
				err = nil
			}
			errs[i] = err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func retriable(err error) bool {
	var unknown *quorum.UnknownOutcomeError
	var follower *quorum.NotLeaderError
	switch {
	case errors.As(err, new(*quorum.StoppedError)):
		return false
	case errors.As(err, &follower):
		return follower.Leader == metadata.NoBroker
	}
	return errors.As(err, &unknown)
}

// settled tells that a command was refused because the first attempt at it had come through.
func settled(im *metadata.Image, cmd metadata.Command, err error) bool {
	if err == nil || retriable(err) {
		return false
	}
	switch cmd := cmd.(type) {
	case metadata.CreateTopic:
		_, ok := im.TopicByID(cmd.ID)
		return ok
	case metadata.DeleteTopic:
		_, ok := im.TopicByID(cmd.ID)
		return !ok
	case metadata.CreatePartitions:
		t, ok := im.TopicByID(cmd.ID)
		return ok && len(t.Partitions) == int(cmd.Count)+len(cmd.New)
	case metadata.SetConfigs:
		return hasConfigs(im.Configs(cmd.Resource), cmd)
	}
	return false
}

func hasConfigs(have map[string]string, cmd metadata.SetConfigs) bool {
	want := maps.Clone(have)
	for _, name := range cmd.Delete {
		delete(want, name)
	}
	if want == nil {
		want = map[string]string{}
	}
	maps.Copy(want, cmd.Set)
	return maps.Equal(have, want)
}

// catchUp makes sure that a decision sees what was answered to anybody before it was asked for, by any broker. The leader of
// the metadata log has no more of it than others: a follower may have applied, and answered, what the leader has committed
// and is still to apply.
func (c *Cluster) catchUp(ctx context.Context) error {
	if c.alone() {
		return nil
	}
	return c.o.Quorum.Barrier(ctx)
}

// decide makes one decision on the image of the moment and proposes it; when another change was faster, it decides again.
// A decision that there is nothing to do is nil.
func (c *Cluster) decide(ctx context.Context, decision func(controller.View) (metadata.Command, error)) error {
	for n := 0; ; n++ {
		cmd, err := decision(c.View())
		if err != nil || cmd == nil {
			return err
		}
		err = c.propose(ctx, []metadata.Command{cmd})[0]
		if n == maxDecisions || !controller.IsConflict(err) {
			return err
		}
	}
}
