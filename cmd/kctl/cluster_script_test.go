package main

import (
	"strings"
	"testing"

	"github.com/karstlog/karst/karsttest"
	"github.com/rogpeppe/go-internal/testscript"
)

// TestClusterScripts runs testdata/cluster/*.txt, each against three brokers of its own.
func TestClusterScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/cluster",
		Setup: func(env *testscript.Env) error {
			c := karsttest.StartCluster(env.T().(testing.TB), 3, karsttest.Setting("num.partitions", "1"), karsttest.Setting("log.dirs", "/logs/a,/logs/b"))
			env.Setenv("KCTL_BOOTSTRAP_SERVER", strings.Join(c.Bootstrap(), ","))
			env.Setenv("KCTL_TIMEOUT", "30s")
			return nil
		},
	})
}
