// Package proc runs kctl as a process of its own inside a test: on addresses and a data directory that outlive a kill, so
// that a test may kill, stop and start it as often as it likes.
package proc

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// patience is how long a broker may take to come up or to end. It is far more than it needs: the machine may be busy.
const patience = time.Minute

// built is the binary that all tests of a package share. KCTL names one that is there already.
type built struct {
	once sync.Once
	path string
	err  error
}

func (b *built) build() {
	if b.path = os.Getenv("KCTL"); b.path != "" {
		return
	}
	dir, err := os.MkdirTemp("", "karst-proc")
	if err != nil {
		b.err = err
		return
	}
	b.path = filepath.Join(dir, "kctl")
	cmd := exec.Command("go", "build", "-o", b.path, "github.com/karstlog/karst/cmd/kctl")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.err = fmt.Errorf("build kctl: %w\n%s", err, out)
	}
}

var binary built

// Main runs a package's tests and removes the binary that they have built.
func Main(m *testing.M) int {
	defer func() {
		if binary.path != "" && os.Getenv("KCTL") == "" {
			_ = os.RemoveAll(filepath.Dir(binary.path))
		}
	}()
	return m.Run()
}

// Binary is the path of kctl, which is built once in a test process.
func Binary(t testing.TB) string {
	t.Helper()
	binary.once.Do(binary.build)
	if binary.err != nil {
		t.Fatal(binary.err)
	}
	return binary.path
}

// Tagged builds kctl with a build tag, for a test whose brokers do what ordinary ones cannot. KCTL_TAG, the tag in capitals,
// names one that is there already.
func Tagged(t testing.TB, tag string) string {
	t.Helper()
	if path := os.Getenv("KCTL_" + strings.ToUpper(tag)); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "kctl")
	cmd := exec.Command("go", "build", "-tags", tag, "-o", path, "github.com/karstlog/karst/cmd/kctl")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build kctl: %v\n%s", err, out)
	}
	return path
}

// Options change how a broker is run. The zero value is kctl serve with a data directory and addresses of its own.
type Options struct {
	Data     string   // default: a directory of the test
	Settings []string // name=value, each given as --set
	Flags    []string // further flags of serve
	Files    int      // limit on open files, soft and hard; 0: the test's own
	Together bool     // it has addresses for other brokers, too
	Binary   string   // of Tagged; default: what all tests share
	Env      []string // name=value, besides the test's own
	// Namespace is the network namespace to run in, made by the test, and Host an address in it on which all ports are free.
	Namespace, Host string
}

// Broker is a kctl serve that is started, killed and stopped on the same addresses and data.
type Broker struct {
	Data string
	Addr string // for clients
	HTTP string // for /readyz and /metrics
	// Cluster and Gossip are for other brokers; empty without Options.Together.
	Cluster, Gossip string

	t    testing.TB
	o    Options
	log  *os.File
	from int // where the log of this life begins
	run  *process
}

// process is one life of a broker.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has been waited for
}

// hosts counts the brokers of this process, so that each gets a host of its own in 127.0.0.0/8: no client's socket is
// given a port there, and a port is free again after each kill.
var hosts atomic.Uint32

// New makes a broker; Start starts it. It is killed when the test ends.
func New(t testing.TB, o Options) *Broker {
	t.Helper()
	Binary(t)
	dir := t.TempDir()
	b := &Broker{t: t, o: o, Data: o.Data}
	if b.Data == "" {
		b.Data = filepath.Join(dir, "data")
	}
	b.Move()
	var err error
	logs := filepath.Join(t.ArtifactDir(), "broker-"+strings.ReplaceAll(b.Addr, ":", "-")+".log") // go test -artifacts keeps it
	if b.log, err = os.Create(logs); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Kill()
		if t.Failed() {
			text := b.Log()
			t.Logf("end of the broker's log:\n%s", text[max(0, len(text)-8000):])
		}
		_ = b.log.Close()
	})
	return b
}

// Move gives the broker a host and ports of its own; a running one keeps what it has until it is started again.
func (b *Broker) Move() {
	b.t.Helper()
	if h := b.o.Host; h != "" {
		b.Addr, b.HTTP, b.Cluster, b.Gossip = h+":9092", h+":9644", h+":9093", h+":7946"
		return
	}
	pid := os.Getpid()
	host := fmt.Sprintf("127.%d.%d.%d", 16+pid%200, pid/200%256, 1+hosts.Add(1)%250)
	free := freeAddrs(b.t, host)
	b.Addr, b.HTTP = free[0], free[1]
	if b.o.Together {
		b.Cluster, b.Gossip = free[2], free[3]
	}
}

// freeAddrs holds each until it has all: the system may give a port again that was let go just now.
func freeAddrs(t testing.TB, host string) (addrs [4]string) {
	t.Helper()
	for i := range addrs {
		l, err := net.Listen("tcp", host+":0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addrs[i] = l.Addr().String()
	}
	return addrs
}

// Command is the command line that Start runs.
func (b *Broker) Command() *exec.Cmd {
	args := []string{"serve", "--data", b.Data, "--listen", b.Addr, "--http-addr", b.HTTP}
	if b.o.Together {
		args = append(args, "--cluster-addr", b.Cluster, "--gossip-addr", b.Gossip)
	}
	for _, s := range b.o.Settings {
		args = append(args, "--set", s)
	}
	args = append(args, b.o.Flags...)
	cmd := b.command(args)
	if len(b.o.Env) > 0 {
		cmd.Env = append(os.Environ(), b.o.Env...)
	}
	return cmd
}

func (b *Broker) command(args []string) *exec.Cmd {
	path := b.o.Binary
	if path == "" {
		path = Binary(b.t)
	}
	if ns := b.o.Namespace; ns != "" { // ip becomes kctl: signals reach it
		return exec.Command("ip", append([]string{"netns", "exec", ns, path}, args...)...)
	}
	if b.o.Files == 0 {
		return exec.Command(path, args...)
	}
	limited := []string{"-c", "ulimit -n " + strconv.Itoa(b.o.Files) + ` && exec "$0" "$@"`, path}
	return exec.Command("/bin/sh", append(limited, args...)...)
}

// SetFlags replaces the further flags of serve, from the next start on.
func (b *Broker) SetFlags(flags ...string) { b.o.Flags = flags }

// Signal sends a signal: SIGSTOP, SIGCONT.
func (b *Broker) Signal(sig syscall.Signal) {
	b.t.Helper()
	if err := b.run.cmd.Process.Signal(sig); err != nil {
		b.t.Fatal(err)
	}
}

// Running tells whether there is a process.
func (b *Broker) Running() bool {
	if b.run == nil {
		return false
	}
	select {
	case <-b.run.ended:
		return false
	default:
		return true
	}
}

// Served tells whether this life has announced that it serves clients.
func (b *Broker) Served() bool { return strings.Contains(b.Log()[b.from:], "ready in") }

// Launch starts the process and does not wait until it serves.
func (b *Broker) Launch() {
	b.t.Helper()
	cmd := b.Command()
	cmd.Stdout, cmd.Stderr = b.log, b.log
	b.from = len(b.Log())
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.ended)
	}()
	b.run = p
}

// Start starts the process and waits until clients are served. It returns how long that took.
func (b *Broker) Start() time.Duration {
	b.t.Helper()
	began := time.Now()
	b.Launch()
	b.Await("serve clients", b.Served)
	return time.Since(began)
}

// Await waits until ok, and fails the test when the broker ends before or takes too long.
func (b *Broker) Await(what string, ok func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		select {
		case <-b.run.ended:
			b.t.Fatalf("the broker ended (%s) before it could %s", b.run.cmd.ProcessState, what)
		default:
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("the broker did not %s within %s", what, patience)
		}
	}
}

// PID is the process's id.
func (b *Broker) PID() int { return b.run.cmd.Process.Pid }

// Ended is closed when the process has ended.
func (b *Broker) Ended() <-chan struct{} { return b.run.ended }

// Kill ends the process at once (kill -9); nothing happens when there is none.
func (b *Broker) Kill() {
	if b.run == nil {
		return
	}
	_ = b.run.cmd.Process.Kill()
	<-b.run.ended
}

// Stop asks the process to end (SIGTERM), waits for it and returns how long it took. An exit status other than 0 fails
// the test.
func (b *Broker) Stop() time.Duration {
	b.t.Helper()
	began := time.Now()
	if err := b.run.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		b.t.Fatal(err)
	}
	select {
	case <-b.run.ended:
	case <-time.After(patience):
		b.t.Fatalf("the broker did not stop within %s", patience)
	}
	if s := b.run.cmd.ProcessState; !s.Success() {
		b.t.Fatalf("the broker stopped with %s", s)
	}
	return time.Since(began)
}

// Refuse starts a process that must not come up, and returns what it said. extra are further flags.
func (b *Broker) Refuse(extra ...string) string {
	b.t.Helper()
	cmd := b.Command()
	cmd.Args = append(cmd.Args, extra...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !late.Stop() {
		b.t.Fatalf("the broker runs, although it should refuse to:\n%s", said.String())
	}
	if err == nil {
		b.t.Fatalf("the broker ended without an error:\n%s", said.String())
	}
	return said.String()
}

// Log is everything that the broker has written to stdout and stderr, in all its lives.
func (b *Broker) Log() string {
	b.t.Helper()
	text, err := os.ReadFile(b.log.Name())
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text)
}

// console asks a broker that may be stuck.
var console = &http.Client{Timeout: patience}

// Ready asks /readyz: its status, 0 while nobody answers, and its body.
func (b *Broker) Ready() (int, string) {
	r, err := console.Get("http://" + b.HTTP + "/readyz")
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	body, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(body)
}

// Metric is the sum of all series of a metric in /metrics.
func (b *Broker) Metric(name string) float64 {
	b.t.Helper()
	r, err := console.Get("http://" + b.HTTP + "/metrics")
	if err != nil {
		b.t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	sum, found := 0.0, false
	for line := range strings.Lines(string(body)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
		if err != nil {
			b.t.Fatalf("metric %q: %v", line, err)
		}
		sum, found = sum+value, true
	}
	if !found {
		b.t.Fatalf("no metric %s", name)
	}
	return sum
}

// Descriptors is how many files and sockets the process has open.
func (b *Broker) Descriptors() int {
	b.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", b.PID()))
	if err != nil {
		b.t.Fatal(err)
	}
	return len(entries)
}

// Memory is a line of /proc/PID/status in bytes: VmRSS, RssAnon, VmHWM.
func (b *Broker) Memory(field string) int64 {
	b.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.PID()))
	if err != nil {
		b.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				b.t.Fatal(err)
			}
			return kib << 10
		}
	}
	b.t.Fatalf("no %s in the status of process %d", field, b.PID())
	return 0
}
