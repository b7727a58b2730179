package broker

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// However many old clients fetch at once, one processor is left to do something else.
func TestConversionsLeaveAProcessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConversions()
		var atWork, done atomic.Int32
		release := make(chan struct{})
		for range 50 {
			go func() {
				c.begin()
				atWork.Add(1)
				<-release
				atWork.Add(-1)
				c.end()
				done.Add(1)
			}()
		}
		synctest.Wait()
		if got, want := int(atWork.Load()), max(1, runtime.GOMAXPROCS(0)-1); got != min(want, 50) {
			t.Errorf("%d conversions at once, want %d", got, want)
		}
		close(release)
		synctest.Wait()
		if done.Load() != 50 {
			t.Errorf("%d of 50 conversions had a turn", done.Load())
		}
	})
}
