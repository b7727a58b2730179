// Package config knows every option of Karst: name, type, default, bounds, who may change it and when, and what Karst
// does with it. The names, types, defaults and units are those of Apache Kafka 4.4, so that a server.properties file,
// a topic's settings and an admin client's requests mean the same here; options of our own begin with "karst.".
//
// The package is pure. It checks values and resolves layers of settings; reading files, flags and the environment is
// package node's work, answering DescribeConfigs that of package broker.
package config

// Type is how an option's value is written and checked. The numbers are the codes of DescribeConfigs (KIP-569).
type Type int8

// The types in the order of their codes.
const (
	TypeUnknown Type = iota
	TypeBoolean
	TypeString
	TypeInt
	TypeShort
	TypeLong
	TypeDouble
	TypeList
	TypeClass
	TypePassword
)

// String returns Kafka's word for the type, as in the documentation: "INT".
func (t Type) String() string { return typeNames[t] }

var typeNames = [...]string{
	"UNKNOWN", "BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD",
}

// Scope says whose option it is.
type Scope int8

// The scopes. Broker options serve as the default of topic and group options through Option.Synonyms.
const (
	ScopeTopic Scope = iota + 1
	ScopeBroker
	ScopeGroup
	ScopeClientMetrics // a subscription to the metrics of clients (KIP-714)
)

// String returns the word used in the documentation.
func (s Scope) String() string { return scopeNames[s] }

var scopeNames = [...]string{"", "topic", "broker", "group", "client-metrics"}

// Update says where a value may be changed while the broker runs (KIP-226).
type Update int8

// The update modes.
const (
	ReadOnly    Update = iota // file, environment or flag only; needs a restart
	PerBroker                 // for one broker, dynamically
	ClusterWide               // for one broker or for all, dynamically
	PerResource               // for one topic, group or subscription: the resource it belongs to
)

// String returns Kafka's word for the mode.
func (u Update) String() string { return updateNames[u] }

var updateNames = [...]string{"read-only", "per-broker", "cluster-wide", "per-resource"}

// Treatment is what Karst does with an option.
type Treatment int8

const (
	// Honour: it means what it means in Kafka.
	Honour Treatment = iota + 1
	// Later: it is checked, kept and shown, and takes effect once the part named in Option.Reason is served.
	Later
	// Ignore: it is checked, kept and shown, and will not have an effect; Option.Reason says why.
	Ignore
	// Hidden: Kafka's, without a counterpart here (ZooKeeper, KRaft roles, tiered storage, plug-ins). Accepted in a
	// file without effect, not listed, not shown, not settable through the protocol.
	Hidden
)

// String returns the word used in the documentation.
func (t Treatment) String() string { return treatmentNames[t] }

var treatmentNames = [...]string{"", "honoured", "later", "no effect", "hidden"}

// Unit is what a number counts, and so which suffixes its value may carry on input ("7d", "512MiB").
type Unit int8

// The units. A value is always kept and answered as a bare number in this unit.
const (
	NoUnit Unit = iota
	Bytes
	Milliseconds
	Seconds
	Minutes
	Hours
)

// Option is one row of the table. Options are values; nothing in them may be changed.
type Option struct {
	Name  string
	Type  Type
	Unit  Unit
	Scope Scope
	// Default is the value when nothing is set anywhere, as DescribeConfigs writes it. Null: there is none.
	Default string
	Null    bool
	// Valid describes the accepted values as Kafka's documentation does, "[0,...]" for example; empty: any of the type.
	Valid  string
	Update Update
	// Synonyms are the broker options that give a topic or group option its default, and for a broker option the names
	// (its own among them) that say the same in other units. Within one layer the first that is set wins.
	Synonyms []string
	// Sensitive values leave this process nowhere: not in DescribeConfigs, logs or reports.
	Sensitive bool
	Treatment Treatment
	Reason    string // with Later: what it waits for; with Ignore and Hidden: why it has no effect
	Doc       string // one sentence

	check checker
}
