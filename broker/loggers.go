package broker

import (
	"log/slog"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/config"
)

// rootLogger is the one logger that there is; its level is that of all that the broker logs (KIP-412).
const rootLogger = "root"

// logLevels are Kafka's names for levels. There is none below debug and none above error here.
var logLevels = map[string]slog.Level{
	"TRACE": slog.LevelDebug, "DEBUG": slog.LevelDebug, "INFO": slog.LevelInfo, "WARN": slog.LevelWarn, "ERROR": slog.LevelError, "FATAL": slog.LevelError,
}

// describeLoggers answers for the loggers of this broker; there are none when its level is not known.
func (a *adminAPI) describeLoggers(names []string) []configEntry {
	if a.level == nil || names != nil && !slices.Contains(names, rootLogger) {
		return nil
	}
	e := kmsg.NewDescribeConfigsResponseResourceConfig()
	level := a.level.Level().String()
	e.Name, e.Value, e.Source, e.ConfigType = rootLogger, &level, kmsg.ConfigSourceDynamicBrokerLoggerConfig, kmsg.ConfigTypeString
	return []configEntry{e}
}

// alterLoggers changes the level until this process ends. *controller.RequestError for what cannot be done with a logger,
// *config.ValueError for a logger or a level that does not exist.
func (a *adminAPI) alterLoggers(c controller.ConfigChange, validateOnly bool) error {
	if err := a.thisBroker(c.Resource.Name); err != nil {
		return err
	}
	if c.Replace {
		return &controller.RequestError{Reason: "Levels of loggers are changed one by one, with IncrementalAlterConfigs."}
	}
	level := slog.Level(0)
	for _, op := range c.Ops {
		value := ""
		if op.Value != nil {
			value = *op.Value
		}
		to, known := logLevels[value]
		switch {
		case a.level == nil || op.Name != rootLogger:
			return &config.ValueError{Name: op.Name, Value: value, Reason: "There is no such logger; root is the only one"}
		case op.Op == controller.OpDelete:
			return &controller.RequestError{Reason: "The level of the root logger cannot be removed."}
		case op.Op != controller.OpSet:
			return &controller.RequestError{Reason: "A level is set, nothing is added to it or taken from it."}
		case !known:
			return &config.ValueError{Name: op.Name, Value: value, Reason: "Expected TRACE, DEBUG, INFO, WARN, ERROR or FATAL"}
		}
		level = to
	}
	if len(c.Ops) > 0 && !validateOnly {
		a.level.Set(level)
	}
	return nil
}
