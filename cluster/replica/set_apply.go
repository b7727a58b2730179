package replica

import (
	"context"
	"slices"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/partition"
	"github.com/karstlog/karst/storage"
)

// Apply brings the set to the state of im, which delta leads to. The first call ignores delta and opens everything that
// im assigns to this broker, many logs at a time. One call at a time; only Run and tests call it.
//
// A log that cannot be opened leaves its partition offline and is no error. Error: ctx ended.
func (s *Set) Apply(ctx context.Context, im *metadata.Image, delta metadata.Delta) error {
	s.applying.Lock()
	defer s.applying.Unlock()
	before := s.applied.Load()
	first := before.Index() == 0
	if first {
		delta = metadata.Diff(before, im)
	}
	s.coming.Store(im)
	if first {
		s.rates(im)
	}
	for _, c := range delta.Topics {
		if c.Before != nil && c.After == nil {
			s.remove(c.Before)
		}
	}
	s.reconfigure(im, delta.Configs)
	var opens []storage.OpenRequest
	for _, c := range delta.Topics {
		if c.After != nil {
			opens = s.follow(im, c, first, opens)
		}
	}
	if len(delta.Brokers) > 0 {
		s.review(im, delta.Brokers)
	}
	if err := s.open(ctx, im, opens); err != nil {
		return err
	}
	s.publish(im)
	return nil
}

// become gives a partition its role, and a place at the fetcher of the broker it follows.
func (s *Set) become(p *Partition, im *metadata.Image, m metadata.Partition) {
	p.Become(m, peers(im, m.Replicas)...)
	r := p.role.Load()
	if p.isBroken() {
		note(s.broken)
	}
	switch {
	case r.err != nil || r.leads || r.meta.Leader < 0:
		s.fetchers.drop(p)
	default:
		s.fetchers.follow(p, r.meta.Leader, r.meta.LeaderEpoch)
	}
}

// peers are the registered brokers among the replicas.
func peers(im *metadata.Image, replicas []metadata.BrokerID) []partition.Peer {
	list := make([]partition.Peer, 0, len(replicas))
	for _, id := range replicas {
		if b, ok := im.Broker(id); ok {
			list = append(list, partition.Peer{
				Member:  partition.Member{Broker: id, Incarnation: b.Incarnation},
				MayJoin: !b.Fenced && !b.Draining,
			})
		}
	}
	return list
}

// review tells the partitions that have a replica on one of the brokers what became of these.
func (s *Set) review(im *metadata.Image, changed []metadata.BrokerID) {
	concerned := func(id metadata.BrokerID) bool { return slices.Contains(changed, id) }
	for here := range s.byID.all() {
		t, ok := im.TopicByID(here.id)
		if !ok {
			continue
		}
		for i, slot := range *here.slots.Load() {
			if p := slot.Load(); p != nil && i < len(t.Partitions) && slices.ContainsFunc(t.Partitions[i].Replicas, concerned) {
				s.become(p, im, t.Partitions[i])
			}
		}
	}
}

// follow tells the open partitions of a topic their new state and adds those that are to be opened. At the first image
// nothing counts as new: its log may be in a directory that is offline.
func (s *Set) follow(im *metadata.Image, c metadata.TopicChange, first bool, opens []storage.OpenRequest,
) []storage.OpenRequest {
	t, old := c.After, 0
	if c.Before != nil {
		old = len(c.Before.Partitions)
	}
	here, ok := s.byID.get(t.ID)
	for i, m := range t.Partitions {
		if !slices.Contains(m.Replicas, s.self) {
			if ok {
				s.leave(here, int32(i), m)
			}
			continue
		}
		if !ok {
			here, ok = newTopic(t.ID, t.Name, s.settings(im, t.Name)), true
			s.byID.put(t.ID, here)
			s.byName.put(t.Name, here)
		}
		here.grow(len(t.Partitions))
		if i < old && ok && c.Before.Partitions[i].PartitionEpoch == m.PartitionEpoch && here.partition(int32(i)) != nil {
			continue // nothing has changed in this one
		}
		if p := here.partition(int32(i)); p != nil {
			s.become(p, im, m)
			continue
		}
		opens = append(opens, storage.OpenRequest{
			TopicPartition: storage.TopicPartition{Topic: t.Name, Partition: int32(i)}, TopicID: t.ID,
			Config: here.settings.Load().Log, New: !first && (i >= old || !slices.Contains(c.Before.Partitions[i].Replicas, s.self)),
		})
	}
	return opens
}

// open opens logs, many at a time. Each partition takes its role as soon as its log is there.
func (s *Set) open(ctx context.Context, im *metadata.Image, requests []storage.OpenRequest) error {
	if len(requests) == 0 {
		return nil
	}
	return s.dirs.OpenAll(ctx, requests, func(tp storage.TopicPartition, log *storage.Log, err error) {
		t, ok := s.byName.get(tp.Topic)
		if !ok {
			return
		}
		m, ok := im.TopicByID(t.id)
		if !ok {
			return
		}
		if err != nil {
			note(s.broken)
		}
		if err != nil && ctx.Err() == nil { // else the start was called off
			s.logger.Error("partition is offline", "topic", tp.Topic, "partition", tp.Partition, "err", err)
		}
		p := newPartition(partitionOptions{
			topic: t, index: tp.Partition, env: s.env, log: log, openErr: err,
		})
		s.become(p, im, m.Partitions[tp.Partition])
		t.set(tp.Partition, p)
	})
}

// leave ends a replica that was moved to another broker, and deletes its log in the background.
func (s *Set) leave(t *topic, index int32, m metadata.Partition) {
	p := t.partition(index)
	if p == nil {
		return
	}
	t.set(index, nil)
	s.end(p, &RemovedError{Leader: m.Leader, Epoch: m.LeaderEpoch})
}

// end ends a partition here.
func (s *Set) end(p *Partition, why error) {
	p.fail(why)
	s.fetchers.drop(p)
	tp := storage.TopicPartition{Topic: p.Topic(), Partition: p.Index()}
	if err := s.dirs.Delete(tp); err != nil {
		s.logger.Error("cannot delete partition", "topic", tp.Topic, "partition", tp.Partition, "err", err)
	}
}

// remove ends the partitions of a deleted topic and deletes their logs in the background.
func (s *Set) remove(t *metadata.Topic) {
	here, ok := s.byID.get(t.ID)
	if !ok {
		return
	}
	s.byID.remove(t.ID)
	if named, ok := s.byName.get(t.Name); ok && named == here {
		s.byName.remove(t.Name)
	}
	for i := range t.Partitions {
		if p := here.partition(int32(i)); p != nil {
			s.end(p, &metadata.UnknownTopicIDError{ID: t.ID})
		}
	}
}
