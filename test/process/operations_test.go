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

// machines are what docs/operations.md calls k1, k2 and so on: an address of their own each, a data directory, and one broker.
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
	where = regexp.MustCompile(`(?m)^On (k\d[^\n]*):\n\z`)
	named = regexp.MustCompile(`\bk\d\b`)
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
			hosts = named.FindAllString(w[1], -1)
		}
		text := strings.TrimSpace(doc[at[2]:at[3]])
		if strings.Contains(text, "--forget-promise") {
			m.promise(hosts[0])
		}
		for _, line := range strings.Split(text, "\n") {
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
	line = strings.ReplaceAll(line, "/var/backups", m.dir)
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
		m.check(line, string(out))
	}
}

// check looks at what a command has said, besides that it succeeded.
func (m *machines) check(line, out string) {
	m.t.Helper()
	switch {
	case strings.Contains(line, "consume orders") && strings.Count(out, "\n") != 1000:
		m.t.Fatalf("records are lost, or there twice:\n%.500s", out)
	case strings.HasPrefix(line, "! ") && !strings.Contains(out, "is alive"):
		m.t.Fatalf("%s: failed for another reason:\n%s", line, out)
	}
}

// shell is a command that is killed, with what it has started, when the test is at its end.
func (m *machines) shell(host, line string) *exec.Cmd {
	cmd := exec.CommandContext(m.t.Context(), "bash", "-c", "set -e -o pipefail; "+line)
	cmd.Dir, cmd.Env = m.home(host), m.env
	return cmd
}

// promise leaves a broker with a promise to another one, whose data is lost before it could form the cluster: the third one
// could not be reached.
func (m *machines) promise(host string) {
	m.t.Helper()
	others := map[string]string{"k8": "--id 2 --cluster-advertise k8:1", "k9": "--id 1", host: "--id 3"}
	for h, flags := range others {
		m.last[h] = m.translate(h, fmt.Sprintf("kctl serve --data /var/lib/karst --listen %s:9092 --http-addr %[1]s:9644 "+
			"--bootstrap-expect 3 --join %s:7946,k8:7946,k9:7946 %s", h, host, flags))
		m.launch(h)
	}
	eventually(m.t, host+" has promised", func() bool {
		text, _ := os.ReadFile(filepath.Join(m.home(host), "data", "cluster.json"))
		return strings.Contains(string(text), "promise")
	})
	for _, h := range []string{"k8", "k9"} {
		m.stop(h, syscall.SIGKILL)
		if err := os.RemoveAll(m.home(h)); err != nil {
			m.t.Fatal(err)
		}
	}
}

// start runs a broker, and waits until it is ready. One that forms a cluster with others is only when they are: it is not
// waited for.
func (m *machines) start(host string) {
	m.t.Helper()
	before := len(m.said(host))
	m.launch(host)
	if strings.Contains(m.last[host], "--bootstrap-expect") && len(m.run) < 3 {
		return
	}
	for h := range m.run {
		from := 0
		if h == host {
			from = before
		}
		eventually(m.t, "the broker on "+h+" is ready", func() bool { return strings.Contains(m.said(h)[from:], "ready in") })
		// Who the broker is is kept for a time when its disk is lost.
		if id := regexp.MustCompile(`node (\d+) `).FindStringSubmatch(m.said(h)); id != nil {
			_ = os.WriteFile(filepath.Join(m.home(h), "id"), []byte(id[1]), 0o644)
		}
	}
}

// launch runs the broker of a host.
func (m *machines) launch(host string) {
	m.t.Helper()
	if err := os.MkdirAll(m.home(host), 0o755); err != nil {
		m.t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(m.home(host), "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		m.t.Fatal(err)
	}
	defer log.Close()
	cmd := m.shell(host, "exec "+m.last[host])
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.run[host] = cmd
	m.all = append(m.all, cmd)
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
		for i := range 9 {
			host := fmt.Sprintf("k%d", i+1)
			text := m.said(host)
			m.t.Logf("%s:\n%s", host, text[max(0, len(text)-3000):])
		}
	}
}
