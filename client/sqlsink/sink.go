// Package sqlsink writes what it reads from topics into an SQL database, each record exactly once: the result and the
// offset that it came from are stored in one transaction of the database, and reading goes on from the offset that is
// stored there, whatever happened in between.
//
//	s, err := sqlsink.New(sqlsink.Options{
//		Bootstrap: []string{"localhost:9092"}, Topics: []string{"orders"}, Group: "billing", DB: db,
//		Handle: func(ctx context.Context, tx *sql.Tx, records []*sqlsink.Record) error { ... tx.ExecContext ... },
//	})
//	err = s.Run(ctx)
//
// Several processes may share a group. One that was taken for dead and goes on with a partition that another one has got is
// fenced in the database: by the generation of the group, and because an offset is only ever moved on from where it is.
// Handle must write through tx alone; what it does elsewhere is done at least once.
package sqlsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Record is one record.
type Record = kgo.Record

// Placeholders are how a database marks arguments in a statement.
type Placeholders int8

// The marks of MySQL, MariaDB and SQLite, and of PostgreSQL.
const (
	Question Placeholders = iota // ?
	Dollar                       // $1
)

// Options is what a Sink is built from.
type Options struct {
	Bootstrap []string
	Topics    []string
	Group     string // the consumer group, and the name of the offsets in Table
	DB        *sql.DB
	// Table has the offsets; it is created if need be. "": karst_offsets.
	Table        string
	Placeholders Placeholders
	// Handle writes the results of records, all of one partition and in order, through tx. An error ends Run; nothing of
	// these records is then stored.
	Handle func(ctx context.Context, tx *sql.Tx, records []*Record) error
	// MaxRecords is how many records are stored in one transaction at most; 0: 500.
	MaxRecords int
	Extra      []kgo.Opt // more options of franz-go
}

// Sink reads and stores. It is used once.
type Sink struct {
	o     Options
	store store
	opts  []kgo.Opt
	cl    *kgo.Client   // of Run
	begun chan struct{} // closed when cl and the table are there

	mu struct {
		sync.Mutex
		next map[place]int64 // offset that the database has, -1: none yet
	}
}

// place is a partition of a topic.
type place struct {
	topic     string
	partition int32
}

// New makes a Sink. It connects to nothing before Run.
func New(o Options) (*Sink, error) {
	switch {
	case o.DB == nil || o.Handle == nil:
		return nil, errors.New("sqlsink: DB and Handle are needed")
	case o.Group == "" || len(o.Topics) == 0:
		return nil, errors.New("sqlsink: Group and Topics are needed")
	}
	if o.Table == "" {
		o.Table = "karst_offsets"
	}
	if o.MaxRecords <= 0 {
		o.MaxRecords = 500
	}
	s := &Sink{o: o, store: store{table: o.Table, group: o.Group, marks: o.Placeholders}, begun: make(chan struct{})}
	s.mu.next = map[place]int64{}
	s.opts = append([]kgo.Opt{
		kgo.SeedBrokers(o.Bootstrap...), kgo.ConsumerGroup(o.Group), kgo.ConsumeTopics(o.Topics...),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		// The group's own offsets are for those who watch its lag; nothing is read from them.
		kgo.AutoCommitMarks(), kgo.AdjustFetchOffsetsFn(s.claim),
	}, o.Extra...)
	if err := kgo.ValidateOpts(s.opts...); err != nil {
		return nil, fmt.Errorf("sqlsink: %w", err)
	}
	return s, nil
}

// Run reads and stores until ctx ends, which is no error, or Handle or the database fail.
func (s *Sink) Run(ctx context.Context) error {
	if err := s.store.create(ctx, s.o.DB); ctx.Err() != nil {
		return nil
	} else if err != nil {
		return fmt.Errorf("sqlsink: create %s: %w", s.o.Table, err)
	}
	var err error
	if s.cl, err = kgo.NewClient(s.opts...); err != nil {
		return fmt.Errorf("sqlsink: %w", err)
	}
	defer s.cl.Close()
	close(s.begun)
	for {
		fs := s.cl.PollRecords(ctx, s.o.MaxRecords)
		if ctx.Err() != nil {
			return nil
		}
		for _, e := range fs.Errors() {
			return fmt.Errorf("sqlsink: read %s-%d: %w", e.Topic, e.Partition, e.Err)
		}
		var err error
		fs.EachPartition(func(p kgo.FetchTopicPartition) {
			if err == nil && len(p.Records) > 0 {
				err = s.keep(ctx, place{p.Topic, p.Partition}, p.Records)
			}
		})
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// keep stores the results of records with the offset behind them. A partition that another process has got meanwhile is
// left to it.
func (s *Sink) keep(ctx context.Context, at place, records []*Record) error {
	_, generation := s.cl.GroupMetadata()
	s.mu.Lock()
	from, ok := s.mu.next[at]
	s.mu.Unlock()
	if !ok {
		return nil
	}
	to := records[len(records)-1].Offset + 1
	err := inTx(ctx, s.o.DB, func(tx *sql.Tx) error {
		if err := s.store.advance(ctx, tx, at, move{from: from, to: to, generation: generation}); err != nil {
			return err
		}
		return s.o.Handle(ctx, tx, records)
	})
	if errors.Is(err, errFenced) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sqlsink: store %s-%d up to %d: %w", at.topic, at.partition, to, err)
	}
	s.mu.Lock()
	if s.mu.next[at] == from {
		s.mu.next[at] = to
	}
	s.mu.Unlock()
	s.cl.MarkCommitRecords(records...)
	return nil
}

// claim takes partitions over in the database when the group has given them to this process, and says where to read on. The
// client may call it before it is handed to Run.
func (s *Sink) claim(ctx context.Context, given map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	select {
	case <-s.begun:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	_, generation := s.cl.GroupMetadata()
	for topic, partitions := range given {
		for partition := range partitions {
			at := place{topic, partition}
			var next int64
			err := inTx(ctx, s.o.DB, func(tx *sql.Tx) (err error) {
				next, err = s.store.claim(ctx, tx, at, generation)
				return err
			})
			if err != nil {
				return nil, fmt.Errorf("sqlsink: take over %s-%d: %w", topic, partition, err)
			}
			s.mu.Lock()
			s.mu.next[at] = next
			s.mu.Unlock()
			if next >= 0 {
				partitions[partition] = kgo.NewOffset().At(next)
			} else {
				partitions[partition] = kgo.NewOffset().AtStart()
			}
		}
	}
	return given, nil
}

// inTx commits what f did, or rolls it back.
func inTx(ctx context.Context, db *sql.DB, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
