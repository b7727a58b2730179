//go:build hold

package hold

import (
	"os"
	"path/filepath"
	"strconv"
	"time"
)

const (
	BeforePrepare  = "before-prepare"
	AfterPrepare   = "after-prepare"
	BeforeMarkers  = "before-markers"
	BeforeComplete = "before-complete"
)

// At waits for as long as the id is held at the step.
func At(step, id string) {
	for Here(step, id) {
		time.Sleep(5 * time.Millisecond)
	}
}

// Here tells whether the id is held at the step.
func Here(step, id string) bool {
	dir := os.Getenv("KARST_TEST_HOLD")
	if dir == "" {
		return false
	}
	name := filepath.Join(dir, step+"."+id)
	if _, err := os.Stat(name); err != nil {
		return false
	}
	f, err := os.OpenFile(name+".held", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = f.Write([]byte{'x'})
	return err == nil
}

// Marker tells whether the marker to a partition is held.
func Marker(id, topic string, partition int32) bool {
	return Here("before-marker."+topic+"-"+strconv.Itoa(int(partition)), id)
}
