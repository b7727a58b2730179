package replica

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/storage"
)

// resignInterval is how often it is looked whether a replica with a broken log still has a place that others should have.
const resignInterval = time.Second

// resign gives up leaderships and places in in-sync sets of replicas whose logs cannot be served, as long as others can
// take over, and then makes damaged logs anew from their leaders. The sole copy stays as it is, for a person to look at.
func (s *Set) resign(ctx context.Context) {
	t := time.NewTicker(resignInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-s.broken:
		}
		given, damaged := s.lookForBroken()
		if len(given) > 0 {
			s.logger.Warn("gives up replicas whose logs cannot be served", "partitions", len(given), "topic", given[0].Topic,
				"partition", given[0].Partition)
			ctx, cancel := context.WithTimeout(ctx, changeTimeout)
			if err := s.giveUp(ctx, given); err != nil {
				s.logger.Warn("replicas are not given up yet", "partitions", len(given), "err", err)
			}
			cancel()
		}
		for _, p := range damaged {
			if err := s.rebuild(ctx, p); err != nil {
				s.logger.Error("damaged replica cannot be made anew", "topic", p.Topic(), "partition", p.Index(), "err", err)
			}
		}
	}
}

// lookForBroken finds the replicas to be given up, and those that may be made anew.
func (s *Set) lookForBroken() (given []controller.Partition, damaged []*Partition) {
	for t := range s.byID.all() {
		for _, slot := range *t.slots.Load() {
			p := slot.Load()
			if p == nil || !p.isBroken() {
				continue
			}
			m := p.role.Load().meta
			switch {
			case len(m.Replicas) < 2:
			case m.Leader == s.self || slices.Contains(m.ISR, s.self) || slices.Contains(m.ELR, s.self):
				given = append(given, controller.Partition{Topic: p.Topic(), Partition: p.Index()})
			case m.Leader >= 0 && p.isDamaged():
				damaged = append(damaged, p)
			}
		}
	}
	return given, damaged
}

// isBroken tells that the log cannot be served, or holds something that must not be.
func (p *Partition) isBroken() bool {
	r := p.role.Load()
	return r.err != nil && !p.Gone() || p.log != nil && p.log.Damaged() != nil
}

// isDamaged tells that it is the log's bytes that are wrong, not the whole directory.
func (p *Partition) isDamaged() bool {
	var damage *storage.CorruptError
	return errors.As(p.role.Load().err, &damage) || p.log != nil && p.log.Damaged() != nil
}

// Damaged tells the set of damage that was found in a log: it is to be called by storage.DirsOptions.OnDamaged.
func (s *Set) Damaged(*storage.Log, storage.Damage) { note(s.broken) }

// rebuild sets a damaged log aside and begins a new one, which the leader fills.
func (s *Set) rebuild(ctx context.Context, p *Partition) error {
	s.applying.Lock()
	defer s.applying.Unlock()
	im := s.applied.Load()
	t, ok := im.TopicByID(p.TopicID())
	if p.topic.partition(p.Index()) != p || !ok || int(p.Index()) >= len(t.Partitions) {
		return nil
	}
	m := t.Partitions[p.Index()]
	if m.Leader == s.self || m.Leader < 0 || slices.Contains(m.ISR, s.self) || !slices.Contains(m.Replicas, s.self) {
		return nil
	}
	s.logger.Warn("damaged replica is set aside and copied from its leader", "topic", p.Topic(), "partition", p.Index(),
		"broker", m.Leader)
	p.fail(&RemovedError{Leader: m.Leader, Epoch: m.LeaderEpoch})
	s.fetchers.drop(p)
	tp := storage.TopicPartition{Topic: p.Topic(), Partition: p.Index()}
	if err := s.dirs.Stray(tp); err != nil {
		return err
	}
	return s.open(ctx, im, []storage.OpenRequest{
		{TopicPartition: tp, TopicID: p.TopicID(), Config: p.Settings().Log, New: true},
	})
}

// failedHere is told of partitions that went offline.
func (s *Set) failedHere(_ *Partition, err error) {
	var gone *metadata.UnknownTopicIDError
	var moved *RemovedError
	if !errors.As(err, &gone) && !errors.As(err, &moved) {
		note(s.broken)
	}
}
