//go:build ostest

package process

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/test/internal/proc"
)

// strace watches a process from attach to detach.
type strace struct {
	t   *testing.T
	cmd *exec.Cmd
	out string
}

// attach traces all threads of a broker. It needs strace, and the right to trace.
func attach(t *testing.T, b *proc.Broker, args ...string) *strace {
	t.Helper()
	s := &strace{t: t, out: filepath.Join(t.TempDir(), "strace")}
	s.cmd = exec.Command("strace", append([]string{"-f", "-y", "-o", s.out, "-p", strconv.Itoa(b.PID())}, args...)...)
	said, err := os.Create(s.out + ".err")
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	s.cmd.Stderr = said
	if err := s.cmd.Start(); err != nil {
		t.Fatalf("strace (apt-get install strace): %v", err)
	}
	t.Cleanup(s.detach)
	eventually(t, "strace's attaching", func() bool {
		text, _ := os.ReadFile(said.Name())
		if bytes.Contains(text, []byte("strace: ")) && !bytes.Contains(text, []byte("attached")) {
			t.Fatalf("%s", text)
		}
		return bytes.Contains(text, []byte("attached"))
	})
	return s
}

func (s *strace) detach() {
	if s.cmd.ProcessState == nil {
		_ = s.cmd.Process.Signal(syscall.SIGINT)
		_ = s.cmd.Wait()
	}
}

// usage is what one system call did to the logs.
type usage struct{ calls, bytes int }

// logCalls detaches and adds up the calls that named a .log file, and the bytes they moved.
func (s *strace) logCalls() map[string]usage {
	s.t.Helper()
	s.detach()
	text, err := os.ReadFile(s.out)
	if err != nil {
		s.t.Fatal(err)
	}
	// 4711 sendfile(12<TCP:[...]>, 17</d/log/t-0/00000000000000000000.log>, NULL, 1048576) = 655360
	call := regexp.MustCompile(`^\d+ +(?:<\.\.\. )?(\w+)[( ].*= (-?\d+)`)
	sums := map[string]usage{}
	unfinished := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		thread, _, _ := strings.Cut(line, " ")
		named := strings.Contains(line, ".log>") || strings.Contains(line, "resumed") && unfinished[thread]
		unfinished[thread] = named && strings.Contains(line, "unfinished")
		m := call.FindStringSubmatch(line)
		if m == nil || !named || unfinished[thread] {
			continue
		}
		n, _ := strconv.Atoi(m[2])
		u := sums[m[1]]
		sums[m[1]] = usage{u.calls + 1, u.bytes + max(0, n)}
	}
	return sums
}

const logIO = "trace=sendfile,read,pread64,preadv,write,pwrite64,writev,pwritev,pwritev2,sendto,sendmsg,splice"

// A large part of a log goes from the page cache to the socket and never through the process; a small one is copied, so
// that it leaves together with its header. An append is one write.
func TestOSSendfileForLargeSpansAndCopiesForSmall(t *testing.T) {
	b := proc.New(t, proc.Options{})
	b.Start()
	cl := client(t, b.Addr)
	create(t, cl, "span", 1)
	w := dial(t, b.Addr)
	if err := w.produce("span", oneRecord(value(0, 1000))); err != nil { // the segment is there and open
		t.Fatal(err)
	}

	const batches, size = 200, 100_000
	s := attach(t, b, "-e", logIO)
	for n := range uint64(batches) {
		if err := w.produce("span", oneRecord(value(n+1, size))); err != nil {
			t.Fatal(err)
		}
	}
	calls := s.logCalls()
	t.Logf("%d appends: %v", batches, calls)
	wrote := calls["pwritev"].calls + calls["pwrite64"].calls + calls["pwritev2"].calls
	if wrote < batches || wrote > batches+5 {
		t.Errorf("%d batches took %d writes to the log", batches, wrote)
	}

	s = attach(t, b, "-e", logIO)
	got := 0
	for from := int64(1); from < batches; {
		p := w.ask(fetchRequest("span", from, time.Second, 1<<20)).(*kmsg.FetchResponse).Topics[0].Partitions[0]
		if p.ErrorCode != 0 || len(p.RecordBatches) < size {
			t.Fatalf("fetch at %d: error %d, %d bytes", from, p.ErrorCode, len(p.RecordBatches))
		}
		got += len(p.RecordBatches)
		from += int64(len(p.RecordBatches) / size)
	}
	calls = s.logCalls()
	t.Logf("large spans, %d bytes: %v", got, calls)
	if sent := calls["sendfile"].bytes; sent < got*95/100 {
		t.Errorf("sendfile carried %d of %d bytes", sent, got)
	}
	if read := calls["pread64"].bytes + calls["read"].bytes + calls["preadv"].bytes; read > got/50 {
		t.Errorf("%d bytes of %d went through the process", read, got)
	}

	create(t, cl, "little", 1)
	for n := range uint64(20) {
		if err := w.produce("little", oneRecord(value(n, 1000))); err != nil {
			t.Fatal(err)
		}
	}
	s = attach(t, b, "-e", logIO)
	for range 20 {
		p := w.ask(fetchRequest("little", 0, time.Second, 1<<20)).(*kmsg.FetchResponse).Topics[0].Partitions[0]
		if p.ErrorCode != 0 || len(p.RecordBatches) < 10_000 {
			t.Fatalf("fetch: error %d, %d bytes", p.ErrorCode, len(p.RecordBatches))
		}
	}
	calls = s.logCalls()
	t.Logf("small spans: %v", calls)
	if calls["sendfile"].calls > 0 {
		t.Errorf("small answers took %d sendfiles", calls["sendfile"].calls)
	}
	if calls["pread64"].calls < 20 {
		t.Errorf("20 small answers took %d reads of the log", calls["pread64"].calls)
	}
}

// The first sync that fails takes the directory offline until a restart: nothing that was not synced is acknowledged, and
// a second sync, which might succeed without the data, is not tried.
func TestOSFailedSyncTakesTheDirectoryOffline(t *testing.T) {
	b := proc.New(t, proc.Options{})
	b.Start()
	cl := client(t, b.Addr)
	create(t, cl, "synced", 1, "karst.durability", "fsync")
	w := dial(t, b.Addr)
	acked := uint64(0)
	for ; acked < 50; acked++ {
		if err := w.produce("synced", oneRecord(value(acked, 100))); err != nil {
			t.Fatal(err)
		}
	}
	logs := filepath.Join(b.Data, "log")
	segment := filepath.Join(logs, "synced-0", "00000000000000000000.log")
	s := attach(t, b, "-P", segment, "-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:error=EIO")
	if err := w.produce("synced", oneRecord(value(acked, 100))); err != kerr.KafkaStorageError {
		t.Fatalf("a record whose sync failed: %v, want KAFKA_STORAGE_ERROR", err)
	}
	s.detach() // the disk works again; nobody asks it
	if err := w.produce("synced", oneRecord(value(acked, 100))); err != kerr.KafkaStorageError {
		t.Errorf("after the failed sync: %v, want KAFKA_STORAGE_ERROR", err)
	}
	p := w.ask(fetchRequest("synced", 0, 0, 1<<20)).(*kmsg.FetchResponse).Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(p.ErrorCode); err != kerr.KafkaStorageError {
		t.Errorf("fetch from a directory that is offline: %v, want KAFKA_STORAGE_ERROR", err)
	}
	b.Await("say that the directory is offline", func() bool {
		status, body := b.Ready()
		return status == 503 && strings.Contains(body, logs)
	})
	demandText(t, b.Log(), logs, "offline", "input/output error")
	dirs, err := kadm.NewClient(cl).DescribeAllLogDirs(within(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	dirs.Each(func(d kadm.DescribedLogDir) {
		if d.Err == nil {
			t.Errorf("DescribeLogDirs has no error for %s", d.Dir)
		}
	})
	b.Kill()
	b.Start()
	records := read(t, b.Addr, "synced")
	if n := uint64(len(records)); n < acked || n > acked+1 {
		t.Fatalf("%d records after the restart, %d were acknowledged", n, acked)
	}
	demandNumbers(t, records, uint64(len(records)))
	if err := dial(t, b.Addr).produce("synced", oneRecord([]byte("x"))); err != nil {
		t.Errorf("after the restart: %v", err)
	}
}

// The metadata log has no second try either: the process ends and says why. What was acknowledged is there afterwards.
func TestOSFailedSyncOfTheMetadataLogEndsTheProcess(t *testing.T) {
	b := proc.New(t, proc.Options{})
	b.Start()
	cl := client(t, b.Addr)
	for i := range 5 {
		create(t, cl, fmt.Sprintf("before-%d", i), 1)
	}
	produce(t, cl, "before-0", 0, 10, 10)
	cl.Close()
	attach(t, b, "-P", filepath.Join(b.Data, "raft", "raft.db"), "-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:error=EIO")
	w := dial(t, b.Addr)
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis = 5, 10_000
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = "after", 1, 1
	req.Topics = append(req.Topics, rt)
	_ = w.SetDeadline(time.Now().Add(time.Minute))
	if _, err := w.Write(w.frame(req)); err != nil {
		t.Fatal(err)
	}
	if resp, err := w.answer(req); err == nil && resp.(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode == 0 {
		t.Error("a topic whose record could not be synced was acknowledged")
	}
	select {
	case <-b.Ended():
	case <-time.After(time.Minute):
		t.Fatal("the process goes on although its metadata log cannot be synced")
	}
	demandText(t, b.Log(), "input/output error")
	b.Start()
	for i := range 5 {
		offsets(t, client(t, b.Addr), fmt.Sprintf("before-%d", i))
	}
	demandNumbers(t, read(t, b.Addr, "before-0"), 10)
}
