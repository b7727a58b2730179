package node

import (
	"fmt"
	"slices"
	"strings"

	"github.com/karstlog/karst/config"
)

// setting is one name with a value, before anybody has looked at what it means.
type setting struct {
	name, value string
	source      string // "flag", "--set", "KAFKA_NODE_ID", "server.properties:12"
}

// environment is what the environment says.
type environment struct {
	karst, kafka []setting // by name of the variable
	ignored      int       // variables under KAFKA_ that are no settings, such as KAFKA_HEAP_OPTS
}

// readEnviron finds the settings among the variables: KARST_<NAME> for every option and, so that a compose file made for
// Kafka needs another image only, KAFKA_<NAME> (Apache, Confluent), KAFKA_CFG_<NAME> (Bitnami) and CLUSTER_ID. A variable
// that ends in _FILE names a file with the value, for secrets. Empty variables count as not set.
func readEnviron(environ []string, readFile func(string) ([]byte, error)) (environment, error) {
	var env environment
	for _, kv := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(kv, "=")
		if value == "" || reserved(name) {
			continue
		}
		s, known, err := variable(name, value, readFile)
		if err != nil {
			return env, err
		}
		switch {
		case strings.HasPrefix(name, "KARST_") && (known || !fromOrchestrator(name, value)):
			env.karst = append(env.karst, s)
		case known:
			env.kafka = append(env.kafka, s)
		case strings.HasPrefix(name, "KAFKA_"):
			env.ignored++
		}
	}
	slices.SortStableFunc(env.kafka, func(a, b setting) int { // the spelling of one image only is the weaker one
		return strings.Compare(rank(b.source), rank(a.source))
	})
	return env, nil
}

func rank(variable string) string {
	switch {
	case strings.HasPrefix(variable, "KAFKA_CFG_"), strings.HasPrefix(variable, "KAFKA_KRAFT_"):
		return "1"
	}
	return "0"
}

// reserved are variables of Karst's own tests.
func reserved(name string) bool {
	return strings.HasPrefix(name, "KARST_TEST_") || name == "KARST_MUTANT"
}

// fromOrchestrator says whether a variable was made by Kubernetes or Docker for a service that happens to be called
// karst: KARST_SERVICE_HOST, KARST_PORT_9092_TCP_ADDR.
func fromOrchestrator(name, value string) bool {
	return strings.HasPrefix(name, "KARST_SERVICE_") || strings.HasPrefix(name, "KARST_PORT") ||
		strings.HasPrefix(value, "tcp://") || strings.HasPrefix(value, "udp://")
}

// variable turns one variable into a setting; known says that it names an option, or an old one of Kafka's.
func variable(name, value string, readFile func(string) ([]byte, error)) (s setting, known bool, err error) {
	if name == "CLUSTER_ID" || name == "KAFKA_CLUSTER_ID" || name == "KAFKA_KRAFT_CLUSTER_ID" {
		return setting{"karst.cluster.id", value, name}, true, nil
	}
	rest, ok := strings.CutPrefix(name, "KARST_")
	if !ok {
		if rest, ok = strings.CutPrefix(name, "KAFKA_"); !ok {
			return s, false, nil
		}
		rest = strings.TrimPrefix(rest, "CFG_")
	}
	if option, ok := optionOf(rest); ok {
		return setting{option, value, name}, true, nil
	}
	if base, ok := strings.CutSuffix(rest, "_FILE"); ok {
		if option, ok := optionOf(base); ok {
			b, err := readFile(value)
			if err != nil {
				return s, false, fmt.Errorf("read the file that %s names: %w", name, err)
			}
			return setting{option, strings.TrimRight(string(b), "\r\n"), name}, true, nil
		}
	}
	return setting{spelled(rest, apacheSpelling), value, name}, false, nil
}

// optionOf finds the option that the rest of a variable's name spells. KARST_DATA may stand for KARST_KARST_DATA.
func optionOf(rest string) (string, bool) {
	for _, sp := range []*strings.Replacer{apacheSpelling, confluentSpelling} {
		name := spelled(rest, sp)
		for _, n := range []string{name, "karst." + name} {
			if _, ok := config.Lookup(config.ScopeBroker, n); ok {
				return n, true
			}
			if _, ok := retired(n); ok {
				return n, true
			}
		}
	}
	return "", false
}

// The images agree on a single underscore for a dot, and disagree on the rest.
var (
	apacheSpelling    = strings.NewReplacer("___", "-", "__", "_", "_", ".")
	confluentSpelling = strings.NewReplacer("___", "_", "__", "-", "_", ".")
)

func spelled(rest string, r *strings.Replacer) string { return strings.ToLower(r.Replace(rest)) }
