package sqlsink

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"maps"
	"strings"
	"sync"
)

// fakeDB is a database in memory that knows the statements of this package and "INSERT INTO results", one transaction at a
// time. The real ones are tested in the module interop.
type fakeDB struct {
	tx      sync.Mutex
	offsets map[string][2]int64 // next offset, generation
	results []string
}

func newFakeDB() (*fakeDB, *sql.DB) {
	f := &fakeDB{offsets: map[string][2]int64{}}
	return f, sql.OpenDB(f)
}

func (f *fakeDB) Connect(context.Context) (driver.Conn, error) { return &fakeConn{db: f}, nil }
func (f *fakeDB) Driver() driver.Driver                        { return nil }

type fakeConn struct {
	db      *fakeDB
	inTx    bool
	offsets map[string][2]int64
	results int
}

func (c *fakeConn) Prepare(q string) (driver.Stmt, error) { return &fakeStmt{c, q}, nil }
func (c *fakeConn) Close() error                          { return nil }

func (c *fakeConn) Begin() (driver.Tx, error) {
	c.db.tx.Lock()
	c.inTx, c.offsets, c.results = true, maps.Clone(c.db.offsets), len(c.db.results)
	return c, nil
}

func (c *fakeConn) Commit() error {
	c.inTx = false
	c.db.tx.Unlock()
	return nil
}

func (c *fakeConn) Rollback() error {
	c.inTx, c.db.offsets, c.db.results = false, c.offsets, c.db.results[:c.results]
	c.db.tx.Unlock()
	return nil
}

type fakeStmt struct {
	c *fakeConn
	q string
}

func (s *fakeStmt) Close() error  { return nil }
func (s *fakeStmt) NumInput() int { return -1 }

func key(a, b, c driver.Value) string {
	return strings.Join([]string{a.(string), b.(string), string(rune('0' + c.(int64)))}, "/")
}

func (s *fakeStmt) Exec(a []driver.Value) (driver.Result, error) {
	db, changed := s.c.db, 0
	switch {
	case strings.HasPrefix(s.q, "CREATE TABLE"):
	case strings.HasPrefix(s.q, "INSERT INTO results"):
		db.results = append(db.results, a[0].(string))
	case strings.HasPrefix(s.q, "INSERT INTO"):
		db.offsets[key(a[0], a[1], a[2])] = [2]int64{-1, a[3].(int64)}
	case strings.HasPrefix(s.q, "UPDATE") && strings.Contains(s.q, "SET generation"):
		k := key(a[1], a[2], a[3])
		if r, ok := db.offsets[k]; ok && r[1] <= a[4].(int64) {
			db.offsets[k] = [2]int64{r[0], a[0].(int64)}
			changed = 1
		}
	case strings.HasPrefix(s.q, "UPDATE"):
		k := key(a[2], a[3], a[4])
		if r, ok := db.offsets[k]; ok && r[0] == a[5].(int64) && r[1] <= a[6].(int64) {
			db.offsets[k] = [2]int64{a[0].(int64), a[1].(int64)}
			changed = 1
		}
	default:
		return nil, errors.New("unknown statement " + s.q)
	}
	return driver.RowsAffected(changed), nil
}

func (s *fakeStmt) Query(a []driver.Value) (driver.Rows, error) {
	r, ok := s.c.db.offsets[key(a[0], a[1], a[2])]
	return &fakeRows{row: r, done: !ok}, nil
}

type fakeRows struct {
	row  [2]int64
	done bool
}

func (r *fakeRows) Columns() []string { return []string{"next_offset", "generation"} }
func (r *fakeRows) Close() error      { return nil }

func (r *fakeRows) Next(dest []driver.Value) error {
	if r.done {
		return io.EOF
	}
	r.done = true
	dest[0], dest[1] = r.row[0], r.row[1]
	return nil
}
