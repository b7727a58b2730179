package controller

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/config"
)

// Op is what IncrementalAlterConfigs does with a setting (KIP-339), with its numbers.
type Op int8

// The operations. Append and Subtract are for lists.
const (
	OpSet      Op = 0
	OpDelete   Op = 1
	OpAppend   Op = 2
	OpSubtract Op = 3
)

// ConfigOp is one operation; Value is nil for null.
type ConfigOp struct {
	Name  string
	Op    Op
	Value *string
}

// ConfigChange is all that one request changes of one resource.
type ConfigChange struct {
	Resource metadata.Resource
	Ops      []ConfigOp
	// Replace is AlterConfigs (33): what Ops does not set goes back to its default.
	Replace bool
}

// AlterConfigs checks a change of settings and works out what it comes to. The command holds the version of the
// settings that it was worked out from. Errors: *metadata.UnknownTopicError, *metadata.TopicNameError, *ConfigError,
// *RequestError, *ConfigOperationError.
func (v View) AlterConfigs(c ConfigChange) (metadata.SetConfigs, error) {
	scope, err := v.scope(c.Resource)
	if err != nil {
		return metadata.SetConfigs{}, err
	}
	if err := checkOps(c.Ops); err != nil {
		return metadata.SetConfigs{}, err
	}
	before := v.Image.Configs(c.Resource)
	after := maps.Clone(before)
	if after == nil || c.Replace {
		after = map[string]string{}
	}
	for _, op := range c.Ops {
		if err := v.applyOp(c.Resource, scope, op, after); err != nil {
			return metadata.SetConfigs{}, err
		}
	}
	if err := v.checkTogether(scope, after); err != nil {
		return metadata.SetConfigs{}, err
	}
	return difference(c.Resource, before, after, v.Image.ConfigVersion(c.Resource)), nil
}

// scope checks the resource and says which options it has.
func (v View) scope(r metadata.Resource) (config.Scope, error) {
	switch r.Type {
	case metadata.ResourceTopic:
		if err := metadata.CheckTopicName(r.Name); err != nil {
			return 0, err
		}
		if _, ok := v.Image.Topic(r.Name); !ok {
			return 0, &metadata.UnknownTopicError{Name: r.Name}
		}
		return config.ScopeTopic, nil
	case metadata.ResourceBroker:
		return config.ScopeBroker, v.checkBroker(r.Name)
	case metadata.ResourceGroup:
		if r.Name == "" {
			return 0, badRequest("The name of a group must not be empty.")
		}
		return config.ScopeGroup, nil
	case metadata.ResourceClientMetrics:
		if r.Name == "" {
			return 0, badRequest("The name of a client metrics subscription must not be empty.")
		}
		return config.ScopeClientMetrics, nil
	}
	return 0, badRequest("Settings of resource type %d cannot be changed here.", r.Type)
}

// checkBroker: "" for all brokers, or this broker's id in the one way it is written.
func (v View) checkBroker(name string) error {
	if name == "" {
		return nil
	}
	id, err := strconv.Atoi(name)
	if err != nil || strconv.Itoa(id) != name {
		return badRequest("The name of a broker must be its id or empty, but it is %q.", name)
	}
	if metadata.BrokerID(id) != v.Self {
		return badRequest("Unexpected broker id, expected %d or an empty string, but received %d", v.Self, id)
	}
	return nil
}

func checkOps(ops []ConfigOp) error {
	seen := make(map[string]struct{}, len(ops))
	for _, op := range ops {
		if _, twice := seen[op.Name]; twice {
			return badRequest("Error due to duplicate config keys: %s", op.Name)
		}
		seen[op.Name] = struct{}{}
	}
	for _, op := range ops {
		if op.Op != OpDelete && op.Value == nil {
			return badRequest("Null value not supported for: %s", op.Name)
		}
		if op.Op < OpSet || op.Op > OpSubtract {
			return &ConfigOperationError{op.Op}
		}
	}
	return nil
}

// checkTogether checks the whole set that a resource would have.
func (v View) checkTogether(scope config.Scope, set map[string]string) error {
	var err error
	switch scope {
	case config.ScopeTopic:
		err = config.CheckTopic(v.Layers(), set)
	case config.ScopeGroup:
		err = config.CheckGroup(v.Layers(), set)
	}
	if err != nil {
		return &ConfigError{Reason: err.Error(), Err: err}
	}
	return nil
}

// applyOp puts the outcome of one operation into set.
func (v View) applyOp(r metadata.Resource, scope config.Scope, op ConfigOp, set map[string]string) error {
	option, known := config.Lookup(scope, op.Name)
	if scope == config.ScopeBroker {
		if err := config.CheckBrokerName(op.Name, r.Name == ""); err != nil {
			return &RequestError{err.Error()}
		}
	}
	if op.Op == OpDelete {
		if !known && scope != config.ScopeBroker {
			return unknownOption(scope, op.Name)
		}
		delete(set, op.Name)
		return nil
	}
	value := *op.Value
	if op.Op == OpAppend || op.Op == OpSubtract {
		if !known || option.Type != config.TypeList {
			return &ConfigError{Name: op.Name, Reason: fmt.Sprintf("Can't append or subtract: %s is not a list.", op.Name)}
		}
		value = merged(op.Op, v.current(scope, option, set), value)
	}
	if scope == config.ScopeBroker {
		// Kafka refuses a broker's bad value as a bad request, a topic's as a bad setting.
		if err := config.CheckBroker(op.Name, value, r.Name == ""); err != nil {
			return &RequestError{err.Error()}
		}
	}
	canonical, err := canonical(scope, op.Name, value)
	if err != nil {
		return err
	}
	set[op.Name] = canonical
	return nil
}

func merged(op Op, current, value string) string {
	if op == OpAppend {
		return config.AppendList(current, value)
	}
	return config.SubtractList(current, value)
}

// current is the value that a list is appended to: the resource's own, else what is in force for it.
func (v View) current(scope config.Scope, o config.Option, set map[string]string) string {
	if own, ok := set[o.Name]; ok {
		return own
	}
	layers := v.Layers()
	var value config.Value
	switch scope {
	case config.ScopeTopic:
		value, _ = layers.TopicValue(o.Name)
	case config.ScopeGroup:
		value, _ = layers.GroupValue(o.Name)
	case config.ScopeClientMetrics:
		value, _ = layers.ClientMetricsValue(o.Name)
	default:
		value, _ = layers.BrokerValue(o.Name)
	}
	return value.Value
}

// canonical checks one value. Names that no broker option has are kept as they are, as Kafka does: plug-ins read them.
func canonical(scope config.Scope, name, value string) (string, error) {
	o, ok := config.Lookup(scope, name)
	if !ok {
		if scope == config.ScopeBroker && name != "" {
			return value, nil
		}
		return "", unknownOption(scope, name)
	}
	out, err := o.Canonical(value)
	switch {
	case err != nil && scope == config.ScopeClientMetrics && o.Type == config.TypeInt: // as Kafka, for its interval alone
		return "", &RequestError{err.Error()}
	case err != nil:
		return "", &ConfigError{Name: name, Reason: err.Error(), Err: err}
	}
	return out, nil
}

func unknownOption(scope config.Scope, name string) error {
	err := &config.UnknownError{Scope: scope, Name: name, Suggest: config.Suggest(scope, name)}
	if scope == config.ScopeClientMetrics {
		return &RequestError{err.Error()}
	}
	return &ConfigError{Name: name, Reason: err.Error(), Err: err}
}

// difference is the command that makes after from before.
func difference(r metadata.Resource, before, after map[string]string, version uint64) metadata.SetConfigs {
	c := metadata.SetConfigs{Resource: r, CheckVersion: true, Version: version}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, ok := after[name]; !ok {
			c.Delete = append(c.Delete, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if old, ok := before[name]; !ok || old != after[name] {
			if c.Set == nil {
				c.Set = map[string]string{}
			}
			c.Set[name] = after[name]
		}
	}
	return c
}

// IsConflict tells that a command lost against a change made since its View was taken: decide again on a new one.
func IsConflict(err error) bool {
	var version *metadata.ConfigVersionError
	var precondition *metadata.PreconditionError
	var stale *metadata.StalePartitionError
	var ineligible *metadata.IneligibleReplicaError
	return errors.As(err, &version) || errors.As(err, &precondition) || errors.As(err, &stale) || errors.As(err, &ineligible)
}
