package main

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// A change of leaders is waited for, but not for ever, and nothing else is.
func TestQuestionsOutlastAFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		err := overFailover(t.Context(), time.Minute, func() error {
			if asked++; asked < 5 {
				return about("out-0", []error{kerr.OffsetNotAvailable, kerr.LeaderNotAvailable, kerr.NotLeaderForPartition}[asked%3])
			}
			return nil
		})
		if err != nil || asked != 5 {
			t.Errorf("asked %d times: %v", asked, err)
		}
		began := time.Now()
		err = overFailover(t.Context(), time.Minute, func() error { return kerr.LeaderNotAvailable })
		if took := time.Since(began); !errors.Is(err, kerr.LeaderNotAvailable) || took != time.Minute {
			t.Errorf("after %v: %v", took, err)
		}
		asked = 0
		err = overFailover(t.Context(), time.Minute, func() error { asked++; return kerr.UnknownTopicOrPartition })
		if !errors.Is(err, kerr.UnknownTopicOrPartition) || asked != 1 {
			t.Errorf("asked %d times: %v", asked, err)
		}
	})
}
