package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karstlog/karst/karsttest"
	"github.com/rogpeppe/go-internal/testscript"
)

// TestCommandsOfTheDocsRun runs the shell blocks of pages that say so, in order, against a broker.
func TestCommandsOfTheDocsRun(t *testing.T) {
	for _, page := range []string{"groups.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
		if err != nil {
			t.Fatal(err)
		}
		var commands strings.Builder
		for _, block := range strings.Split(string(text), "```sh\n")[1:] {
			block, _, _ = strings.Cut(block, "```")
			commands.WriteString(block)
		}
		script := filepath.Join(t.TempDir(), strings.TrimSuffix(page, ".md")+".txt")
		if err := os.WriteFile(script, []byte("exec sh -e commands.sh\n-- commands.sh --\n"+commands.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		testscript.Run(t, testscript.Params{Files: []string{script}, Setup: func(env *testscript.Env) error {
			b := karsttest.Start(env.T().(testing.TB), karsttest.Setting("group.initial.rebalance.delay.ms", "0"))
			env.Setenv("KCTL_BOOTSTRAP_SERVER", b.Bootstrap()[0])
			return nil
		}})
	}
}
