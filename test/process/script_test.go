package process

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/karstlog/karst/test/internal/proc"
)

// buffer is what a process writes, to be read while it does.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// clusterScript runs scripts/cluster.sh on ports from base on. It is asked to stop when the test ends.
func clusterScript(t *testing.T, base int) (cmd *exec.Cmd, out, said *buffer, ended chan error) {
	t.Helper()
	dir := t.TempDir()
	cmd = exec.Command("../../scripts/cluster.sh")
	cmd.Env = append(os.Environ(), "KCTL="+proc.Binary(t), "DIR="+filepath.Join(dir, "data"), "BASE="+strconv.Itoa(base))
	out, said, ended = &buffer{}, &buffer{}, make(chan error, 1)
	cmd.Stdout, cmd.Stderr = out, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		ended <- cmd.Wait()
		close(done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		<-done
	})
	return cmd, out, said, ended
}

// freeBase finds ports for three brokers, as the script spreads them.
func freeBase(t *testing.T) int {
	t.Helper()
	for base := 22000; base < 31000; base += 37 {
		if portsFree(base) {
			return base
		}
	}
	t.Fatal("no free ports")
	return 0
}

func portsFree(base int) bool {
	for n := range 3 {
		for i := range 4 {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", base+100*n+i))
			if err != nil {
				return false
			}
			_ = l.Close()
		}
	}
	return true
}

// TestClusterScriptSaysWhichBrokerDied: a port is taken, and the script fails with the broker and the port.
func TestClusterScriptSaysWhichBrokerDied(t *testing.T) {
	var base int
	var l net.Listener
	var err error
	eventually(t, "a port that nobody else took", func() bool {
		base = freeBase(t)
		l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", base+101))
		return err == nil
	})
	defer l.Close()
	_, out, said, ended := clusterScript(t, base)
	select {
	case err = <-ended:
	case <-time.After(time.Minute):
		t.Fatalf("it goes on: %s%s", out, said)
	}
	if err == nil || !strings.Contains(said.String(), "broker 2 has ended") || !strings.Contains(said.String(), strconv.Itoa(base+101)) {
		t.Errorf("ended with %v: %s%s", err, out, said)
	}
	if strings.Contains(out.String(), "brokers run") {
		t.Errorf("it says that all is well: %s", out)
	}
	eventually(t, "the others have ended as well", func() bool {
		_ = l.Close()
		return portsFree(base)
	})
}

// TestClusterScriptRunsThreeBrokers, and ends them when it is stopped.
func TestClusterScriptRunsThreeBrokers(t *testing.T) {
	base := freeBase(t)
	cmd, out, said, ended := clusterScript(t, base)
	eventually(t, "three brokers run", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("ended with %v: %s", err, said)
		default:
		}
		return strings.Contains(out.String(), "three brokers run")
	})
	text, err := exec.Command(proc.Binary(t), "cluster", "health", "--brokers", "3", "-b", fmt.Sprintf("127.0.0.1:%d", base+200)).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, text)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all have ended", func() bool { return portsFree(base) })
}
