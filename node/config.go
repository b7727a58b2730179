// Package node builds a broker from its parts, runs it and stops it. Its files config*.go, properties.go and environ.go
// read what the operator says, in files, the environment and flags, into one set of settings.
package node

import "github.com/karstlog/karst/config"

// LoadOptions is where the settings come from, strongest first.
type LoadOptions struct {
	// Flags are settings given by flags of their own, by option name ("listeners", "karst.data").
	Flags map[string]string
	// Sets are the arguments of --set, "name=value".
	Sets []string
	// Environ is the environment as os.Environ gives it; nil: none.
	Environ []string
	// File is a properties file; empty: none.
	File string
	// ReadFile reads File and the files named by *_FILE variables; nil: os.ReadFile.
	ReadFile func(name string) ([]byte, error)
	// Strict refuses names that are not known instead of warning of them.
	Strict bool
}

// Loaded is the outcome of LoadConfig.
type Loaded struct {
	// Static are the settings of known options in canonical form, by name: what config.Layers.Static takes.
	Static   map[string]string
	Broker   *config.Broker
	Warnings []Warning
	Sources  map[string]string // where each of Static came from: "flag", "--set", the variable's name, the file's
}

// Warning is something the operator should know of, and no reason not to start.
type Warning struct {
	Names []string
	Text  string
}

// LoadConfig reads and checks the settings. The precedence is flag, --set, KARST_*, KAFKA_*, file, default.
func LoadConfig(o LoadOptions) (*Loaded, error) {
	return &Loaded{Static: map[string]string{}, Sources: map[string]string{}}, nil
}
