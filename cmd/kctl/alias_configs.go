package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	javaproperties "github.com/karstlog/karst/internal/properties"
)

func configsAlias(*session) alias {
	own := []aliasOption{
		{"alter", switchOption, "change settings"},
		{"describe", switchOption, "list settings"},
		{"all", switchOption, "with --describe also the defaults"},
		{"entity-type", valueOption, "`TYPE`: topics, brokers, broker-loggers, groups, client-metrics, clients, users, ips; twice for users and clients"},
		{"entity-name", valueOption, "`NAME` of the entity"},
		{"entity-default", switchOption, "the default of the entity type"},
		{"add-config", valueOption, "`KEY=VALUE,KEY=[A,B]` to set"},
		{"add-config-file", valueOption, "properties `FILE` of settings to set"},
		{"delete-config", valueOption, "`KEY,KEY` to take back"},
		{"bootstrap-controller", valueOption, "`HOST:PORT`, as --bootstrap-server"},
		{"force", switchOption, "accepted without effect"},
	}
	for _, e := range entityOptions {
		own = append(own, aliasOption{e.option, valueOption, "`NAME`, short for --entity-type " + e.kind + " --entity-name"})
		if e.byDefault {
			own = append(own, aliasOption{e.option + "-defaults", switchOption, "short for --entity-type " + e.kind + " --entity-default"})
		}
	}
	return alias{
		name: "kafka-configs", usage: "as Kafka's tool: describe and alter settings of topics, brokers, groups; quotas", failed: "Error while executing config command",
		options: commonOptions(own...),
		examples: []string{
			"kctl kafka-configs --bootstrap-server localhost:9092 --alter --entity-type topics --entity-name orders --add-config retention.ms=3600000",
			"kctl kafka-configs --bootstrap-server localhost:9092 --describe --broker-defaults",
		},
		run: runConfigs,
	}
}

var entityOptions = []struct {
	option, kind string
	byDefault    bool
}{
	{"topic", "topics", false},
	{"broker", "brokers", true},
	{"broker-logger", "broker-loggers", false},
	{"client", "clients", true},
	{"user", "users", true},
	{"ip", "ips", true},
	{"group", "groups", false},
	{"client-metrics", "client-metrics", false},
}

// entity is what settings or quotas are of; without a name, the default of its kind when isDefault, else all of the kind.
type entity struct {
	kind, name string
	named      bool
	isDefault  bool
}

// entities reads them from the long and the short options.
func (a *aliasCall) entities() ([]entity, error) {
	var out []entity
	names := a.values["entity-name"]
	for _, kind := range a.values["entity-type"] {
		e := entity{kind: kind}
		if len(names) > 0 {
			e.name, e.named, names = names[0], true, names[1:]
		} else if a.has("entity-default") {
			e.isDefault = true
		}
		out = append(out, e)
	}
	for _, o := range entityOptions {
		for _, name := range a.values[o.option] {
			out = append(out, entity{kind: o.kind, name: name, named: true})
		}
		if a.has(o.option + "-defaults") {
			out = append(out, entity{kind: o.kind, isDefault: true})
		}
	}
	if len(out) == 0 {
		return nil, usage("At least one entity type must be specified: --entity-type")
	}
	for _, e := range out {
		if !slices.ContainsFunc(entityOptions, func(o struct {
			option, kind string
			byDefault    bool
		},
		) bool {
			return o.kind == e.kind
		}) {
			return nil, usage("Invalid entity type %s", e.kind)
		}
	}
	return out, nil
}

func (e entity) quota() bool { return e.kind == "clients" || e.kind == "users" || e.kind == "ips" }

func runConfigs(a *aliasCall) error {
	action, err := a.only("alter", "describe")
	if err != nil {
		return err
	}
	es, err := a.entities()
	if err != nil {
		return err
	}
	if server := a.value("bootstrap-controller"); server != "" {
		a.values["bootstrap-server"] = []string{server}
	}
	l, ctx, hangUp, err := a.open()
	if err != nil {
		return err
	}
	defer hangUp()
	switch {
	case es[0].quota() && action == "alter":
		return a.alterQuotas(ctx, l, es)
	case es[0].quota():
		return a.describeQuotas(ctx, l, es)
	case action == "alter":
		return a.alterEntity(ctx, l, es[0])
	}
	return a.describeEntity(ctx, l, es[0])
}

func (e entity) resourceType() kmsg.ConfigResourceType {
	switch e.kind {
	case "topics":
		return kmsg.ConfigResourceTypeTopic
	case "brokers":
		return kmsg.ConfigResourceTypeBroker
	case "broker-loggers":
		return kmsg.ConfigResourceTypeBrokerLogger
	case "groups":
		return kmsg.ConfigResourceTypeGroupConfig
	}
	return kmsg.ConfigResourceTypeClientMetrics
}

// changes reads --add-config, --add-config-file and --delete-config.
func (a *aliasCall) changes() (set map[string]string, unset []string, err error) {
	set = map[string]string{}
	if file := a.value("add-config-file"); file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, usage("--add-config-file: %s", err)
		}
		lines, err := javaproperties.Parse(string(b))
		if err != nil {
			return nil, nil, usage("--add-config-file %s: %s", file, err)
		}
		for _, p := range lines {
			set[p.Name] = p.Value
		}
	}
	for _, text := range a.values["add-config"] {
		for _, pair := range splitOutsideBrackets(text) {
			key, value, ok := strings.Cut(pair, "=")
			if !ok {
				return nil, nil, usage("Invalid entity config: all configs to be added must be in the format \"key=val\" or \"key=[val1,val2]\"")
			}
			set[strings.TrimSpace(key)] = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(value), "["), "]")
		}
	}
	for _, text := range a.values["delete-config"] {
		for _, key := range strings.Split(text, ",") {
			if key = strings.TrimSpace(key); key != "" {
				unset = append(unset, key)
			}
		}
	}
	if len(set)+len(unset) == 0 {
		return nil, nil, usage("At least one of --add-config, --add-config-file, or --delete-config must be specified with --alter")
	}
	return set, unset, nil
}

// splitOutsideBrackets splits at commas that are not in [..].
func splitOutsideBrackets(s string) []string {
	var out []string
	depth, start := 0, 0
	for i, r := range s {
		switch {
		case r == '[':
			depth++
		case r == ']':
			depth--
		case r == ',' && depth == 0:
			out = append(out, s[start:i])
			start = i + 1
		}
	}
	return append(out, s[start:])
}

func (a *aliasCall) alterEntity(ctx context.Context, l *link, e entity) error {
	if !e.named && !e.isDefault {
		return usage("an entity name must be specified with --alter of %s", e.kind)
	}
	set, unset, err := a.changes()
	if err != nil {
		return err
	}
	r := resource{e.resourceType(), e.name}
	var changes []alteration
	want := map[string]*string{}
	for _, k := range slices.Sorted(maps.Keys(set)) {
		v := set[k]
		changes = append(changes, alteration{resource: r, key: k, to: &v, op: kmsg.IncrementalAlterConfigOpSet})
		shown := canonical(r.scope(), k, v)
		want[k] = &shown
	}
	for _, k := range unset {
		changes = append(changes, alteration{resource: r, key: k, op: kmsg.IncrementalAlterConfigOpDelete})
		want[k] = nil
	}
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Resources = append(req.Resources, alterResource(r, changes))
	resp, err := l.askAbout(ctx, r, req)
	if err != nil {
		return err
	}
	for _, res := range resp.(*kmsg.IncrementalAlterConfigsResponse).Resources {
		if res.ErrorCode != 0 {
			return kafkaError(res.ErrorCode, res.ErrorMessage)
		}
	}
	if e.isDefault {
		a.print("Completed updating default config for %s in the cluster.", e.kind)
	} else {
		a.print("Completed updating config for %s %s.", strings.TrimSuffix(e.kind, "s"), e.name)
	}
	if r.kind == kmsg.ConfigResourceTypeBrokerLogger {
		return nil
	}
	return l.waitForConfigs(ctx, r, want)
}

// askAbout sends a request about a broker's own settings to that broker.
func (l *link) askAbout(ctx context.Context, r resource, req kmsg.Request) (kmsg.Response, error) {
	own := r.kind == kmsg.ConfigResourceTypeBroker || r.kind == kmsg.ConfigResourceTypeBrokerLogger
	id, err := strconv.Atoi(r.name)
	if !own || r.name == "" {
		return l.cl.Request(ctx, req)
	}
	if err != nil {
		return nil, says("The entity name for %s must be a valid integer broker id, found: %s", "brokers", r.name)
	}
	live, err := l.brokers(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(live, int32(id)) {
		return nil, fmt.Errorf("broker %d is not alive; the live ones are %s", id, joinInts(live))
	}
	return l.cl.Broker(id).RetriableRequest(ctx, req)
}

func (a *aliasCall) describeEntity(ctx context.Context, l *link, e entity) error {
	names := []string{e.name}
	if !e.named && !e.isDefault {
		var err error
		if names, err = l.entityNames(ctx, e); err != nil {
			return err
		}
		if e.kind == "brokers" {
			names = append(names, "")
		}
	}
	for _, name := range names {
		if err := a.describeOne(ctx, l, entity{kind: e.kind, name: name, named: name != "", isDefault: name == ""}); err != nil {
			return err
		}
	}
	return nil
}

func (l *link) entityNames(ctx context.Context, e entity) ([]string, error) {
	var names []string
	switch e.kind {
	case "topics":
		topics, err := l.topics(ctx, nil, "", true)
		for _, t := range topics {
			names = append(names, *t.Topic)
		}
		return names, err
	case "brokers", "broker-loggers":
		ids, err := l.brokers(ctx)
		for _, id := range ids {
			names = append(names, fmt.Sprint(id))
		}
		return names, err
	}
	req := kmsg.NewPtrListConfigResourcesRequest()
	req.ResourceTypes = []int8{int8(e.resourceType())}
	resp, err := req.RequestWith(ctx, l.cl)
	if err != nil {
		return nil, err
	}
	for _, r := range resp.ConfigResources {
		if r.Type == int8(e.resourceType()) {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

func (a *aliasCall) describeOne(ctx context.Context, l *link, e entity) error {
	r := resource{e.resourceType(), e.name}
	req := r.describe(nil)
	req.IncludeSynonyms = true
	kresp, err := l.askAbout(ctx, r, req)
	if err != nil {
		return err
	}
	what := "Dynamic"
	if a.has("all") {
		what = "All"
	}
	if e.isDefault {
		a.print("Default configs for %s in the cluster are:", e.kind)
	} else {
		a.print("%s configs for %s %s are:", what, strings.TrimSuffix(e.kind, "s"), e.name)
	}
	for _, res := range kresp.(*kmsg.DescribeConfigsResponse).Resources {
		if res.ErrorCode != 0 {
			return kafkaError(res.ErrorCode, res.ErrorMessage)
		}
		slices.SortFunc(res.Configs, func(x, y kmsg.DescribeConfigsResponseResourceConfig) int { return strings.Compare(x.Name, y.Name) })
		for _, c := range res.Configs {
			if a.has("all") || c.Source == r.source() || e.kind == "broker-loggers" {
				a.print("  %s=%s sensitive=%v synonyms={%s}", c.Name, orNull(c.Value), c.IsSensitive, synonymsText(c))
			}
		}
	}
	return nil
}

func orNull(s *string) string {
	if s == nil {
		return "null"
	}
	return *s
}

func synonymsText(c kmsg.DescribeConfigsResponseResourceConfig) string {
	var parts []string
	for _, s := range c.ConfigSynonyms {
		parts = append(parts, fmt.Sprintf("%s:%s=%s", strings.ToUpper(kafkaSource(s.Source)), s.Name, orNull(s.Value)))
	}
	return strings.Join(parts, ", ")
}

func kafkaSource(s kmsg.ConfigSource) string {
	switch s {
	case kmsg.ConfigSourceDynamicTopicConfig:
		return "DYNAMIC_TOPIC_CONFIG"
	case kmsg.ConfigSourceDynamicBrokerConfig:
		return "DYNAMIC_BROKER_CONFIG"
	case kmsg.ConfigSourceDynamicDefaultBrokerConfig:
		return "DYNAMIC_DEFAULT_BROKER_CONFIG"
	case kmsg.ConfigSourceStaticBrokerConfig:
		return "STATIC_BROKER_CONFIG"
	case kmsg.ConfigSourceDefaultConfig:
		return "DEFAULT_CONFIG"
	case kmsg.ConfigSourceDynamicBrokerLoggerConfig:
		return "DYNAMIC_BROKER_LOGGER_CONFIG"
	case kmsg.ConfigSourceClientMetricsConfig:
		return "DYNAMIC_CLIENT_METRICS_CONFIG"
	case kmsg.ConfigSourceGroupConfig:
		return "DYNAMIC_GROUP_CONFIG"
	}
	return "UNKNOWN"
}

// quotaTypes are the entity types of quotas in the protocol's words.
var quotaTypes = map[string]string{"clients": "client-id", "users": "user", "ips": "ip"}

func (a *aliasCall) alterQuotas(ctx context.Context, l *link, es []entity) error {
	set, unset, err := a.changes()
	if err != nil {
		return err
	}
	entry := kadm.AlterClientQuotaEntry{}
	for _, e := range es {
		c := kadm.ClientQuotaEntityComponent{Type: quotaTypes[e.kind]}
		if e.named {
			c.Name = &e.name
		}
		entry.Entity = append(entry.Entity, c)
	}
	for _, k := range slices.Sorted(maps.Keys(set)) {
		v, err := strconv.ParseFloat(set[k], 64)
		if err != nil {
			return says("Cannot parse quota configuration value for %s: %s", k, set[k])
		}
		entry.Ops = append(entry.Ops, kadm.AlterClientQuotaOp{Key: k, Value: v})
	}
	for _, k := range unset {
		entry.Ops = append(entry.Ops, kadm.AlterClientQuotaOp{Key: k, Remove: true})
	}
	resp, err := l.adm.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{entry})
	if err != nil {
		return err
	}
	for _, r := range resp {
		if r.Err != nil {
			return r.Err
		}
	}
	for _, e := range es {
		if e.isDefault {
			a.print("Completed updating default config for %s in the cluster.", e.kind)
		} else {
			a.print("Completed updating config for %s %s.", strings.TrimSuffix(e.kind, "s"), e.name)
		}
	}
	return nil
}

func (a *aliasCall) describeQuotas(ctx context.Context, l *link, es []entity) error {
	var filter []kadm.DescribeClientQuotaComponent
	for _, e := range es {
		c := kadm.DescribeClientQuotaComponent{Type: quotaTypes[e.kind], MatchType: kmsg.QuotasMatchTypeAny}
		switch {
		case e.named:
			c.MatchType, c.MatchName = kmsg.QuotasMatchTypeExact, &e.name
		case e.isDefault:
			c.MatchType = kmsg.QuotasMatchTypeDefault
		}
		filter = append(filter, c)
	}
	found, err := l.adm.DescribeClientQuotas(ctx, true, filter)
	if err != nil {
		return err
	}
	for _, q := range found {
		var who, values []string
		for _, c := range q.Entity {
			if c.Name == nil {
				who = append(who, "the default "+c.Type)
			} else {
				who = append(who, fmt.Sprintf("%s '%s'", c.Type, *c.Name))
			}
		}
		slices.SortFunc(q.Values, func(x, y kadm.ClientQuotaValue) int { return cmp.Compare(x.Key, y.Key) })
		for _, v := range q.Values {
			text := strconv.FormatFloat(v.Value, 'f', -1, 64)
			if !strings.Contains(text, ".") {
				text += ".0"
			}
			values = append(values, v.Key+"="+text)
		}
		a.print("Quota configs for %s are %s", strings.Join(who, ", "), strings.Join(values, ", "))
	}
	return nil
}
