package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karstlog/karst/protocol/private"
)

// TestDecommissionOutlastsLostAnswers gives no answer to each question once, the last one after it was carried out.
func TestDecommissionOutlastsLostAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := &session{out: bufio.NewWriter(&out), errw: io.Discard, getenv: func(string) string { return "" }, now: time.Now}
		c := cli.NewContext(cli.NewApp(), nil, &cli.Context{Context: t.Context()})
		asked, removed := 0, 0
		ask := func(private.DecommissionRequest) (private.Progress, error) {
			asked++
			if asked%2 == 1 {
				return private.Progress{}, context.DeadlineExceeded
			}
			return private.Progress{Left: max(0, 4-asked)}, nil
		}
		remove := func(context.Context) error {
			removed++
			if removed == 1 {
				return context.DeadlineExceeded
			}
			return refused(nil, private.Failure{Code: 102, Reason: "broker 4 is not registered"})
		}
		if err := s.evacuate(c, 4, ask, remove); err != nil {
			t.Fatal(err)
		}
		_ = s.out.Flush()
		if asked != 4 || removed != 2 || !strings.Contains(out.String(), "broker 4 is out of the cluster; 2 replicas were moved") {
			t.Errorf("asked %d times, removed %d times: %s", asked, removed, out.String())
		}
		missing := func(context.Context) error {
			return refused(nil, private.Failure{Code: 102, Reason: "broker 4 is not registered"})
		}
		var f *failure
		if err := s.evacuate(c, 4, ask, missing); !errors.As(err, &f) || f.status != exitNotFound {
			t.Errorf("a broker that is not there: %v", err)
		}
	})
}
