package process

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/test/internal/proc"
)

func TestIdleBrokerStopsWithinASecond(t *testing.T) {
	b := proc.New(t, proc.Options{})
	b.Start()
	cl := client(t, b.Addr)
	create(t, cl, "idle", 50)
	produce(t, cl, "idle", 0, 10, 10)
	// A consumer that waits for records must not hold the stop up.
	c := client(t, b.Addr, kgo.ConsumeTopics("idle"), kgo.FetchMaxWait(10*time.Second))
	c.PollFetches(within(t))
	go c.PollFetches(t.Context())

	took := b.Stop()
	for range 5 { // the machine may be busy: once is enough
		if took <= time.Second {
			break
		}
		t.Logf("stopped in %s", took)
		b.Start()
		took = b.Stop()
	}
	if took > time.Second {
		t.Errorf("an idle broker took %s to stop", took)
	}
	b.Start()
	demandNumbers(t, read(t, b.Addr, "idle"), 10)
}

func TestPortZeroIsPrinted(t *testing.T) {
	cmd := exec.Command(proc.Binary(t), "serve", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0", "--http-addr", "127.0.0.1:0")
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	clients, health := regexp.MustCompile(`PLAINTEXT://(\S+)`), regexp.MustCompile(`http://([^/\s]+)/readyz`)
	var text []byte
	eventually(t, "the announcement", func() bool {
		text, _ = os.ReadFile(out.Name())
		return clients.Match(text) && health.Match(text)
	})
	addr := string(clients.FindSubmatch(text)[1])
	cl := client(t, addr)
	brokers, err := kadm.NewClient(cl).ListBrokers(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if told := fmt.Sprintf("%s:%d", brokers[0].Host, brokers[0].Port); told != addr {
		t.Errorf("clients are told %s, printed was %s", told, addr)
	}
	c, err := net.Dial("tcp", string(health.FindSubmatch(text)[1]))
	if err != nil {
		t.Errorf("printed address of the console: %v", err)
	} else {
		c.Close()
	}
}

// A restart after kill -9 recovers before clients come in; /readyz says so meanwhile.
func TestReadyOnlyWhenRecovered(t *testing.T) {
	b := proc.New(t, proc.Options{})
	b.Start()
	cl := client(t, b.Addr)
	create(t, cl, "ready", 500)
	produce(t, cl, "ready", 0, 100, 100)
	b.Kill()

	b.Launch()
	waited, reasons := 0, ""
	b.Await("be ready", func() bool {
		status, body := b.Ready()
		if status == 503 {
			waited, reasons = waited+1, reasons+body
		}
		if status == 200 {
			demandNumbers(t, read(t, b.Addr, "ready"), 100)
		}
		return status == 200
	})
	t.Logf("not ready %d times", waited)
	if waited == 0 {
		t.Error("/readyz never answered 503 during the recovery of 500 partitions")
	}
	demandText(t, reasons, `"ready":false`, "recovering partitions")
}

func TestSecondProcessOnTheSameDataIsRefused(t *testing.T) {
	b := proc.New(t, proc.Options{})
	b.Start()
	produceTopic(t, b.Addr, "first", 5)

	second := proc.New(t, proc.Options{Data: b.Data})
	said := second.Refuse()
	demandText(t, said, b.Data, "another process")
	if lines := strings.Count(strings.TrimSpace(said), "\n"); lines > 3 {
		t.Errorf("the refusal takes %d lines:\n%s", lines+1, said)
	}
	// Another metadata directory, but log directories that the first one has.
	third := proc.New(t, proc.Options{Settings: []string{"log.dirs=" + filepath.Join(b.Data, "log")}})
	demandText(t, third.Refuse(), filepath.Join(b.Data, "log"))

	demandNumbers(t, read(t, b.Addr, "first"), 5)
	b.Kill()
	b.Start() // the lock has gone with the process
	demandNumbers(t, read(t, b.Addr, "first"), 5)
}

// A killed process has its data directory until the kernel is done with it. Who starts the next one at once is not sent
// away.
func TestStartWaitsForADyingProcess(t *testing.T) {
	b := proc.New(t, proc.Options{})
	if err := os.MkdirAll(b.Data, 0o755); err != nil {
		t.Fatal(err)
	}
	dying, err := vfs.OS().Lock(filepath.Join(b.Data, "cluster.lock"))
	if err != nil {
		t.Fatal(err)
	}
	b.Launch()
	b.Await("say that it waits", func() bool { return strings.Contains(b.Log(), "waiting for it to end") })
	if err := dying.Close(); err != nil {
		t.Fatal(err)
	}
	b.Await("be ready", b.Served)
}

func produceTopic(t *testing.T, addr, topic string, n uint64) {
	t.Helper()
	cl := client(t, addr)
	create(t, cl, topic, 1)
	produce(t, cl, topic, 0, n, 20)
}

// The disk of a known log directory is not mounted: an empty directory stands in its place.
func TestKnownDirectoryThatComesUpEmptyIsNotNew(t *testing.T) {
	b := proc.New(t, proc.Options{})
	b.Start()
	produceTopic(t, b.Addr, "kept", 20)
	b.Stop()
	logs, aside := filepath.Join(b.Data, "log"), filepath.Join(b.Data, "aside")
	for _, replacement := range []string{"an empty directory", "nothing"} {
		if err := os.Rename(logs, aside); err != nil {
			t.Fatal(err)
		}
		if replacement == "an empty directory" {
			if err := os.Mkdir(logs, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		said := b.Refuse()
		demandText(t, said, logs)
		t.Logf("with %s: %s", replacement, bytes.TrimSpace([]byte(said)))
		if _, err := os.Stat(filepath.Join(logs, "meta.properties")); err == nil {
			t.Errorf("%s has been taken for a new log directory", replacement)
		}
		if err := os.RemoveAll(logs); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(aside, logs); err != nil {
			t.Fatal(err)
		}
	}
	b.Start()
	demandNumbers(t, read(t, b.Addr, "kept"), 20)
}

// One of two directories comes up empty: its partitions are offline, the others are served.
func TestOtherDirectoriesServeWithoutTheEmptyOne(t *testing.T) {
	data := t.TempDir()
	one, two := filepath.Join(data, "one"), filepath.Join(data, "two")
	b := proc.New(t, proc.Options{Settings: []string{"log.dirs=" + one + "," + two}})
	b.Start()
	cl := client(t, b.Addr)
	for i := range 4 {
		topic := fmt.Sprintf("t%d", i)
		create(t, cl, topic, 1)
		produce(t, cl, topic, 0, 10, 20)
	}
	cl.Close()
	b.Stop()
	if err := os.Rename(two, two+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(two, 0o755); err != nil {
		t.Fatal(err)
	}
	b.Start()
	lost, served := 0, 0
	for i := range 4 {
		topic := fmt.Sprintf("t%d", i)
		if _, err := os.Stat(filepath.Join(one, topic+"-0")); err != nil {
			lost++
			if err := produceOnce(t, b.Addr, topic, []byte("x")); err == nil {
				t.Errorf("%s is in the missing directory and took a record", topic)
			}
			continue
		}
		served++
		demandNumbers(t, read(t, b.Addr, topic), 10)
	}
	if lost == 0 || served == 0 {
		t.Fatalf("%d partitions in the missing directory, %d in the other: the test shows nothing", lost, served)
	}
	if status, body := b.Ready(); status != 503 || !strings.Contains(body, two) {
		t.Errorf("readyz says %d %s", status, body)
	}
	b.Stop()
	if err := os.Remove(filepath.Join(two, ".lock")); err != nil {
		t.Error(err)
	}
	if err := os.Remove(two); err != nil {
		t.Fatalf("more than a lock has been put into the empty directory: %v", err)
	}
	if err := os.Rename(two+".away", two); err != nil {
		t.Fatal(err)
	}
	b.Start()
	for i := range 4 {
		demandNumbers(t, read(t, b.Addr, fmt.Sprintf("t%d", i)), 10)
	}
}

// A marker of a clean stop that a later run should have removed says nothing about what that run wrote.
func TestStaleCleanMarkerSkipsNoRecovery(t *testing.T) {
	b := proc.New(t, proc.Options{Settings: []string{"karst.flush.interval.ms=3600000"}})
	b.Start()
	cl := client(t, b.Addr)
	create(t, cl, "marked", 1)
	produce(t, cl, "marked", 0, 10, 50)
	b.Stop()
	logs := filepath.Join(b.Data, "log")
	markers := map[string][]byte{}
	for _, name := range []string{"karst.cleanshutdown", ".kafka_cleanshutdown"} {
		text, err := os.ReadFile(filepath.Join(logs, name))
		if err != nil {
			t.Fatalf("a clean stop leaves no marker: %v", err)
		}
		markers[name] = text
	}

	b.Start()
	for name := range markers {
		if _, err := os.Stat(filepath.Join(logs, name)); err == nil {
			t.Errorf("%s is there while the broker runs", name)
		}
	}
	produce(t, cl, "marked", 10, 20, 50)
	b.Kill()
	for name, text := range markers { // as if the removal had not reached the disk
		if err := os.WriteFile(filepath.Join(logs, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tearTail(t, filepath.Join(logs, "marked-0", "00000000000000000000.log"))
	b.Start()
	demandNumbers(t, read(t, b.Addr, "marked"), 20)
	demandText(t, b.Log(), "marker of a clean stop does not count")

	// Killed right after the start, before anything was written: the next start recovers again.
	b.Stop()
	b.Start()
	b.Kill()
	tearTail(t, filepath.Join(logs, "marked-0", "00000000000000000000.log"))
	b.Start()
	demandNumbers(t, read(t, b.Addr, "marked"), 20)
	produce(t, cl, "marked", 20, 30, 50)
	demandNumbers(t, read(t, b.Addr, "marked"), 30)
}

// tearTail appends half a batch, as a crash within a write leaves it.
func tearTail(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	batch := oneRecord(value(999, 200))
	if _, err := f.Write(batch[:len(batch)/2]); err != nil {
		t.Fatal(err)
	}
}

func TestSecondSignalEndsAStopThatTakesTooLong(t *testing.T) {
	b := proc.New(t, proc.Options{})
	b.Start()
	produceTopic(t, b.Addr, "twice", 5)
	p, err := os.FindProcess(b.PID())
	if err != nil {
		t.Fatal(err)
	}
	_ = p.Signal(syscall.SIGTERM)
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-b.Ended():
	case <-time.After(time.Minute):
		t.Fatal("two signals did not end the broker")
	}
	b.Start()
	demandNumbers(t, read(t, b.Addr, "twice"), 5)
}
