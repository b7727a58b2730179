package config

import (
	"math"
	"strconv"
)

// Source is the layer that a value came from; the numbers are those of DescribeConfigs.
type Source int8

// The sources, from Kafka's ConfigEntry.
const (
	SourceTopic          Source = 1 // set for this topic
	SourceBroker         Source = 2 // set at run time for one broker
	SourceClusterDefault Source = 3 // set at run time for all brokers
	SourceStatic         Source = 4 // the broker's file, environment or flags
	SourceDefault        Source = 5
	SourceBrokerLogger   Source = 6
	SourceClientMetrics  Source = 7
	SourceGroup          Source = 8
)

// Layers are the settings in force, most specific first. The maps are read only and may be nil; the values in them are
// as Option.Canonical makes them (others are understood too).
type Layers struct {
	Topic, Group   map[string]string // set for the topic or group asked about
	ClientMetrics  map[string]string // set for the client metrics subscription asked about
	Broker         map[string]string // set at run time for this broker
	ClusterDefault map[string]string // set at run time for all brokers
	Static         map[string]string // file, environment, flags
	// Brokers is how many brokers are registered, 0 when not known: replication by default is over min(3, Brokers).
	Brokers int
}

// Value is an option's value in force and where it came from.
type Value struct {
	Option   Option
	Value    string // canonical; empty when Null
	Null     bool
	Source   Source
	Synonyms []Synonym // most specific first, each with its own name and unit
}

// Synonym is one of the settings that a value was chosen from.
type Synonym struct {
	Name, Value string
	Null        bool
	Source      Source
}

// TopicValue resolves a topic's option: the topic's own setting, else the broker options behind it, else the default.
// ok is false when there is no such option. The values of sensitive options are left out, here and below.
func (l *Layers) TopicValue(name string) (v Value, ok bool) {
	return l.resourceValue(ScopeTopic, name)
}

// GroupValue resolves a group's option.
func (l *Layers) GroupValue(name string) (v Value, ok bool) {
	return l.resourceValue(ScopeGroup, name)
}

// ClientMetricsValue resolves an option of a client metrics subscription.
func (l *Layers) ClientMetricsValue(name string) (v Value, ok bool) {
	return l.resourceValue(ScopeClientMetrics, name)
}

// resourceValue lists the broker options behind an option unless they are at their default and the leading one has none
// (retention.ms stands for log.retention.ms, which has no default beside log.retention.hours). Kafka leaves them out also
// when log.retention.hours was set, and so says "default" of a value that comes from the file; here that is shown.
func (l *Layers) resourceValue(s Scope, name string) (Value, bool) {
	o, ok := find(s, name)
	if !ok || o.Treatment == Hidden {
		return Value{}, false
	}
	v := Value{Option: *o}
	v.Value, v.Null, v.Source = l.inForce(o)
	if own, set := l.own(s)[name]; set {
		v.Synonyms = append(v.Synonyms, Synonym{Name: name, Value: canonical(o, own), Source: ownSource(s)})
	}
	behind := l.brokerSynonyms(o.Synonyms)
	if len(behind) > 0 && behind[0].Source == SourceDefault && behind[0].Name != o.Synonyms[0] {
		behind = nil
	}
	v.Synonyms = append(v.Synonyms, behind...)
	if s != ScopeTopic && len(o.Synonyms) == 0 {
		v.Synonyms = append(v.Synonyms, Synonym{Name: name, Value: o.Default, Source: SourceDefault})
	}
	return v, true
}

// BrokerValue resolves a broker's option, also one of a single listener (listener.name.<listener>.<option>). Unlike a
// topic's value it is that of the very name: log.retention.ms stays without a value while log.retention.hours has one.
func (l *Layers) BrokerValue(name string) (v Value, ok bool) {
	o, ok := Lookup(ScopeBroker, name)
	if !ok || o.Treatment == Hidden {
		return Value{}, false
	}
	v = Value{Option: o}
	names := o.Synonyms
	if len(names) == 0 {
		names = []string{name}
	}
	if base, isListeners := baseName(name); isListeners {
		names = []string{name, base}
	}
	v.Value, v.Null, v.Source = l.inForce(&o)
	v.Synonyms = l.brokerSynonyms(names)
	for len(v.Synonyms) > 0 && v.Synonyms[0].Name != name {
		v.Synonyms = v.Synonyms[1:] // what a less specific name says is only shown below the name asked for
	}
	if o.Sensitive {
		v.Value, v.Null = "", true
	}
	return v, true
}

// brokerSynonyms lists what the broker's layers say under names, the defaults last.
func (l *Layers) brokerSynonyms(names []string) []Synonym {
	var out []Synonym
	for _, layer := range l.brokerLayers() {
		for _, n := range names {
			if raw, set := layer.values[n]; set {
				out = append(out, l.synonym(n, raw, layer.source))
			}
		}
	}
	for _, n := range names {
		if o, ok := Lookup(ScopeBroker, n); ok && o.Treatment != Hidden && !o.Null && n == o.tableName() {
			out = append(out, Synonym{Name: n, Value: l.defaultOf(&o), Null: o.Sensitive, Source: SourceDefault})
		}
	}
	return out
}

func (l *Layers) synonym(name, raw string, src Source) Synonym {
	o, ok := Lookup(ScopeBroker, name)
	if !ok || o.Sensitive {
		return Synonym{Name: name, Null: true, Source: src}
	}
	return Synonym{Name: name, Value: canonical(&o, raw), Source: src}
}

// inForce is the value that counts, without the list it was chosen from.
func (l *Layers) inForce(o *Option) (value string, null bool, src Source) {
	if o.Scope != ScopeBroker {
		if raw, set := l.own(o.Scope)[o.Name]; set {
			return canonical(o, raw), false, ownSource(o.Scope)
		}
	}
	for _, layer := range l.brokerLayers() {
		if raw, set := l.pick(o, layer.values); set {
			return raw, false, layer.source
		}
	}
	if o.Scope == ScopeBroker || len(o.Synonyms) == 0 {
		return l.defaultOf(o), o.Null, SourceDefault
	}
	return o.Default, o.Null, SourceDefault
}

// pick finds the option's value in one layer of a broker, under the first of its names that is set.
func (l *Layers) pick(o *Option, layer map[string]string) (string, bool) {
	if len(layer) == 0 {
		return "", false
	}
	if o.Scope == ScopeBroker {
		if raw, set := layer[o.Name]; set {
			return canonical(o, raw), true
		}
		if base, ok := baseName(o.Name); ok {
			raw, set := layer[base]
			return canonical(o, raw), set
		}
		return "", false
	}
	for _, n := range o.Synonyms {
		raw, set := layer[n]
		from, ok := find(ScopeBroker, n)
		if set && ok {
			return convert(canonical(from, raw), from.Unit, o.Unit), true
		}
	}
	return "", false
}

type brokerLayer struct {
	values map[string]string
	source Source
}

func (l *Layers) brokerLayers() [3]brokerLayer {
	return [3]brokerLayer{
		{l.Broker, SourceBroker}, {l.ClusterDefault, SourceClusterDefault}, {l.Static, SourceStatic},
	}
}

func (l *Layers) own(s Scope) map[string]string {
	switch s {
	case ScopeGroup:
		return l.Group
	case ScopeClientMetrics:
		return l.ClientMetrics
	}
	return l.Topic
}

func ownSource(s Scope) Source {
	switch s {
	case ScopeGroup:
		return SourceGroup
	case ScopeClientMetrics:
		return SourceClientMetrics
	}
	return SourceTopic
}

// defaultOf is the option's default; that of the replication factors follows the number of brokers, so that a topic is
// as safe as the cluster can make it without anybody asking.
func (l *Layers) defaultOf(o *Option) string {
	if l.Brokers > 0 && o.Scope == ScopeBroker {
		switch o.Name {
		case "default.replication.factor", "offsets.topic.replication.factor":
			return strconv.Itoa(min(3, l.Brokers))
		}
	}
	return o.Default
}

// canonical is Option.Canonical for values that were checked on the way in; another stays as it is.
func canonical(o *Option, raw string) string {
	if v, err := o.Canonical(raw); err == nil {
		return v
	}
	return raw
}

// convert turns a time in one unit into another; what means "no limit" stays, what does not fit is the largest.
func convert(v string, from, to Unit) string {
	if from == to || from <= Bytes || to <= Bytes {
		return v
	}
	n, err := strconv.ParseInt(v, 10, 64)
	factor := unitSize[from] / unitSize[to]
	switch {
	case err != nil || n <= 0 || factor == 0:
		return v
	case n > math.MaxInt64/factor:
		return strconv.FormatInt(math.MaxInt64, 10)
	}
	return strconv.FormatInt(n*factor, 10)
}
