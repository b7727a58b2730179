// Package node builds a broker from its parts, runs it and stops it. Its files config*.go, properties.go and environ.go
// read what the operator says, in files, the environment and flags, into one set of settings.
package node

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/internal/properties"
	"github.com/karstlog/karst/internal/uuid"
)

// LoadOptions is where the settings come from, strongest first.
type LoadOptions struct {
	// Flags are settings given by flags of their own, by option name ("listeners", "karst.data").
	Flags map[string]string
	// Sets are the arguments of --set, "name=value"; the last one of a name counts.
	Sets []string
	// Environ is the environment as os.Environ gives it; nil: none.
	Environ []string
	// File is a properties file; empty: none.
	File string
	// ReadFile reads File and the files named by *_FILE variables; nil: os.ReadFile.
	ReadFile func(name string) ([]byte, error)
	// Strict refuses names that are not known instead of warning of them (--strict-config).
	Strict bool
}

// Loaded is the outcome of LoadConfig.
type Loaded struct {
	// Static are the settings in canonical form, by name: what config.Layers.Static takes. Names that are no options are
	// left out; hidden ones are in it and are not shown by config.
	Static   map[string]string
	Broker   *config.Broker
	Warnings []Warning
	Sources  map[string]string // where each of Static came from: "flag", "--set", a variable, a file and its line
	Entries  []Entry           // every setting that was found, by name
	// IgnoredVariables counts the variables under KAFKA_ that are no settings, for one line at debug.
	IgnoredVariables int
}

// Warning is something the operator should know of, and no reason not to start.
type Warning struct {
	Names []string // settings, by name
	Text  string   // a sentence in lower case without the names
}

// String puts the names before the text.
func (w Warning) String() string { return strings.Join(w.Names, ", ") + ": " + w.Text }

// Class is what becomes of a setting.
type Class int8

// The classes.
const (
	Honoured     Class = iota + 1 // it has its effect
	NotYet                        // kept; has an effect in a later version
	NoEffect                      // accepted, has none
	UnknownName                   // no option; warned of, or refused with --strict-config
	RejectedName                  // stops the start
)

// String returns the word that `kctl config validate` prints.
func (c Class) String() string {
	return [...]string{"", "honoured", "not yet", "no effect", "unknown", "rejected"}[c]
}

// Entry is one setting with what becomes of it.
type Entry struct {
	Name, Value string // a secret's value is "[hidden]"
	Source      string
	Class       Class
	Reason      string // why it has no effect, or what is wrong
	Suggest     string // for an unknown name the nearest known one, if any
}

// LoadConfig reads and checks the settings; the precedence is flag, --set, KARST_*, KAFKA_*, file, default. On settings
// that stop the start it returns both: all errors joined, one for each, and what was read, with Broker nil.
func LoadConfig(o LoadOptions) (*Loaded, error) {
	layers, ignored, err := read(o)
	if err != nil {
		return nil, err
	}
	l := &Loaded{Static: map[string]string{}, Sources: map[string]string{}, IgnoredVariables: ignored}
	raw := merge(layers)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		e, err := l.classify(raw[name], raw)
		if o.Strict && e.Class == UnknownName {
			err = fmt.Errorf("%s: no such option%s", name, didYouMean(e.Suggest))
		}
		if err != nil {
			e.Class, e.Reason = RejectedName, err.Error()
			errs = append(errs, fmt.Errorf("%w (%s)", err, e.Source))
		}
		l.Entries = append(l.Entries, e)
	}
	l.warn()
	if len(errs) > 0 {
		return l, errors.Join(errs...)
	}
	return l, l.parseBroker()
}

// read collects the settings, weakest layer first; within a layer the last one of a name counts.
func read(o LoadOptions) (layers [][]setting, ignored int, err error) {
	if o.ReadFile == nil {
		o.ReadFile = os.ReadFile
	}
	file, err := readProperties(o)
	if err != nil {
		return nil, 0, err
	}
	env, err := readEnviron(o.Environ, o.ReadFile)
	if err != nil {
		return nil, 0, err
	}
	sets, err := splitSets(o.Sets)
	if err != nil {
		return nil, 0, err
	}
	var flags []setting
	for _, name := range slices.Sorted(maps.Keys(o.Flags)) {
		flags = append(flags, setting{name, o.Flags[name], "flag"})
	}
	return [][]setting{file, env.kafka, env.karst, sets, flags}, env.ignored, nil
}

func readProperties(o LoadOptions) ([]setting, error) {
	if o.File == "" {
		return nil, nil
	}
	b, err := o.ReadFile(o.File)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	props, err := properties.Parse(string(b))
	if err != nil {
		return nil, fmt.Errorf("read the configuration %s: %w", o.File, err)
	}
	var out []setting
	for _, p := range props {
		out = append(out, setting{p.Name, p.Value, fmt.Sprintf("%s:%d", filepath.Base(o.File), p.Line)})
	}
	return out, nil
}

func splitSets(sets []string) ([]setting, error) {
	var out []setting
	for _, s := range sets {
		name, value, ok := strings.Cut(s, "=")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, fmt.Errorf("--set %q: expected name=value", s)
		}
		out = append(out, setting{name, value, "--set"})
	}
	return out, nil
}

// merge lets stronger layers replace weaker ones. A setting also takes away what weaker layers say by another name:
// KAFKA_LOG_RETENTION_HOURS in the environment wins over log.retention.ms in the file.
func merge(layers [][]setting) map[string]setting {
	out := map[string]setting{}
	depth := map[string]int{}
	for i, layer := range layers {
		for _, s := range layer {
			for _, other := range sameThing(s.name) {
				if d, ok := depth[other]; ok && d < i {
					delete(out, other)
				}
			}
			out[s.name], depth[s.name] = s, i
		}
	}
	return out
}

// sameThing lists the options that say the same as name, itself left out.
func sameThing(name string) []string {
	switch name {
	case "node.id":
		return []string{"broker.id"}
	case "broker.id":
		return []string{"node.id"}
	case "log.dirs":
		return []string{"log.dir"}
	case "log.dir":
		return []string{"log.dirs"}
	}
	o, _ := config.Lookup(config.ScopeBroker, name)
	return slices.DeleteFunc(slices.Clone(o.Synonyms), func(s string) bool { return s == name })
}

// classify puts one setting into Static and says what becomes of it.
func (l *Loaded) classify(s setting, all map[string]setting) (Entry, error) {
	e := Entry{Name: s.name, Value: s.value, Source: s.source}
	o, known := config.Lookup(config.ScopeBroker, s.name)
	if !known {
		e.Value = "[hidden]" // it may be a secret under a mistyped name
		if reason, ok := retired(s.name); ok {
			e.Class, e.Reason = NoEffect, reason
			return e, nil
		}
		e.Class, e.Suggest = UnknownName, config.Suggest(config.ScopeBroker, s.name)
		return e, nil
	}
	if o.Sensitive {
		e.Value = "[hidden]"
	}
	e.Class, e.Reason = classOf(o.Treatment), o.Reason
	if all["config.providers"].value != "" && strings.Contains(s.value, "${") {
		return e, fmt.Errorf("%s: there are no config providers here; put the value into a file and name it in the"+
			" variable KARST_%s_FILE", s.name, strings.ToUpper(strings.ReplaceAll(s.name, ".", "_")))
	}
	if o.Treatment == config.Hidden {
		l.Static[s.name], l.Sources[s.name] = s.value, s.source
		return e, nil
	}
	v, err := o.Canonical(s.value)
	if err != nil {
		return e, err
	}
	l.Static[s.name], l.Sources[s.name] = v, s.source
	return e, nil
}

func classOf(t config.Treatment) Class {
	switch t {
	case config.Honour:
		return Honoured
	case config.Later:
		return NotYet
	}
	return NoEffect
}

// warn says once for each reason which settings have no effect, and names the unknown ones one by one.
func (l *Loaded) warn() {
	names := map[string][]string{}
	for _, e := range l.Entries {
		switch e.Class {
		case UnknownName:
			text := "no such option, ignored" + didYouMean(e.Suggest)
			l.Warnings = append(l.Warnings, Warning{Names: []string{e.Name}, Text: text})
		case NoEffect:
			text := "accepted without effect: " + e.Reason
			names[text] = append(names[text], e.Name)
		case NotYet:
			text := "takes effect with " + e.Reason + ", not served yet"
			names[text] = append(names[text], e.Name)
		}
	}
	for _, text := range slices.Sorted(maps.Keys(names)) {
		l.Warnings = append(l.Warnings, Warning{Names: names[text], Text: text})
	}
}

func didYouMean(suggest string) string {
	if suggest == "" {
		return ""
	}
	return "; did you mean " + suggest + "?"
}

// parseBroker makes the typed settings. What refuses a combination is put on the entries that it names.
func (l *Loaded) parseBroker() error {
	b, warnings, err := config.ParseBroker(l.Static)
	var conflict *config.ConflictError
	if errors.As(err, &conflict) {
		for i := range l.Entries {
			if slices.Contains(conflict.Names, l.Entries[i].Name) {
				l.Entries[i].Class, l.Entries[i].Reason = RejectedName, conflict.Reason
			}
		}
	}
	for _, w := range warnings {
		l.Warnings = append(l.Warnings, Warning(w))
	}
	if err != nil {
		return err
	}
	l.Broker = b
	return l.checkClusterID()
}

// checkClusterID refuses a cluster id that is none. Kafka takes any text, so one that was meant for Kafka's images is
// left out with a warning instead.
func (l *Loaded) checkClusterID() error {
	const option = "karst.cluster.id"
	given := l.Broker.ClusterID
	if given == "" {
		return nil
	}
	id, err := uuid.Parse(strings.TrimSuffix(given, "=="))
	switch {
	case err == nil:
		l.Broker.ClusterID = id.String()
		return nil
	case strings.HasPrefix(l.Sources[option], "KARST_") || !strings.Contains(l.Sources[option], "CLUSTER_ID"):
		l.Broker = nil
		return &config.ValueError{Name: option, Value: given, Reason: "Expected 22 characters, a UUID in base64url"}
	}
	l.Broker.ClusterID = ""
	l.Warnings = append(l.Warnings, Warning{
		Names: []string{l.Sources[option]},
		Text:  given + " is not a UUID in base64url, as Kafka's tools make them; a new cluster gets a random id",
	})
	return nil
}
