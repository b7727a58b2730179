package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// checkCritical is the status of a check that failed, by the convention of Nagios, which the checks keep to.
const checkCritical = 2

func checkCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:        "check",
		Usage:       "checks for monitoring and for HEALTHCHECK: status 0 is good, 2 is not",
		Subcommands: []*cli.Command{checkHealthCommand(s), checkLagCommand(s)},
	}
}

func checkHealthCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:  "health",
		Usage: "ask a broker whether it takes clients",
		Description: describe("Asks /readyz. Meant for the broker on the same machine or in the same container.",
			"kctl check health",
			"kctl check health --http-addr 127.0.0.1:9744 --timeout 1s"),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "http-addr", Value: "127.0.0.1:9644", Usage: "`HOST:PORT` of the broker's --http-addr"},
			&cli.DurationFlag{Name: "timeout", Value: 5 * time.Second, Usage: "how long to wait for its answer"},
		},
		Action: func(c *cli.Context) error {
			ctx, cancel := context.WithTimeout(c.Context, c.Duration("timeout"))
			defer cancel()
			reasons, err := askReady(ctx, c.String("http-addr"))
			if err != nil {
				return &failure{status: checkCritical, text: "CRITICAL: no answer", err: err}
			}
			if len(reasons) > 0 {
				return &failure{status: checkCritical, text: "CRITICAL: " + strings.Join(reasons, "; ")}
			}
			_, err = fmt.Fprintln(s.out, "OK: takes clients")
			return err
		},
	}
}

// askReady returns why a broker is not ready; nothing when it is.
func askReady(ctx context.Context, addr string) ([]string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/readyz", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Ready   bool     `json:"ready"`
		Reasons []string `json:"reasons"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("answer of %s: %w", addr, err)
	}
	if !answer.Ready && len(answer.Reasons) == 0 {
		return []string{"not ready"}, nil
	}
	return answer.Reasons, nil
}
