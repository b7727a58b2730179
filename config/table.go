package config

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// options.tsv is the table itself: one option a line, see its first line for the columns. "-" is nothing, `""` is the
// empty value.
//
//go:embed options.tsv
var optionsTSV string

// options holds the parsed table.
type options struct {
	all    []Option // by scope, then name
	byName [ScopeClientMetrics + 1]map[string]int
}

var table = sync.OnceValue(func() *options {
	t, err := parseTable(optionsTSV)
	if err != nil {
		panic("config: options.tsv: " + err.Error()) // built into the binary and held by a test
	}
	return t
})

// Scopes are all of them, those that people ask about most first.
func Scopes() []Scope { return []Scope{ScopeTopic, ScopeBroker, ScopeGroup, ScopeClientMetrics} }

// Options returns the options of a scope by name, without the hidden ones. The slice is the caller's.
func Options(s Scope) []Option {
	var out []Option
	for _, o := range table().all {
		if o.Scope == s && o.Treatment != Hidden {
			out = append(out, o)
		}
	}
	return out
}

// find is Lookup within the package, without a copy. The option must not be changed.
func find(s Scope, name string) (*Option, bool) {
	t := table()
	i, ok := t.byName[s][name]
	if !ok {
		return nil, false
	}
	return &t.all[i], true
}

// Lookup finds an option by scope and name. Hidden options are found too: whoever reads a file wants to know them, and
// whoever answers a client asks Option.Treatment. A broker option of one listener, such as
// listener.name.external.ssl.keystore.location, is found under the name it overrides and returned with its full name.
func Lookup(s Scope, name string) (Option, bool) {
	if o, ok := find(s, name); ok {
		return *o, true
	}
	if s != ScopeBroker {
		return Option{}, false
	}
	base, ok := baseName(name)
	if !ok {
		return Option{}, false
	}
	b, _ := find(ScopeBroker, base)
	o := *b
	o.Name = name
	o.Synonyms = nil
	return o, true
}

// baseName resolves listener.name.<listener>.[<mechanism>.]<option> (KIP-103, KIP-86) to the option it overrides.
func baseName(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, listenerPrefix)
	if !ok {
		return "", false
	}
	for range 2 { // the listener, then perhaps a mechanism
		if _, rest, ok = strings.Cut(rest, "."); !ok {
			return "", false
		}
		if _, known := find(ScopeBroker, rest); known && perListener(rest) {
			return rest, true
		}
	}
	return "", false
}

const listenerPrefix = "listener.name."

// tableName is the name under which the option stands in the table: the one it overrides for a listener's option.
func (o Option) tableName() string {
	if base, ok := baseName(o.Name); ok {
		return base
	}
	return o.Name
}

func perListener(name string) bool {
	return strings.HasPrefix(name, "ssl.") || strings.HasPrefix(name, "sasl.") || slices.Contains(listenerOnly, name)
}

// listenerOnly are the other options that Kafka reads with a listener's prefix.
var listenerOnly = []string{
	"principal.builder.class", "connections.max.reauth.ms", "max.connections", "max.connection.creation.rate",
}

// columns of options.tsv
const (
	colScope = iota
	colName
	colType
	colDefault
	colValid
	colUpdate
	colSynonyms
	colSensitive
	colTreatment
	colReason
	colDoc
	columns
)

// parseTable reads options.tsv. Its cost is paid once, at the first look-up.
func parseTable(tsv string) (*options, error) {
	t := &options{all: make([]Option, 0, strings.Count(tsv, "\n"))}
	for s := range t.byName {
		t.byName[s] = map[string]int{}
	}
	for line := range strings.Lines(tsv) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != columns {
			return nil, fmt.Errorf("%d columns in %q", len(f), line)
		}
		o, err := parseOption(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f[colName], err)
		}
		t.byName[o.Scope][o.Name] = len(t.all)
		t.all = append(t.all, o)
	}
	return t, nil
}

func parseOption(f []string) (Option, error) {
	for i := range f {
		if f[i] == "-" && i != colDefault {
			f[i] = ""
		}
	}
	o := Option{
		Name:      f[colName],
		Scope:     Scope(slices.Index(scopeNames[:], f[colScope])),
		Type:      Type(slices.Index(typeNames[:], f[colType])),
		Update:    Update(slices.Index(updateNames[:], f[colUpdate])),
		Treatment: Treatment(slices.Index(treatmentWords[:], f[colTreatment])),
		Default:   f[colDefault],
		Valid:     f[colValid],
		Sensitive: f[colSensitive] == "yes",
		Reason:    f[colReason],
		Doc:       f[colDoc],
	}
	if o.Scope < ScopeTopic || o.Type < TypeBoolean || o.Update < ReadOnly || o.Treatment < Honour {
		return o, fmt.Errorf("scope %q, type %q, update %q or treatment %q is not known",
			f[colScope], f[colType], f[colUpdate], f[colTreatment])
	}
	switch o.Default {
	case "-":
		o.Default, o.Null = "", true
	case `""`:
		o.Default = ""
	}
	if f[colSynonyms] != "" {
		o.Synonyms = strings.Split(f[colSynonyms], ",")
	}
	if o.Doc == "" && o.Treatment == Ignore {
		o.Doc = "Has no effect here: " + o.Reason + "."
	}
	o.Unit = unitOf(o.Name, o.Type)
	var err error
	o.check, err = parseValid(o.Type, o.Valid)
	return o, err
}

// treatmentWords are what options.tsv says for a treatment.
var treatmentWords = [...]string{"", "honour", "later", "ignore", "hidden"}

// unitOf tells the unit by the name, as Kafka's names do.
func unitOf(name string, t Type) Unit {
	if t != TypeInt && t != TypeLong && t != TypeShort && t != TypeDouble {
		return NoUnit
	}
	switch {
	case strings.HasSuffix(name, ".ms"), name == "karst.delete.grace":
		return Milliseconds
	case strings.HasSuffix(name, ".seconds"), strings.HasSuffix(name, ".secs"):
		return Seconds
	case strings.HasSuffix(name, ".minutes"):
		return Minutes
	case strings.HasSuffix(name, ".hours"):
		return Hours
	case strings.Contains(name, "bytes"), strings.HasSuffix(name, "buffer.size"), strings.HasSuffix(name, "receive.size"):
		return Bytes
	}
	return NoUnit
}
