package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/karstlog/karst/karsttest"
	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"kctl": func() { os.Exit(runMain()) }})
}

// TestScripts runs testdata/script/*.txt, each against a broker of its own. With KCTL_TEST_BOOTSTRAP they run against that
// cluster instead, Apache Kafka for example: nothing in them is Karst's alone, save where a script says [karst].
func TestScripts(t *testing.T) {
	elsewhere := os.Getenv("KCTL_TEST_BOOTSTRAP")
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			bootstrap := elsewhere
			if bootstrap == "" {
				bootstrap = strings.Join(karsttest.Start(env.T().(testing.TB), karsttest.Setting("num.partitions", "1")).Bootstrap(), ",")
			}
			env.Setenv("KCTL_BOOTSTRAP_SERVER", bootstrap)
			env.Setenv("KCTL_TIMEOUT", "20s")
			// Topics of a cluster that is used again need names that are not.
			env.Setenv("T", "kctl-"+filepath.Base(env.WorkDir)+"-"+time.Now().Format("150405.000"))
			return nil
		},
		Condition: func(cond string) (bool, error) { return cond == "karst" && elsewhere == "", nil },
	})
}
