//go:build !ostest

package chaos

import (
	"testing"

	"github.com/karstlog/karst/test/internal/proc"
)

func run(m *testing.M) int { return proc.Main(m) }
