package cluster

import (
	"context"
	"fmt"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

// CreateOptions are of one CreateTopics request.
type CreateOptions struct {
	ValidateOnly bool // all is checked, nothing created
}

// CreateResult is one topic as it was created, or would be with ValidateOnly.
type CreateResult struct {
	Topic   *metadata.Topic
	Configs map[string]string // those it was created with
	Err     error             // of package controller, metadata or quorum
}

// CreateTopics creates topics; each succeeds or fails by itself. A name that is there twice fails both times with a
// *controller.RequestError. When it returns, this node's image has the topics.
func (c *Cluster) CreateTopics(ctx context.Context, topics []controller.NewTopic, o CreateOptions) []CreateResult {
	results := make([]CreateResult, len(topics))
	if err := c.catchUp(ctx); err != nil {
		for i := range results {
			results[i].Err = err
		}
		return results
	}
	times := map[string]int{}
	var budget int64 = controller.MaxPartitionsPerRequest
	for _, t := range topics {
		times[t.Name]++
	}
	cmds := make([]metadata.Command, 0, len(topics))
	at := make([]int, 0, len(topics))
	view := c.View()
	for i, t := range topics {
		if times[t.Name] > 1 {
			results[i].Err = &controller.RequestError{Reason: "Duplicate topic name."}
			continue
		}
		cmd, err := c.createTopic(view, t, &budget)
		if err != nil {
			results[i].Err = err
			continue
		}
		results[i].Configs = cmd.Configs
		cmds, at = append(cmds, cmd), append(at, i)
	}
	if o.ValidateOnly {
		c.wouldCreate(view.Image, cmds, at, results)
		return results
	}
	for n, err := range c.propose(ctx, cmds) {
		r := &results[at[n]]
		if r.Err = err; err == nil {
			r.Topic, _ = c.Image().TopicByID(cmds[n].(metadata.CreateTopic).ID)
			if r.Topic == nil { // deleted already
				r.Err = &metadata.UnknownTopicError{Name: topics[at[n]].Name}
			}
		}
	}
	return results
}

// same answers everything with one error.
func same(err error, errs []error) []error {
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// createTopic decides about one topic within the number of partitions that the request has left.
func (c *Cluster) createTopic(v controller.View, t controller.NewTopic, budget *int64) (metadata.CreateTopic, error) {
	draw, err := c.draw()
	if err != nil {
		return metadata.CreateTopic{}, err
	}
	cmd, err := v.CreateTopic(t, draw)
	if err != nil {
		return cmd, err
	}
	if *budget -= int64(len(cmd.Partitions)); *budget < 0 {
		*budget = 0
		return cmd, &controller.TooManyPartitionsError{Requested: int64(len(cmd.Partitions)), Max: controller.MaxPartitionsPerRequest}
	}
	return cmd, nil
}

// wouldCreate applies the commands to an image that is then forgotten.
func (c *Cluster) wouldCreate(im *metadata.Image, cmds []metadata.Command, at []int, results []CreateResult) {
	for n, cmd := range cmds {
		r := &results[at[n]]
		var d metadata.Delta
		if im, d, r.Err = im.Apply(im.Index(), cmd); r.Err == nil {
			r.Topic = d.Topics[0].After
		}
	}
}

// DeleteTopics deletes topics by id. An id that is there twice fails both times with a *controller.RequestError, an
// unknown one with a *metadata.UnknownTopicIDError.
func (c *Cluster) DeleteTopics(ctx context.Context, ids []uuid.UUID) []error {
	errs := make([]error, len(ids))
	if err := c.catchUp(ctx); err != nil {
		return same(err, errs)
	}
	times := map[uuid.UUID]int{}
	for _, id := range ids {
		times[id]++
	}
	var cmds []metadata.Command
	var at []int
	im := c.Image()
	for i, id := range ids {
		if times[id] > 1 {
			errs[i] = &controller.RequestError{Reason: "Duplicate topic id."}
		} else if _, ok := im.TopicByID(id); !ok {
			errs[i] = &metadata.UnknownTopicIDError{ID: id}
		} else {
			cmds, at = append(cmds, metadata.DeleteTopic{ID: id}), append(at, i)
		}
	}
	for n, err := range c.propose(ctx, cmds) {
		errs[at[n]] = err
	}
	return errs
}

// CreatePartitions adds partitions to topics; each succeeds or fails by itself.
func (c *Cluster) CreatePartitions(ctx context.Context, topics []controller.MorePartitions, validateOnly bool) []error {
	errs := make([]error, len(topics))
	if err := c.catchUp(ctx); err != nil {
		return same(err, errs)
	}
	times := map[string]int{}
	for _, t := range topics {
		times[t.Name]++
	}
	var budget int64 = controller.MaxPartitionsPerRequest
	for i, t := range topics {
		if times[t.Name] > 1 {
			errs[i] = &controller.RequestError{Reason: "Duplicate topic name."}
			continue
		}
		errs[i] = c.createPartitions(ctx, t, validateOnly, &budget)
	}
	return errs
}

func (c *Cluster) createPartitions(ctx context.Context, t controller.MorePartitions, validateOnly bool, budget *int64) error {
	draw, err := c.draw()
	if err != nil {
		return err
	}
	if validateOnly {
		_, err := c.View().CreatePartitions(t, draw)
		return err
	}
	left := *budget
	return c.decide(ctx, func(v controller.View) (metadata.Command, error) {
		cmd, err := v.CreatePartitions(t, draw)
		if err != nil {
			return nil, err
		}
		added := int64(len(cmd.New))
		if added > left {
			return nil, &controller.TooManyPartitionsError{Requested: added, Max: controller.MaxPartitionsPerRequest}
		}
		*budget = left - added
		return cmd, nil
	})
}

// AlterConfigs changes settings; each resource succeeds or fails by itself. A resource that is there twice fails both
// times with a *controller.RequestError.
func (c *Cluster) AlterConfigs(ctx context.Context, changes []controller.ConfigChange, validateOnly bool) []error {
	errs := make([]error, len(changes))
	if err := c.catchUp(ctx); err != nil {
		return same(err, errs)
	}
	times := map[metadata.Resource]int{}
	for _, ch := range changes {
		times[ch.Resource]++
	}
	for i, ch := range changes {
		if times[ch.Resource] > 1 {
			errs[i] = &controller.RequestError{Reason: fmt.Sprintf("Each resource must appear at most once; %q appears more often.", ch.Resource.Name)}
			continue
		}
		if validateOnly {
			_, errs[i] = c.View().AlterConfigs(ch)
			continue
		}
		errs[i] = c.decide(ctx, func(v controller.View) (metadata.Command, error) {
			cmd, err := v.AlterConfigs(ch)
			if err != nil || len(cmd.Set)+len(cmd.Delete) == 0 {
				return nil, err
			}
			return cmd, nil
		})
	}
	return errs
}
