package main

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

func yesFlag() cli.Flag {
	return &cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask"}
}

// confirm asks before something is destroyed: it says what will go and wants the name typed. Without a terminal there is
// nobody to ask, and only --yes will do.
func (s *session) confirm(c *cli.Context, losses []string, name string) error {
	if c.Bool("yes") {
		return nil
	}
	if !s.inTTY {
		return &failure{
			status: exitUsage, text: "this destroys data and needs a yes, and stdin is not a terminal",
			advice: "look at it with --dry-run, then add --yes",
		}
	}
	for _, l := range losses {
		s.say("  %s", l)
	}
	fmt.Fprintf(s.errw, "This cannot be undone. Type %s to go on: ", s.paint("1", name))
	line, _ := bufio.NewReader(s.in).ReadString('\n')
	if strings.TrimSpace(line) != name {
		return &failure{status: exitFailed, text: "not confirmed, nothing was changed"}
	}
	return nil
}
