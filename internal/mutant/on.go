//go:build mutant

package mutant

import (
	"os"
	"strconv"
	"sync"
)

var chosen = sync.OnceValue(func() string { return os.Getenv("KARST_MUTANT") })

// On tells whether mutant n is switched on.
func On(n int) bool { return chosen() == "M"+strconv.Itoa(n) }
