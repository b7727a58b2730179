package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// The other statuses of Nagios' convention.
const (
	checkWarning = 1
	checkUnknown = 3
)

// unknown is a check whose outcome is not known, as of one that is called wrongly: status 2 would be an alarm.
func unknown(err error) error { return &failure{status: checkUnknown, text: "UNKNOWN", err: err} }

func checkLagCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "lag",
		Usage:     "check how far a group is behind",
		ArgsUsage: "GROUP",
		Description: describe("Status 0 is good, 1 a warning, 2 critical, 3 not known. Prints performance data behind a bar.",
			"kctl check lag billing --warn 1000 --crit 10000",
			"kctl check lag billing --time-lag 60s"),
		Flags: flagSet([]cli.Flag{
			&cli.Int64Flag{Name: "warn", Usage: "`N` records behind are a warning"},
			&cli.Int64Flag{Name: "crit", Usage: "`N` records behind are critical"},
			&cli.StringFlag{Name: "time-lag", Usage: "`DURATION` behind is critical, half of it a warning"},
			colorFlag(),
		}, clientFlags()),
		Action: s.checkLag,
	}
}

func (s *session) checkLag(c *cli.Context) error {
	if err := needArgs(c, 1, 1, "group"); err != nil {
		return unknown(err)
	}
	var limit time.Duration
	if t := c.String("time-lag"); t != "" {
		var err error
		if limit, err = parseDuration(t); err != nil {
			return unknown(err)
		}
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return unknown(err)
	}
	defer hangUp()
	groups, err := l.fullGroups(ctx, c.Args().Slice())
	if err != nil {
		return unknown(err)
	}
	g := &groups[0]
	if g.lag() == nil {
		return unknown(fmt.Errorf("group %s has committed nothing, or how far it is behind is not known", g.id))
	}
	lag, behind := *g.lag(), 0.0
	if t := g.timeLag(); t != nil {
		behind = *t
	}
	status, word := exitOK, "OK"
	if c.IsSet("warn") && lag >= c.Int64("warn") || limit > 0 && behind >= limit.Seconds()/2 {
		status, word = checkWarning, "WARNING"
	}
	if c.IsSet("crit") && lag >= c.Int64("crit") || limit > 0 && behind >= limit.Seconds() {
		status, word = checkCritical, "CRITICAL"
	}
	bound := func(name string) string {
		if c.IsSet(name) {
			return fmt.Sprint(c.Int64(name))
		}
		return ""
	}
	text := fmt.Sprintf("%s: %s is %d records and %.1fs behind, %s | lag=%d;%s;%s time_lag=%.3fs", word, g.id, lag, behind, strings.ToLower(g.state), lag, bound("warn"), bound("crit"), behind)
	if status != exitOK {
		return &failure{status: status, text: text}
	}
	_, err = fmt.Fprintln(s.out, text)
	return err
}
