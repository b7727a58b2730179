package sqlsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// store is the table with the offsets: for each group, topic and partition the offset of the next record, and the
// generation of the group in which it was written last.
type store struct {
	table string
	group string
	marks Placeholders
}

// errFenced: the partition belongs to another process now.
var errFenced = errors.New("the partition belongs to another member of the group")

// statement puts the table and the database's marks into a statement.
func (s store) statement(text string) string {
	text = strings.ReplaceAll(text, "TABLE_", s.table)
	if s.marks != Dollar {
		return text
	}
	var b strings.Builder
	n := 0
	for _, r := range text {
		if r == '?' {
			n++
			fmt.Fprintf(&b, "$%d", n)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

func (s store) create(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, s.statement(`CREATE TABLE IF NOT EXISTS TABLE_ (
	sink VARCHAR(190) NOT NULL, topic VARCHAR(190) NOT NULL, part INTEGER NOT NULL,
	next_offset BIGINT NOT NULL, generation BIGINT NOT NULL,
	PRIMARY KEY (sink, topic, part))`))
	return err
}

// claim writes the generation of the owner, which keeps owners of older ones out, and returns the offset, -1 for none.
func (s store) claim(ctx context.Context, tx *sql.Tx, at place, generation int32) (int64, error) {
	res, err := tx.ExecContext(ctx, s.statement(`UPDATE TABLE_ SET generation = ? WHERE sink = ? AND topic = ? AND part = ? AND generation <= ?`),
		generation, s.group, at.topic, at.partition, generation)
	if err != nil {
		return 0, err
	}
	var next, stored int64
	err = tx.QueryRowContext(ctx, s.statement(`SELECT next_offset, generation FROM TABLE_ WHERE sink = ? AND topic = ? AND part = ?`),
		s.group, at.topic, at.partition).Scan(&next, &stored)
	if errors.Is(err, sql.ErrNoRows) {
		_, err = tx.ExecContext(ctx, s.statement(`INSERT INTO TABLE_ (sink, topic, part, next_offset, generation) VALUES (?, ?, ?, -1, ?)`),
			s.group, at.topic, at.partition, generation)
		return -1, err
	}
	if err != nil {
		return 0, err
	}
	// MySQL counts rows that changed, not those that were found: one that has the generation already counts as none.
	if n, err := res.RowsAffected(); err == nil && n == 0 && stored > int64(generation) {
		return 0, fmt.Errorf("generation %d of the group is older than %d in %s: %w (was the group deleted? then set its generation there to 0)",
			generation, stored, s.table, errFenced)
	}
	return next, nil
}

// move is the step of an offset.
type move struct {
	from, to   int64
	generation int32
}

// advance moves the offset on, if it is where this process left it and no later owner has come. Otherwise errFenced.
func (s store) advance(ctx context.Context, tx *sql.Tx, at place, m move) error {
	res, err := tx.ExecContext(ctx, s.statement(`UPDATE TABLE_ SET next_offset = ?, generation = ?
	WHERE sink = ? AND topic = ? AND part = ? AND next_offset = ? AND generation <= ?`),
		m.to, m.generation, s.group, at.topic, at.partition, m.from, m.generation)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return err
	}
	if n != 1 {
		return errFenced
	}
	return nil
}
