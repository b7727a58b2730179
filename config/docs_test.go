package config

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/configuration.md")

const docsFile = "../docs/configuration.md"

// docs/configuration.md is made from the table: go test ./config -run Docs -update.
func TestDocsListEveryOption(t *testing.T) {
	want := docs()
	if *update {
		if err := os.WriteFile(docsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("run: go test ./config -run Docs -update (-table +file)\n%s", d)
	}
}

func docs() string {
	var b strings.Builder
	b.WriteString(docsIntro)
	section(&b, "Topic options", "Set with a topic (`kctl topic create --config`, `kctl topic alter`). The default comes from the broker option named"+
		" last in a row, where there is one.", Options(ScopeTopic))
	var own, kafka, later, none []Option
	for _, o := range Options(ScopeBroker) {
		switch {
		case strings.HasPrefix(o.Name, "karst."):
			own = append(own, o)
		case o.Treatment == Honour:
			kafka = append(kafka, o)
		case o.Treatment == Later:
			later = append(later, o)
		default:
			none = append(none, o)
		}
	}
	section(&b, "Broker options of Karst", "", own)
	section(&b, "Broker options of Kafka", "They mean what they mean in Kafka.", kafka)
	section(&b, "Broker options that take effect later", "They are checked, kept and shown, and the broker warns of them"+
		" at start. What they wait for is not served yet.", later)
	section(&b, "Group options", "", Options(ScopeGroup))
	section(&b, "Client metrics subscriptions", "Made, listed and taken back with `kctl config set client-metrics NAME`, `kafka-client-metrics.sh` or"+
		" `kafka-configs.sh --entity-type client-metrics`. They are checked and kept with the metadata. No client pushes anything yet: as Apache Kafka"+
		" without a telemetry receiver, the broker does not offer GetTelemetrySubscriptions and PushTelemetry.", Options(ScopeClientMetrics))
	b.WriteString("## Accepted without effect\n\nThese are Kafka's too. They are checked and shown by `kctl config`, and the" +
		" broker names those that are set once at start.\n\n| option | why |\n|---|---|\n")
	for _, o := range none {
		b.WriteString("| `" + o.Name + "` | " + o.Reason + " |\n")
	}
	b.WriteString("\nThe following are accepted in a file and not shown.\n\n| option | why |\n|---|---|\n")
	for _, o := range table().all {
		if o.Scope == ScopeBroker && o.Treatment == Hidden {
			b.WriteString("| `" + o.Name + "` | " + o.Reason + " |\n")
		}
	}
	b.WriteString("\nSo are `zookeeper.*`, `confluent.*`, `log4j.*` and options that Kafka has removed.\n")
	return b.String()
}

func section(b *strings.Builder, title, text string, list []Option) {
	b.WriteString("## " + title + "\n\n")
	if text != "" {
		b.WriteString(text + "\n\n")
	}
	b.WriteString("| option | type | default | values | change | what it does |\n|---|---|---|---|---|---|\n")
	for _, o := range list {
		def := "`" + o.Default + "`"
		switch {
		case o.Null:
			def = "–"
		case o.Default == "":
			def = "empty"
		}
		doc := o.Doc
		switch {
		case o.Treatment == Later:
			doc += " *With " + o.Reason + ".*"
		case o.Sensitive:
			doc += " Secret."
		}
		if o.Scope != ScopeBroker && len(o.Synonyms) > 0 {
			doc += " (`" + strings.Join(o.Synonyms, "`, `") + "`)"
		}
		b.WriteString("| `" + o.Name + "` | " + strings.ToLower(o.Type.String()) + " | " + def + " | " + valid(o) + " | " +
			change(o) + " | " + doc + " |\n")
	}
	b.WriteString("\n")
}

func valid(o Option) string {
	if o.Valid == "" {
		return ""
	}
	return "`" + o.Valid + "`"
}

func change(o Option) string {
	switch o.Update {
	case ReadOnly:
		return "restart"
	case PerBroker:
		return "per broker"
	case ClusterWide:
		return "at run time"
	}
	return "at run time"
}

const docsIntro = `# Configuration

<!-- Made from the table in config/options.tsv: go test ./config -run Docs -update -->

Karst knows the options of Apache Kafka 4.4 by their names, types, defaults and units, and adds its own, which begin with
` + "`karst.`" + `. A ` + "`server.properties`" + ` made for Kafka works as it is.

## Where settings come from

The first of these that names an option wins:

1. a flag of its own (` + "`--listen`, `--data`, `--id`" + ` ...),
2. ` + "`--set name=value`" + `,
3. the environment variable ` + "`KARST_<NAME>`" + `,
4. the environment variable ` + "`KAFKA_<NAME>`" + `, as the images of Apache, Confluent and Bitnami (` + "`KAFKA_CFG_<NAME>`" + `) have it,
5. the file given with ` + "`--config`" + `, in Java's properties format,
6. the default.

What is changed at run time (` + "`kctl config set`" + `) wins over all of them, except for listeners and directories. A topic's own
settings win over the broker's.

In a variable's name a dot is ` + "`_`" + `, an underscore ` + "`__`" + `, a dash ` + "`___`" + `: ` + "`KARST_LOG_RETENTION_MS`" + `. Options that begin with
` + "`karst.`" + ` may leave that out: ` + "`KARST_DATA`" + `. A variable that ends in ` + "`_FILE`" + ` names a file with the value, for secrets. An
empty variable counts as not set. ` + "`CLUSTER_ID`" + ` is read as ` + "`karst.cluster.id`" + `. Variables under ` + "`KAFKA_`" + ` that are no options,
such as ` + "`KAFKA_HEAP_OPTS`" + `, are ignored.

A stronger source also takes away what a weaker one says by another name: ` + "`log.retention.hours`" + ` in the environment wins
over ` + "`log.retention.ms`" + ` in the file. Within one source the finer unit wins.

Numbers may carry a unit where they have one: ` + "`7d`, `90s`, `1.5h`, `512MiB`, `1GiB`" + ` (1 KiB is 1024 bytes). They are kept and
answered as the bare number that Kafka uses.

## What stops a start

- a value that is wrong for its option,
- settings that cannot all be true, such as a listener that is advertised and not there,
- a listener with TLS or SASL: this build does not serve them yet, and does not open them without,
- a class that decides who may do what (` + "`authorizer.class.name`, `principal.builder.class`" + `): its rules would be lost silently,
- with ` + "`--strict-config`" + ` a name that is not known. Without it the broker warns, and says which name is near.

` + "`kctl config validate FILE`" + ` says what becomes of each line, ` + "`kctl serve --dry-run`" + ` prints the settings in force.

`
