package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/karstlog/karst/test/internal/proc"
)

// machines are what docs/operations.md calls k1 to k4: an address of their own each, a data directory, and one broker.
type machines struct {
	t    *testing.T
	dir  string
	net  string // 127.a.b
	env  []string
	run  map[string]*exec.Cmd
	last map[string]string // command line of serve
	all  []*exec.Cmd
}

var (
	block = regexp.MustCompile("(?s)```sh\n(.*?)```")
	where = regexp.MustCompile(`(?m)^On (k\d)(?: and (k\d))?[^\n]*:\n\z`)
)

// TestOperations does what docs/operations.md says.
func TestOperations(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	pid := os.Getpid()
	m := &machines{
		t: t, dir: t.TempDir(), net: fmt.Sprintf("127.%d.%d", 220+pid%30, pid/30%250), run: map[string]*exec.Cmd{}, last: map[string]string{},
		env: append(os.Environ(), "PATH="+filepath.Dir(proc.Binary(t))+":"+os.Getenv("PATH")),
	}
	t.Cleanup(m.end)
	doc := string(text)
	for _, at := range block.FindAllStringSubmatchIndex(doc, -1) {
		hosts := []string{"k1"}
		if w := where.FindStringSubmatch(doc[:at[0]]); w != nil {
			hosts = []string{w[1]}
			if w[2] != "" {
				hosts = append(hosts, w[2])
			}
		}
		for _, line := range strings.Split(strings.TrimSpace(doc[at[2]:at[3]]), "\n") {
			for _, host := range hosts {
				m.do(host, line)
			}
		}
	}
}

func (m *machines) home(host string) string { return filepath.Join(m.dir, host) }

// translate puts a line into the world of the test.
func (m *machines) translate(host, line string) string {
	line = strings.ReplaceAll(line, "/var/lib/karst", m.home(host)+"/data")
	return regexp.MustCompile(`\bk(\d):`).ReplaceAllString(line, m.net+".$1:")
}

func (m *machines) do(host, line string) {
	m.t.Helper()
	m.t.Logf("%s$ %s", host, line)
	if err := os.MkdirAll(m.home(host), 0o755); err != nil {
		m.t.Fatal(err)
	}
	line = m.translate(host, line)
	switch {
	case strings.HasPrefix(line, "kctl serve"):
		m.last[host] = line
		m.start(host)
	case line == "systemctl start karst":
		m.start(host)
	case line == "systemctl stop karst":
		m.stop(host, syscall.SIGTERM)
	case line == "systemctl kill karst":
		m.stop(host, syscall.SIGKILL)
	case strings.HasPrefix(line, "export "):
		m.env = append(m.env, strings.TrimPrefix(line, "export "))
	default:
		out, err := m.shell(host, line).CombinedOutput()
		if err != nil {
			m.t.Fatalf("%s: %v\n%s", line, err, out)
		}
		if strings.Contains(line, "consume orders") && strings.Count(string(out), "\n") < 1000 {
			m.t.Fatalf("records are lost:\n%.500s", out)
		}
	}
}

func (m *machines) shell(host, line string) *exec.Cmd {
	cmd := exec.Command("bash", "-c", "set -e -o pipefail; "+line)
	cmd.Dir, cmd.Env = m.home(host), m.env
	return cmd
}

// start runs a broker. One that forms a cluster with others is ready only when they are; it is not waited for.
func (m *machines) start(host string) {
	m.t.Helper()
	line := m.last[host]
	cmd := m.shell(host, "exec "+line)
	path := filepath.Join(m.home(host), "log")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		m.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	before := m.said(host)
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.run[host] = cmd
	m.all = append(m.all, cmd)
	if strings.Contains(line, "--bootstrap-expect") && len(m.run) < 3 {
		return
	}
	for h := range m.run {
		b := ""
		if h == host {
			b = before
		}
		eventually(m.t, "the broker on "+h+" is ready", func() bool { return strings.Contains(m.said(h)[len(b):], "ready in") })
		// Who the broker is is kept for a time when its disk is lost.
		if id := regexp.MustCompile(`node (\d+) `).FindStringSubmatch(m.said(h)); id != nil {
			_ = os.WriteFile(filepath.Join(m.home(h), "id"), []byte(id[1]), 0o644)
		}
	}
}

func (m *machines) said(host string) string {
	text, _ := os.ReadFile(filepath.Join(m.home(host), "log"))
	return string(text)
}

func (m *machines) stop(host string, sig syscall.Signal) {
	m.t.Helper()
	cmd := m.run[host]
	delete(m.run, host)
	if cmd == nil {
		return
	}
	_ = cmd.Process.Signal(sig)
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		m.t.Fatalf("the broker on %s does not end", host)
	}
}

func (m *machines) end() {
	for _, cmd := range m.all {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	if m.t.Failed() {
		for _, host := range []string{"k1", "k2", "k3", "k4"} {
			text := m.said(host)
			m.t.Logf("%s:\n%s", host, text[max(0, len(text)-3000):])
		}
	}
}
