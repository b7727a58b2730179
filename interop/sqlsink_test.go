package interop

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
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

// TestSinkIntoSQLite, ...PostgreSQL and ...MariaDB store each record of a topic once in a real database, while the processes
// that do it die in the middle of a transaction and others take over.
func TestSinkIntoSQLite(t *testing.T) {
	dsn := "file:" + filepath.Join(t.TempDir(), "sink.db") + "?_busy_timeout=20000&_txlock=immediate"
	sink(t, "sqlite3", dsn, sqlsink.Question)
}

// TestSinkIntoPostgreSQL uses the server of $KARST_TEST_POSTGRES, or starts the one that scripts/interop.sh installs.
func TestSinkIntoPostgreSQL(t *testing.T) {
	dsn := os.Getenv("KARST_TEST_POSTGRES")
	if dsn == "" {
		dsn = postgres(t)
	}
	sink(t, "postgres", dsn, sqlsink.Dollar)
}

// TestSinkIntoMariaDB uses the server of $KARST_TEST_MYSQL, MySQL or MariaDB, or starts the one that scripts/interop.sh
// installs.
func TestSinkIntoMariaDB(t *testing.T) {
	dsn := os.Getenv("KARST_TEST_MYSQL")
	if dsn == "" {
		dsn = mariadb(t)
	}
	sink(t, "mysql", dsn, sqlsink.Question)
}

// database is a directory for a database server, and the user who runs it: neither of them agrees to be root.
type database struct {
	t   *testing.T
	dir string
	as  *syscall.SysProcAttr
}

func newDatabase(t *testing.T, account string) database {
	t.Helper()
	dir, err := os.MkdirTemp("", "karst-db") // short: a socket's path has a limit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d := database{t: t, dir: dir, as: &syscall.SysProcAttr{}}
	if os.Getuid() != 0 {
		return d
	}
	u, err := user.Lookup(account)
	if err != nil { // the package of the server alone makes no user
		u, err = user.Lookup("nobody")
	}
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	d.as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	return d
}

// run runs a program to its end.
func (d database) run(name string, args ...string) {
	d.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr, cmd.Dir = d.as, d.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		d.t.Fatalf("%s: %v\n%s", name, err, tail(string(out)))
	}
}

// serve starts a server, which is asked to end when the test does.
func (d database) serve(name string, args ...string) {
	d.t.Helper()
	server := exec.Command(name, args...)
	server.SysProcAttr, server.Dir = d.as, d.dir
	var said strings.Builder
	server.Stderr = &said
	if err := server.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGTERM)
		_ = server.Wait()
		if d.t.Failed() {
			d.t.Logf("%s said:\n%s", name, tail(said.String()))
		}
	})
}

// postgres starts a server with an empty database.
func postgres(t *testing.T) string {
	t.Helper()
	bin := tool(t, "POSTGRES_BIN")
	d := newDatabase(t, "postgres")
	data := filepath.Join(d.dir, "data")
	d.run(filepath.Join(bin, "initdb"), "-D", data, "-U", "karst", "-A", "trust", "--no-sync")
	addr := freeAddrs(t)[0]
	host, port, _ := strings.Cut(addr, ":")
	d.serve(filepath.Join(bin, "postgres"), "-D", data, "-h", host, "-p", port, "-k", d.dir)
	waitFor(t, addr)
	return "postgres://karst@" + addr + "/postgres?sslmode=disable"
}

// mariadb starts a server with an empty database.
func mariadb(t *testing.T) string {
	t.Helper()
	d := newDatabase(t, "mysql")
	data, socket := filepath.Join(d.dir, "data"), filepath.Join(d.dir, "socket")
	d.run(tool(t, "MARIADB_INSTALL"), "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db")
	d.serve(tool(t, "MARIADB_SERVER"), "--no-defaults", "--datadir="+data, "--socket="+socket, "--skip-networking",
		"--pid-file="+filepath.Join(d.dir, "pid"), "--innodb-flush-method=fsync")
	dsn := "root@unix(" + socket + ")/"
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	await(t, func() error {
		_, err := db.ExecContext(t.Context(), "CREATE DATABASE IF NOT EXISTS sink")
		return err
	})
	return dsn + "sink"
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
