package interop

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/lib/pq"
	_ "github.com/mattn/go-sqlite3"

	"github.com/karstlog/karst/client/sqlsink"
)

// TestSinkIntoSQLite, ...PostgreSQL and ...MySQL store each record of a topic once in a real database, while the processes
// that do it die in the middle of a transaction and others take over.
func TestSinkIntoSQLite(t *testing.T) {
	dsn := "file:" + filepath.Join(t.TempDir(), "sink.db") + "?_busy_timeout=20000&_txlock=immediate"
	sink(t, "sqlite3", dsn, sqlsink.Question)
}

// TestSinkIntoPostgreSQL uses the server of $KARST_TEST_POSTGRES, or starts one if it is installed.
func TestSinkIntoPostgreSQL(t *testing.T) {
	dsn := os.Getenv("KARST_TEST_POSTGRES")
	if dsn == "" {
		dsn = postgres(t)
	}
	sink(t, "postgres", dsn, sqlsink.Dollar)
}

// TestSinkIntoMySQL uses the server of $KARST_TEST_MYSQL, MySQL or MariaDB.
func TestSinkIntoMySQL(t *testing.T) {
	dsn := os.Getenv("KARST_TEST_MYSQL")
	if dsn == "" {
		t.Skip("KARST_TEST_MYSQL names no server")
	}
	sink(t, "mysql", dsn, sqlsink.Question)
}

// postgres starts a server with an empty database.
func postgres(t *testing.T) string {
	t.Helper()
	initdb, err := exec.LookPath("initdb")
	if err != nil {
		t.Skip("PostgreSQL is not installed, and KARST_TEST_POSTGRES names no server")
	}
	dir, err := os.MkdirTemp("", "karst-pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	as := &syscall.SysProcAttr{}
	if os.Getuid() == 0 { // it refuses to run as root
		const nobody = 65534
		as.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	cmd := exec.Command(initdb, "-D", data, "-U", "karst", "-A", "trust", "--no-sync")
	cmd.SysProcAttr, cmd.Dir = as, dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("initdb does not work here: %v\n%s", err, tail(string(out)))
	}
	addr := freeAddr(t)
	_, port, _ := strings.Cut(addr, ":")
	server := exec.Command(filepath.Join(filepath.Dir(initdb), "postgres"), "-D", data, "-h", "127.0.0.1", "-p", port, "-k", dir)
	server.SysProcAttr, server.Dir = as, dir
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGINT)
		_ = server.Wait()
	})
	waitFor(t, addr)
	return "postgres://karst@" + addr + "/postgres?sslmode=disable"
}

func sink(t *testing.T, driver, dsn string, marks sqlsink.Placeholders) {
	const n = 400
	s := serve(t)
	var in strings.Builder
	for i := range n {
		fmt.Fprintf(&in, "%d\n", i)
	}
	run(t, nil, kctl(t), "topic", "create", "in", "-p", "4", "-b", s.addr)
	run(t, strings.NewReader(in.String()), kctl(t), "produce", "in", "-b", s.addr)
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	await(t, func() error { return db.PingContext(ctx) })
	for _, q := range []string{"DROP TABLE IF EXISTS results", "DROP TABLE IF EXISTS karst_offsets", "CREATE TABLE results (v INTEGER NOT NULL)"} {
		if _, err := db.ExecContext(ctx, q); err != nil {
			t.Fatal(err)
		}
	}
	insert := "INSERT INTO results (v) VALUES (?)"
	if marks == sqlsink.Dollar {
		insert = "INSERT INTO results (v) VALUES ($1)"
	}
	died := errors.New("died")
	var handled atomic.Int64
	member := func(ctx context.Context, after int64) error {
		x, err := sqlsink.New(sqlsink.Options{
			Bootstrap: []string{s.addr}, Topics: []string{"in"}, Group: "g", DB: db, Placeholders: marks, MaxRecords: 9,
			Handle: func(ctx context.Context, tx *sql.Tx, rs []*sqlsink.Record) error {
				for _, r := range rs {
					v, err := strconv.Atoi(string(r.Value))
					if err != nil {
						return err
					}
					if _, err := tx.ExecContext(ctx, insert, v); err != nil {
						return err
					}
				}
				if handled.Add(int64(len(rs))) > after {
					return died
				}
				return nil
			},
		})
		if err != nil {
			return err
		}
		return x.Run(ctx)
	}
	for _, after := range []int64{60, 150} {
		if err := member(ctx, after); !errors.Is(err, died) {
			t.Fatal(err)
		}
	}
	both, stop := context.WithCancel(ctx)
	done := make(chan error, 2)
	for range 2 {
		go func() { done <- member(both, 1<<40) }()
	}
	var rows, values int
	await(t, func() error {
		if err := db.QueryRowContext(ctx, "SELECT COUNT(*), COUNT(DISTINCT v) FROM results").Scan(&rows, &values); err != nil {
			return err
		}
		if values < n {
			return fmt.Errorf("%d of %d", values, n)
		}
		return nil
	})
	stop()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if rows != n || values != n {
		t.Errorf("%d rows with %d values of %d records", rows, values, n)
	}
}

// await tries for a minute.
func await(t *testing.T, ok func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = ok(); err == nil {
			return
		}
	}
	t.Fatal(err)
}
