package interop

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// kctl is the binary under test: $KCTL, or what `make build` leaves beside this module.
func kctl(t *testing.T) string {
	t.Helper()
	path := os.Getenv("KCTL")
	if path == "" {
		path = filepath.Join("..", "bin", "kctl")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("no binary to test: %v (run `make build`, or name one in KCTL)", err)
	}
	return path
}

// server is one `kctl serve` process.
type server struct {
	addr string
	data string
	cmd  *exec.Cmd
	log  *os.File
}

// serve starts a broker as a process of its own on a free port and stops it at the end of the test, gently: what is not
// down thirty seconds after SIGTERM fails the test.
func serve(t *testing.T, args ...string) *server {
	t.Helper()
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	free := freeAddrs(t)
	s := &server{addr: free[0], data: filepath.Join(dir, "data"), log: log}
	s.cmd = exec.Command(kctl(t), append([]string{
		"serve", "--data", s.data, "--listen", s.addr,
		"--http-addr", free[1], "--set", "num.partitions=4",
	}, args...)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.stop(t) })
	waitFor(t, s.addr)
	return s
}

func (s *server) stop(t *testing.T) {
	if s.cmd.ProcessState != nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan error, 1)
	go func() { done <- s.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("the broker stopped with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the broker did not stop on SIGTERM")
		_ = s.cmd.Process.Kill()
		<-done
	}
	if t.Failed() {
		text, _ := os.ReadFile(s.log.Name())
		t.Logf("broker log:\n%s", text)
	}
	s.log.Close()
}

// hosts counts the processes that got addresses.
var hosts atomic.Uint32

// freeAddrs gives a process addresses on a host of its own in 127.0.0.0/8: no client's socket is given a port there, so
// they are free again after each kill. Each is held until all are there, or the system might give one twice.
func freeAddrs(t *testing.T) (addrs [4]string) {
	t.Helper()
	pid := os.Getpid()
	host := fmt.Sprintf("127.%d.%d.%d", 16+pid%200, pid/200%256, 1+hosts.Add(1)%250)
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

func waitFor(t *testing.T, addr string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return
		}
	}
	t.Fatalf("nothing listens on %s", addr)
}

// run executes a program with stdin and returns what it printed; anything but success fails the test.
func run(t *testing.T, stdin io.Reader, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = stdin
	var errOut strings.Builder
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s\n%s", name, strings.Join(args, " "), err, tail(string(out)), tail(errOut.String()))
	}
	return string(out)
}

func tail(s string) string {
	if len(s) > 2000 {
		s = "..." + s[len(s)-2000:]
	}
	return s
}

// tool returns the path of a program that scripts/interop.sh installs, from the variable that the script sets.
func tool(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Fatalf("%s is not set: run these tests through scripts/interop.sh, which installs the clients", variable)
	}
	return path
}

func lines(s string) []string {
	var out []string
	for sc := bufio.NewScanner(strings.NewReader(s)); sc.Scan(); {
		out = append(out, sc.Text())
	}
	return out
}

func topicName(t *testing.T) string {
	return strings.Map(func(r rune) rune {
		if r == '/' || r == ' ' {
			return '-'
		}
		return r
	}, fmt.Sprintf("%s-%d", t.Name(), os.Getpid()))
}
