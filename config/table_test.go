package config

import (
	"slices"
	"strings"
	"testing"
)

func TestEveryDefaultIsAValueOfItsOption(t *testing.T) {
	for _, o := range table().all {
		if o.Null || o.Treatment == Hidden {
			continue
		}
		v, err := o.Canonical(o.Default)
		if err != nil {
			t.Errorf("%s %s: %v", o.Scope, o.Name, err)
		}
		if v != o.Default {
			t.Errorf("%s %s: default %q is %q in canonical form", o.Scope, o.Name, o.Default, v)
		}
	}
}

func TestTableIsSound(t *testing.T) {
	all := table().all
	if !slices.IsSortedFunc(all, func(a, b Option) int {
		return max(-1, min(1, (int(a.Scope)-int(b.Scope))*2+strings.Compare(a.Name, b.Name)))
	}) {
		t.Error("not sorted by scope and name")
	}
	for _, o := range all {
		if o.Treatment == Hidden {
			continue
		}
		if o.Doc == "" {
			t.Errorf("%s %s: no description", o.Scope, o.Name)
		}
		if (o.Treatment == Honour) == (o.Reason != "") {
			t.Errorf("%s %s: %s, reason %q", o.Scope, o.Name, o.Treatment, o.Reason)
		}
		if o.Type == TypePassword && !o.Sensitive {
			t.Errorf("%s is a password and not sensitive", o.Name)
		}
		for _, s := range o.Synonyms {
			if b, ok := find(ScopeBroker, s); !ok || b.Treatment == Hidden {
				t.Errorf("%s %s: synonym %s is no broker option", o.Scope, o.Name, s)
			} else if b.Unit == NoUnit != (o.Unit == NoUnit) {
				t.Errorf("%s has unit %d, its synonym %s %d", o.Name, o.Unit, s, b.Unit)
			}
		}
		if (o.Update == PerResource) != (o.Scope != ScopeBroker) {
			t.Errorf("%s %s: update mode %s", o.Scope, o.Name, o.Update)
		}
	}
}

func TestHiddenOptionsAreNotListed(t *testing.T) {
	for _, scope := range Scopes() {
		for _, o := range Options(scope) {
			if o.Treatment == Hidden {
				t.Errorf("%s is listed", o.Name)
			}
		}
	}
	if o, ok := Lookup(ScopeBroker, "process.roles"); !ok || o.Treatment != Hidden {
		t.Error("process.roles is not known as hidden")
	}
	l := Layers{Static: map[string]string{"process.roles": "broker"}}
	if _, ok := l.BrokerValue("process.roles"); ok {
		t.Error("process.roles is shown")
	}
	for _, v := range l.DescribeBroker() {
		if v.Option.Name == "process.roles" {
			t.Error("process.roles is described")
		}
	}
}

func TestLookupOfAListenersOption(t *testing.T) {
	for name, base := range map[string]string{
		"listener.name.external.ssl.keystore.location":            "ssl.keystore.location",
		"listener.name.sasl.scram-sha-256.sasl.jaas.config":       "sasl.jaas.config",
		"listener.name.a.max.connections":                         "max.connections",
		"listener.name.a.b.c.sasl.jaas.config":                    "",
		"listener.name.ssl.keystore.location":                     "",
		"listener.name.external.log.dirs":                         "",
		"listener.name.":                                          "",
		"listener.name.external.listener.name.x.ssl.key.password": "",
	} {
		o, ok := Lookup(ScopeBroker, name)
		if ok != (base != "") {
			t.Errorf("%s: found %v", name, ok)
			continue
		}
		if b, _ := Lookup(ScopeBroker, base); ok && (o.Name != name || o.Type != b.Type || o.Sensitive != b.Sensitive) {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

func TestSuggest(t *testing.T) {
	for _, c := range []struct {
		scope      Scope
		name, want string
	}{
		{ScopeTopic, "retention.m", "retention.ms"},
		{ScopeTopic, "retentoin.ms", "retention.ms"},
		{ScopeTopic, "retention_ms", "retention.ms"},
		{ScopeTopic, "clenup.policy", "cleanup.policy"},
		{ScopeTopic, "durability", "karst.durability"},
		{ScopeTopic, "no.such.key", ""},
		{ScopeTopic, "x", ""},
		{ScopeTopic, "", ""},
		{ScopeBroker, "advertised.listener", "advertised.listeners"},
		{ScopeBroker, "advertized.listeners", "advertised.listeners"},
		{ScopeBroker, "retention.ms", "log.retention.ms"},
		{ScopeBroker, "num.partition", "num.partitions"},
	} {
		if got := Suggest(c.scope, c.name); got != c.want {
			t.Errorf("%s %q: %q, want %q", c.scope, c.name, got, c.want)
		}
	}
}

// The whole table is read at the first look-up, which a start of the broker pays.
func BenchmarkParseTable(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parseTable(optionsTSV); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseTopic(b *testing.B) {
	l := Layers{
		Topic:  map[string]string{"retention.ms": "1000", "cleanup.policy": "compact"},
		Static: map[string]string{"log.retention.hours": "24", "message.max.bytes": "2000000"},
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseTopic(l); err != nil {
			b.Fatal(err)
		}
	}
}
