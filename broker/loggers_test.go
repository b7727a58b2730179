package broker

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/config"
)

// TestLevelOfTheLoggerIsChangedAtRunTime: the root logger is described and set; what cannot be done with it is refused.
func TestLevelOfTheLoggerIsChangedAtRunTime(t *testing.T) {
	level := &slog.LevelVar{}
	a := &adminAPI{id: 1, level: level}
	described := func() string {
		es := a.describeLoggers(nil)
		if len(es) != 1 || es[0].Name != "root" || es[0].Source != kmsg.ConfigSourceDynamicBrokerLoggerConfig || es[0].ReadOnly {
			t.Fatalf("described: %+v", es)
		}
		return *es[0].Value
	}
	change := func(broker, logger string, op controller.Op, value string) controller.ConfigChange {
		return controller.ConfigChange{
			Resource: metadata.Resource{Type: metadata.ResourceType(resourceBrokerLogger), Name: broker},
			Ops:      []controller.ConfigOp{{Name: logger, Op: op, Value: &value}},
		}
	}
	alter := func(c controller.ConfigChange, dry bool) error {
		return a.alter(t.Context(), []controller.ConfigChange{c}, dry)[0]
	}
	if got := described(); got != "INFO" {
		t.Errorf("at first: %s", got)
	}
	if err := alter(change("1", "root", controller.OpSet, "DEBUG"), true); err != nil || level.Level() != slog.LevelInfo {
		t.Errorf("only asked: %v, %s", err, level.Level())
	}
	for _, to := range []string{"DEBUG", "ERROR", "WARN", "INFO"} {
		if err := a.alterLoggers(change("1", "root", controller.OpSet, to), false); err != nil || described() != to {
			t.Errorf("%s: %v, %s", to, err, described())
		}
	}
	var request *controller.RequestError
	var value *config.ValueError
	replace := change("1", "root", controller.OpSet, "DEBUG")
	replace.Replace = true
	for _, tt := range []struct {
		name string
		c    controller.ConfigChange
		is   func(error) bool
	}{
		{"another broker", change("2", "root", controller.OpSet, "DEBUG"), func(err error) bool { return errors.Is(err, errOtherBroker) }},
		{"another logger", change("1", "kafka", controller.OpSet, "DEBUG"), func(err error) bool { return errors.As(err, &value) }},
		{"no level", change("1", "root", controller.OpSet, "LOUD"), func(err error) bool { return errors.As(err, &value) }},
		{"removed", change("1", "root", controller.OpDelete, ""), func(err error) bool { return errors.As(err, &request) }},
		{"appended", change("1", "root", controller.OpAppend, "DEBUG"), func(err error) bool { return errors.As(err, &request) }},
		{"replaced", replace, func(err error) bool { return errors.As(err, &request) }},
	} {
		if err := alter(tt.c, true); !tt.is(err) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if got := described(); got != "INFO" {
		t.Errorf("after refusals: %s", got)
	}
	if es := a.describeLoggers([]string{"kafka"}); es != nil {
		t.Errorf("another logger: %+v", es)
	}
	if es := (&adminAPI{id: 1}).describeLoggers(nil); es != nil {
		t.Errorf("nobody said what the level is: %+v", es)
	}
}
