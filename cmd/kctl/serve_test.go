package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/node"
)

// What the broker logs, and how it is written, is as karst.log.level and karst.log.format say.
func TestLogOfServe(t *testing.T) {
	for _, x := range []struct {
		level, format string
		terminal      bool
		want          string
	}{
		{"warn", "text", false, "level=WARN msg=b"},
		{"warn", "text", true, "level=WARN msg=b"},
		{"warn", "json", true, `"level":"WARN","msg":"b"}`},
		{"warn", "auto", true, "level=WARN msg=b"},
		{"warn", "auto", false, `"level":"WARN","msg":"b"}`},
		{"info", "text", false, "level=INFO msg=a"},
	} {
		b, _, err := config.ParseBroker(map[string]string{"karst.log.level": x.level, "karst.log.format": x.format})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		log, level := newLogger(&session{errw: &out, errTTY: x.terminal}, &node.Loaded{Broker: b})
		log.Info("a")
		log.Warn("b")
		if lines := strings.Split(out.String(), "\n"); !strings.Contains(lines[0], x.want) {
			t.Errorf("%+v: %s", x, lines)
		}
		if fmt.Sprint(level.Level()) != strings.ToUpper(x.level) {
			t.Errorf("%+v: level %s", x, level)
		}
		level.Set(slog.LevelError)
		out.Reset()
		log.Warn("c")
		if out.Len() > 0 {
			t.Errorf("%+v: at level ERROR: %s", x, out.String())
		}
	}
}

// karst.memory.limit, or --memory-limit, is what the process tries to stay below.
func TestMemoryLimitOfServe(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	for limit, argv := range map[int64][]string{
		900 << 20: {"--memory-limit", "900MiB"},
		800 << 20: {"--set", "karst.memory.limit=838860800"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		s, _, errOut := testSession("", nil)
		ended := make(chan error, 1)
		go func() {
			ended <- run(ctx, s, append([]string{"serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--http-addr", ""}, argv...))
		}()
		for end := time.Now().Add(time.Minute); debug.SetMemoryLimit(-1) != limit; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("%v: the limit is %d", argv, debug.SetMemoryLimit(-1))
				break
			}
		}
		cancel()
		if err := <-ended; err != nil && ctx.Err() == nil {
			t.Error(err, errOut.String())
		}
	}
}
