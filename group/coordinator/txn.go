package coordinator

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/group"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

// Offsets inside of transactions. They are written like others, but in batches of the producer, and wait in their groups
// for the marker, which the coordinator of transactions has written here by way of Mark: the shard must see it in its place
// in the log.

// txnWrite is what a write has that belongs to a transaction.
type txnWrite struct {
	producer group.Producer
	guard    *storage.TxnGuard // of a commit: taken before the coordinator of transactions was asked
	mark     *mark             // nil: a commit
}

// mark is a marker on its way.
type mark struct {
	batch   batch.Batch
	options replica.MarkerOptions
	commit  bool
	done    func(error)
}

// pendingGroups are the groups that a producer's open transaction has committed offsets of.
type pendingGroups map[int64]map[*entry]struct{}

func (p pendingGroups) add(producer int64, e *entry) {
	if p[producer] == nil {
		p[producer] = map[*entry]struct{}{}
	}
	p[producer][e] = struct{}{}
}

// take removes the groups of a producer, in order.
func (p pendingGroups) take(producer int64) []*entry {
	list := slices.SortedFunc(maps.Keys(p[producer]), func(a, b *entry) int { return cmp.Compare(a.ID(), b.ID()) })
	delete(p, producer)
	return list
}

// Topic is the id of the topic that groups are kept in; zero while it does not exist.
func (c *Coordinator) Topic() uuid.UUID {
	t, ok := c.set.Image().Topic(Topic)
	if !ok {
		return uuid.UUID{}
	}
	return t.ID
}

// TxnPartition is the partition that the commits of a group go to: what a transaction with such a commit has to contain.
//
// Error: ErrNotAvailable while there is no topic.
func (c *Coordinator) TxnPartition(id string) (metadata.TxnPartition, error) {
	t, ok := c.set.Image().Topic(Topic)
	if !ok {
		return metadata.TxnPartition{}, ErrNotAvailable
	}
	return metadata.TxnPartition{Topic: t.ID, Partition: group.PartitionFor(id, int32(len(t.Partitions)))}, nil
}

// TxnGuard tells how far the transactions of a producer have come in the partition of a group. It is taken before the
// coordinator of transactions is asked, and handed to CallInTxn.
func (c *Coordinator) TxnGuard(id string, producer int64) (storage.TxnGuard, error) {
	s, err := c.shardOf(id)
	if err != nil {
		return storage.TxnGuard{}, err
	}
	g, err := s.part.TxnGuard(producer)
	if err != nil {
		return storage.TxnGuard{}, translate(err)
	}
	return g, nil
}

// CallInTxn is Call for a commit inside of a transaction. Further errors: *storage.TxnMovedError (the transaction is not the
// one that was asked about), *storage.ProducerEpochError.
func (c *Coordinator) CallInTxn(id string, r *group.TxnCommit, guard storage.TxnGuard, done Done) {
	s, err := c.shardOf(id)
	if err == nil {
		err = s.call(id, r, &guard, done)
	}
	if err != nil {
		done(nil, err)
	}
}

// Mark writes the marker that ends a producer's transaction in a partition which this broker leads. done is called once:
// nil, the marker is committed and what the transaction committed counts, or does not. Like Done it must not block.
func (c *Coordinator) Mark(partition int32, b batch.Batch, o replica.MarkerOptions, done func(error)) {
	shards := *c.shards.Load()
	if int(partition) >= len(shards) || shards[partition] == nil {
		done(c.missing(int(partition)))
		return
	}
	kind, _, err := batch.ParseControl(b)
	if err != nil {
		done(err)
		return
	}
	s := shards[partition]
	w := write{txn: &txnWrite{
		producer: group.Producer{ID: b.ProducerID(), Epoch: b.ProducerEpoch()},
		mark:     &mark{batch: b, options: o, commit: kind == batch.ControlCommit, done: done},
	}}
	s.mu.Lock()
	err = s.readyLocked()
	if err == nil {
		s.mu.queue = append(s.mu.queue, w)
	}
	s.mu.Unlock()
	if err != nil {
		done(err)
		return
	}
	s.flush()
}

// appendMarker writes a marker, in its turn.
func (s *shard) appendMarker(w write) {
	m := w.txn.mark
	m.options.Epoch = s.epoch
	a, err := s.part.AppendMarker(m.batch, m.options)
	if err != nil {
		m.done(err)
		return
	}
	s.appended([]write{w}, a)
}

// txnCommittedLocked goes on with what belongs to a transaction and is below the high watermark.
func (s *shard) txnCommittedLocked(out outbox, now group.Now, w write) outbox {
	producer := w.txn.producer.ID
	if w.txn.mark == nil {
		for _, r := range w.records {
			w.of.ApplyTxn(producer, r)
		}
		s.mu.pending.add(producer, w.of)
		return s.takeLocked(out, w.of, w.of.Committed(now, w.id))
	}
	for _, e := range s.mu.pending.take(producer) {
		e.EndTxn(producer, w.txn.mark.commit)
		out = s.takeLocked(out, e, group.Decision{})
	}
	return append(out, outgoing{done: func(_ group.Answer, err error) { w.txn.mark.done(err) }})
}

// closeMarkersLocked answers the markers that are queued or not committed.
func (s *shard) closeMarkersLocked(out outbox, err error) outbox {
	for _, w := range slices.Concat(s.mu.queue, s.mu.flight) {
		if w.txn != nil && w.txn.mark != nil {
			done := w.txn.mark.done
			out = append(out, outgoing{done: func(_ group.Answer, err error) { done(err) }, err: err})
		}
	}
	return out
}

// endMarkers answers the markers among writes.
func endMarkers(ws []write, err error) {
	for _, w := range ws {
		if w.txn != nil && w.txn.mark != nil {
			w.txn.mark.done(err)
		}
	}
}

// overdueLocked answers for a write that is not committed in time.
func (s *shard) overdueLocked(out outbox, now group.Now, w *write, err error) outbox {
	if w.txn == nil || w.txn.mark == nil {
		return s.takeLocked(out, w.of, w.of.Overdue(now, w.id, err))
	}
	done := w.txn.mark.done
	w.txn.mark.done = func(error) {}
	return append(out, outgoing{done: func(_ group.Answer, err error) { done(err) }, err: err})
}

// inTxn tells what a transactional producer must hear as it is.
func inTxn(err error) bool {
	return errors.As(err, new(*storage.TxnMovedError)) || errors.As(err, new(*storage.ProducerEpochError))
}

// keepOpen hands the records of transactions that are not over to their groups.
func (l *loader) keepOpen() {
	for _, producer := range slices.Sorted(maps.Keys(l.open)) {
		for _, r := range l.open[producer] {
			if r.Tombstone() {
				continue
			}
			g := l.groups[r.GroupID()]
			if g == nil {
				g = group.New(r.GroupID(), l.shard.c.groups)
				l.groups[r.GroupID()] = g
			}
			g.ApplyTxn(producer, r)
		}
	}
}
