package config

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// ReadOnlyError refuses to change an option while the broker runs.
type ReadOnlyError struct {
	Name   string
	Reason string
}

// Error is a sentence beginning with the reason, as Kafka puts it.
func (e *ReadOnlyError) Error() string { return e.Reason + ": [" + e.Name + "]" }

// CheckTopic checks the whole set of a topic's own settings, one by one and together with what is in force around them
// (l.Topic is not looked at). The error is the first in order of names: *UnknownError, *ValueError or *ConflictError.
func CheckTopic(l Layers, set map[string]string) error {
	if err := checkKnown(ScopeTopic, set); err != nil {
		return err
	}
	const tiered = "remote.storage.enable"
	if strings.EqualFold(strings.TrimSpace(set[tiered]), "true") {
		return &ValueError{Name: tiered, Value: set[tiered], Reason: "There is no tiered storage here"}
	}
	l.Topic = set
	_, err := ParseTopic(l)
	return err
}

func checkKnown(s Scope, set map[string]string) error {
	for _, name := range sortedKeys(set) {
		o, ok := find(s, name)
		if !ok || o.Treatment == Hidden {
			return &UnknownError{Scope: s, Name: name, Suggest: Suggest(s, name)}
		}
		if err := o.Check(set[name]); err != nil {
			return err
		}
	}
	return nil
}

// CheckGroup checks the whole set of a group's own settings, also against the bounds that the broker's group.* options
// set (KIP-1240).
func CheckGroup(l Layers, set map[string]string) error {
	if err := checkKnown(ScopeGroup, set); err != nil {
		return err
	}
	l.Group = set
	for _, name := range sortedKeys(set) {
		if err := l.checkBounds(name); err != nil {
			return err
		}
	}
	for _, kind := range []string{"consumer", "share", "streams"} {
		p := parser{layers: &l, scope: ScopeGroup}
		session, heartbeat := kind+".session.timeout.ms", kind+".heartbeat.interval.ms"
		if p.int64(session) <= p.int64(heartbeat) {
			return &ConflictError{
				Names:  []string{session, heartbeat},
				Reason: session + " must be larger than " + heartbeat,
			}
		}
	}
	return nil
}

// groupBounds are the broker options that bound a group's option; an empty one is no bound.
var groupBounds = map[string][2]string{
	"consumer.session.timeout.ms":      {"group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"},
	"consumer.heartbeat.interval.ms":   {"group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"},
	"consumer.assignment.interval.ms":  {"group.consumer.min.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"},
	"share.session.timeout.ms":         {"group.share.min.session.timeout.ms", "group.share.max.session.timeout.ms"},
	"share.heartbeat.interval.ms":      {"group.share.min.heartbeat.interval.ms", "group.share.max.heartbeat.interval.ms"},
	"share.assignment.interval.ms":     {"group.share.min.assignment.interval.ms", "group.share.max.assignment.interval.ms"},
	"share.record.lock.duration.ms":    {"group.share.min.record.lock.duration.ms", "group.share.max.record.lock.duration.ms"},
	"share.delivery.count.limit":       {"group.share.min.delivery.count.limit", "group.share.max.delivery.count.limit"},
	"share.partition.max.record.locks": {"group.share.min.partition.max.record.locks", "group.share.max.partition.max.record.locks"},
	"streams.session.timeout.ms":       {"group.streams.min.session.timeout.ms", "group.streams.max.session.timeout.ms"},
	"streams.heartbeat.interval.ms":    {"group.streams.min.heartbeat.interval.ms", "group.streams.max.heartbeat.interval.ms"},
	"streams.assignment.interval.ms":   {"group.streams.min.assignment.interval.ms", "group.streams.max.assignment.interval.ms"},
	"streams.num.standby.replicas":     {"", "group.streams.max.standby.replicas"},
}

func (l *Layers) checkBounds(name string) error {
	bounds, ok := groupBounds[name]
	if !ok {
		return nil
	}
	b := parser{layers: l, scope: ScopeBroker}
	g := parser{layers: l, scope: ScopeGroup}
	lo, hi := int64(0), b.int64(bounds[1])
	if bounds[0] != "" {
		lo = b.int64(bounds[0])
	}
	if n := g.int64(name); n < lo || n > hi {
		return &ValueError{Name: name, Value: l.Group[name], Reason: "Value must be in the range " +
			strconv.FormatInt(lo, 10) + " to " + strconv.FormatInt(hi, 10) + " inclusive"}
	}
	return nil
}

// CheckBroker checks one setting that is to be made for a broker at run time, or for the whole cluster. A name that is
// not known is admitted, as Kafka does, since it may be meant for a later version. The error is a *ReadOnlyError or a
// *ValueError; Kafka answers both with INVALID_REQUEST.
func CheckBroker(name, value string, wholeCluster bool) error {
	if err := CheckBrokerName(name, wholeCluster); err != nil {
		return err
	}
	o, ok := Lookup(ScopeBroker, name)
	if !ok {
		return nil
	}
	if name == "max.connections.per.ip.overrides" {
		if _, err := parseOverrides(value); err != nil {
			return &ValueError{Name: name, Value: value, Reason: "Expected host:count,host:count,..."}
		}
	}
	return o.Check(value)
}

// CheckBrokerName says whether an option may be changed at run time, be it set or deleted.
func CheckBrokerName(name string, wholeCluster bool) error {
	o, ok := Lookup(ScopeBroker, name)
	if !ok {
		return nil
	}
	_, ofListener := baseName(name)
	switch {
	case o.Update == ReadOnly || o.Treatment == Hidden:
		return &ReadOnlyError{Name: name, Reason: "Cannot update these configs dynamically"}
	case o.Update == PerBroker && wholeCluster:
		return &ReadOnlyError{
			Name:   name,
			Reason: "Cannot update these configs at default cluster level, broker id must be specified",
		}
	case !ofListener && (strings.HasPrefix(name, "ssl.keystore.") || strings.HasPrefix(name, "ssl.truststore.") ||
		name == "ssl.key.password"):
		return &ReadOnlyError{
			Name:   name,
			Reason: "These security configs can be changed only for a listener, with its prefix listener.name.<listener>.",
		}
	}
	return nil
}

// DescribeTopic returns every option of a topic with its value in force, by name.
func (l *Layers) DescribeTopic() []Value { return l.describe(ScopeTopic) }

// DescribeGroup returns every option of a group with its value in force, by name.
func (l *Layers) DescribeGroup() []Value { return l.describe(ScopeGroup) }

func (l *Layers) describe(s Scope) []Value {
	var out []Value
	for _, o := range table().all {
		if o.Scope != s {
			continue
		}
		if v, ok := l.resourceValue(s, o.Name); ok {
			out = append(out, v)
		}
	}
	return out
}

// DescribeBroker returns every option of this broker with its value in force, by name; also what is set for single
// listeners and names that are not known, whose values are kept back since they may be secrets.
func (l *Layers) DescribeBroker() []Value {
	names := map[string]bool{}
	for _, o := range table().all {
		if o.Scope == ScopeBroker {
			names[o.Name] = true
		}
	}
	for _, layer := range l.brokerLayers() {
		for n := range layer.values {
			names[n] = true
		}
	}
	var out []Value
	for _, n := range slices.Sorted(maps.Keys(names)) {
		if v, ok := l.BrokerValue(n); ok {
			out = append(out, v)
		} else if v, ok := l.unknownValue(n); ok {
			out = append(out, v)
		}
	}
	return out
}

// DescribeClusterDefault returns what is set at run time for all brokers, by name.
func (l *Layers) DescribeClusterDefault() []Value {
	only := Layers{ClusterDefault: l.ClusterDefault, Brokers: l.Brokers}
	var out []Value
	for _, n := range sortedKeys(l.ClusterDefault) {
		v, ok := only.BrokerValue(n)
		if !ok {
			v, ok = only.unknownValue(n)
		}
		v.Synonyms = slices.DeleteFunc(v.Synonyms, func(s Synonym) bool { return s.Source != SourceClusterDefault })
		if ok {
			out = append(out, v)
		}
	}
	return out
}

// unknownValue describes a setting without an option; ok is false for hidden options.
func (l *Layers) unknownValue(name string) (Value, bool) {
	if _, known := Lookup(ScopeBroker, name); known {
		return Value{}, false
	}
	v := Value{Option: Option{Name: name, Scope: ScopeBroker, Sensitive: true}, Null: true}
	for _, layer := range l.brokerLayers() {
		if _, set := layer.values[name]; !set {
			continue
		}
		if v.Source == 0 {
			v.Source = layer.source
		}
		v.Synonyms = append(v.Synonyms, Synonym{Name: name, Null: true, Source: layer.source})
	}
	return v, v.Source != 0
}
