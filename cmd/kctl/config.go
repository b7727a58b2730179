package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/karstlog/karst/config"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"
)

func configCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:  "config",
		Usage: "read, change, explain and check settings of topics, brokers and groups",
		Subcommands: []*cli.Command{
			configGetCommand(s),
			configSetCommand(s),
			configUnsetCommand(s),
			configListCommand(s),
			configExplainCommand(s),
			configValidateCommand(s),
		},
	}
}

// resource is whose settings they are.
type resource struct {
	kind kmsg.ConfigResourceType
	name string // a broker's is empty for the default of all brokers
}

var resourceKinds = []struct {
	word  string
	kind  kmsg.ConfigResourceType
	scope config.Scope
}{
	{"topic", kmsg.ConfigResourceTypeTopic, config.ScopeTopic},
	{"broker", kmsg.ConfigResourceTypeBroker, config.ScopeBroker},
	{"group", kmsg.ConfigResourceTypeGroupConfig, config.ScopeGroup},
	{"client-metrics", kmsg.ConfigResourceTypeClientMetrics, config.ScopeClientMetrics},
}

const resourceUsage = "topic NAME | broker ID | broker default | group NAME | client-metrics NAME"

// parseResource takes "topic orders", "broker 1" or "broker default" off the arguments.
func parseResource(args []string) (resource, []string, error) {
	if len(args) < 2 {
		return resource{}, nil, usage("whose settings? %s", resourceUsage)
	}
	var words []string
	for _, k := range resourceKinds {
		words = append(words, k.word)
		if args[0] != k.word && args[0] != k.word+"s" {
			continue
		}
		r := resource{k.kind, args[1]}
		if k.kind == kmsg.ConfigResourceTypeBroker {
			if r.name == "default" {
				r.name = ""
			} else if _, err := strconv.ParseInt(r.name, 10, 32); err != nil {
				return r, nil, usage("%q is no broker id; broker default is the setting of all brokers", r.name)
			}
		}
		return r, args[2:], nil
	}
	return resource{}, nil, usage("%q is nothing with settings%s; want %s", args[0], didYouMean(args[0], words), resourceUsage)
}

func (r resource) String() string {
	for _, k := range resourceKinds {
		if k.kind == r.kind {
			return k.word + " " + first(r.name, "default")
		}
	}
	return r.name
}

func (r resource) scope() config.Scope {
	for _, k := range resourceKinds {
		if k.kind == r.kind {
			return k.scope
		}
	}
	return 0
}

// source is how DescribeConfigs names a value that was set on the resource itself.
func (r resource) source() kmsg.ConfigSource {
	switch {
	case r.kind == kmsg.ConfigResourceTypeTopic:
		return kmsg.ConfigSourceDynamicTopicConfig
	case r.kind == kmsg.ConfigResourceTypeBroker && r.name == "":
		return kmsg.ConfigSourceDynamicDefaultBrokerConfig
	case r.kind == kmsg.ConfigResourceTypeBroker:
		return kmsg.ConfigSourceDynamicBrokerConfig
	case r.kind == kmsg.ConfigResourceTypeGroupConfig:
		return kmsg.ConfigSourceGroupConfig
	}
	return kmsg.ConfigSourceClientMetricsConfig
}

// describe asks for the named settings, or for all when keys is nil.
func (r resource) describe(keys []string) *kmsg.DescribeConfigsRequest {
	req := kmsg.NewPtrDescribeConfigsRequest()
	res := kmsg.NewDescribeConfigsRequestResource()
	res.ResourceType, res.ResourceName, res.ConfigNames = r.kind, r.name, keys
	req.Resources = append(req.Resources, res)
	return req
}

// configRow is a setting as a broker shows it.
type configRow struct {
	resource  resource
	key       string
	value     *string // nil: null, or hidden because it is secret
	source    kmsg.ConfigSource
	readOnly  bool
	sensitive bool
}

// sourceName is a source in the words of this program.
func sourceName(s kmsg.ConfigSource) string {
	switch s {
	case kmsg.ConfigSourceDefaultConfig:
		return "default"
	case kmsg.ConfigSourceStaticBrokerConfig:
		return "static"
	case kmsg.ConfigSourceDynamicDefaultBrokerConfig:
		return "dynamic-default"
	case kmsg.ConfigSourceDynamicBrokerConfig, kmsg.ConfigSourceDynamicTopicConfig,
		kmsg.ConfigSourceDynamicBrokerLoggerConfig, kmsg.ConfigSourceClientMetricsConfig, kmsg.ConfigSourceGroupConfig:
		return "dynamic"
	}
	return "unknown"
}

func configColumns() []column[configRow] {
	return []column[configRow]{
		{key: "key", doc: "name of the setting", value: func(r configRow) any { return r.key }},
		{key: "value", doc: "its value; null when there is none or when it is secret", value: func(r configRow) any { return r.value }, text: func(r configRow) string {
			switch {
			case r.sensitive:
				return "(hidden)"
			case r.value == nil:
				return "(null)"
			case *r.value == "":
				return `""`
			}
			return *r.value
		}},
		{key: "source", doc: "default; static (file, environment, flag); dynamic-default (set for all brokers); dynamic (set on this very thing)", value: func(r configRow) any { return sourceName(r.source) }},
		{key: "read_only", head: "READONLY", doc: "whether it takes a restart to change it", value: func(r configRow) any { return r.readOnly }},
		{key: "sensitive", wide: true, doc: "whether brokers keep the value to themselves", value: func(r configRow) any { return r.sensitive }},
	}
}

// configRows asks for settings. A broker's are asked of that broker.
func (l *link) configRows(ctx context.Context, r resource, keys []string) ([]configRow, error) {
	req := r.describe(keys)
	var resp *kmsg.DescribeConfigsResponse
	if r.kind == kmsg.ConfigResourceTypeBroker && r.name != "" {
		id, _ := strconv.Atoi(r.name)
		ids, err := l.brokers(ctx)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(ids, int32(id)) {
			return nil, &failure{status: exitNotFound, text: fmt.Sprintf("there is no live broker %d; the live ones are %s", id, joinInts(ids))}
		}
		kresp, err := l.cl.Broker(id).RetriableRequest(ctx, req)
		if err != nil {
			return nil, err
		}
		resp = kresp.(*kmsg.DescribeConfigsResponse)
	} else {
		var err error
		if resp, err = req.RequestWith(ctx, l.cl); err != nil {
			return nil, err
		}
	}
	out, err := rowsOf(resp)
	if err != nil {
		return nil, about(r.String(), err)
	}
	slices.SortFunc(out, func(a, b configRow) int { return strings.Compare(a.key, b.key) })
	return out, nil
}

// rowsOf flattens a response.
func rowsOf(resp *kmsg.DescribeConfigsResponse) ([]configRow, error) {
	var out []configRow
	for _, res := range resp.Resources {
		if err := kafkaError(res.ErrorCode, res.ErrorMessage); err != nil {
			return nil, err
		}
		for _, c := range res.Configs {
			out = append(out, configRow{resource{res.ResourceType, res.ResourceName}, c.Name, c.Value, c.Source, c.ReadOnly, c.IsSensitive})
		}
	}
	return out, nil
}

// changedOnly keeps what was set on the resource itself.
func changedOnly(rows []configRow) []configRow {
	return slices.DeleteFunc(slices.Clone(rows), func(r configRow) bool { return r.source != r.resource.source() })
}

func configGetCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "get",
		Usage:     "show settings and where each comes from",
		ArgsUsage: resourceUsage + "  [KEY...]",
		Description: describe("",
			"kctl config get topic orders",
			"kctl config get topic orders retention.ms -o go='{{.value}}'",
			"kctl config get broker 1 --changed",
			"kctl config get broker default"),
		Flags: flagSet([]cli.Flag{
			&cli.BoolFlag{Name: "all", Usage: "also the defaults (the default)"},
			&cli.BoolFlag{Name: "changed", Usage: "only what somebody set: no defaults"},
		}, outputFlags(), clientFlags()),
		Action: listing(s, configColumns(), s.configGet),
	}
}

func (s *session) configGet(c *cli.Context) ([]configRow, error) {
	r, keys, err := parseResource(c.Args().Slice())
	if err != nil {
		return nil, err
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	if len(keys) == 0 {
		keys = nil // an empty list asks for nothing
	}
	rows, err := l.configRows(ctx, r, keys)
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if !slices.ContainsFunc(rows, func(row configRow) bool { return row.key == k }) {
			return rows, &failure{status: exitNotFound, text: fmt.Sprintf("%s has no setting %s%s", r, k, didYouMean(k, optionNames(r.scope())))}
		}
	}
	if c.Bool("changed") {
		rows = slices.DeleteFunc(rows, func(r configRow) bool { return r.source == kmsg.ConfigSourceDefaultConfig })
	}
	return rows, nil
}

// alteration is one setting that is changed.
type alteration struct {
	resource   resource
	key        string
	from, to   *string
	op         kmsg.IncrementalAlterConfigOp
	statusWord string
}

func alterationColumns() []column[alteration] {
	show := func(v *string) string {
		if v == nil {
			return "(default)"
		}
		return *v
	}
	return []column[alteration]{
		{key: "resource", doc: "whose setting it is", value: func(a alteration) any { return a.resource.String() }},
		{key: "key", doc: "name of the setting", value: func(a alteration) any { return a.key }},
		{key: "from", doc: "value before; null when it was not set here", value: func(a alteration) any { return a.from }, text: func(a alteration) string { return show(a.from) }},
		{key: "to", doc: "value after; null when it is not set here any more", value: func(a alteration) any { return a.to }, text: func(a alteration) string { return show(a.to) }},
		{key: "status", doc: "done; planned with --dry-run", value: func(a alteration) any { return a.statusWord }},
	}
}

func configSetCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "set",
		Usage:     "change settings",
		ArgsUsage: resourceUsage + "  KEY=VALUE...",
		Description: describe("Settings that are not named stay as they are. Values may carry units.",
			"kctl config set topic orders retention.ms=7d max.message.bytes=2MiB",
			"kctl config set broker default log.retention.ms=3d --dry-run",
			"kctl config set broker 1 log.cleaner.threads=2"),
		Flags:  flagSet([]cli.Flag{dryRunFlag(), noWaitFlag()}, outputFlags(), clientFlags()),
		Action: listing(s, alterationColumns(), s.configSet),
	}
}

func (s *session) configSet(c *cli.Context) ([]alteration, error) {
	r, args, err := parseResource(c.Args().Slice())
	if err != nil {
		return nil, err
	}
	pairs, err := configPairs(args)
	if err != nil {
		return nil, err
	}
	if len(pairs) == 0 {
		return nil, usage("missing KEY=VALUE")
	}
	var changes []alteration
	for _, p := range pairs {
		v := canonical(r.scope(), p.key, p.value.(string))
		changes = append(changes, alteration{resource: r, key: p.key, to: &v, op: kmsg.IncrementalAlterConfigOpSet})
	}
	return s.alter(c, changes)
}

func configUnsetCommand(s *session) *cli.Command {
	return &cli.Command{
		Name:      "unset",
		Usage:     "take settings back to what holds without them",
		ArgsUsage: resourceUsage + "  KEY...",
		Description: describe("",
			"kctl config unset topic orders retention.ms",
			"kctl config unset broker default log.retention.ms --dry-run"),
		Flags:  flagSet([]cli.Flag{dryRunFlag(), noWaitFlag()}, outputFlags(), clientFlags()),
		Action: listing(s, alterationColumns(), s.configUnset),
	}
}

func (s *session) configUnset(c *cli.Context) ([]alteration, error) {
	r, keys, err := parseResource(c.Args().Slice())
	if err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, usage("missing KEY")
	}
	var changes []alteration
	for _, k := range keys {
		changes = append(changes, alteration{resource: r, key: k, op: kmsg.IncrementalAlterConfigOpDelete})
	}
	return s.alter(c, changes)
}

// alter sends changes to settings of one or more resources and waits until they show.
func (s *session) alter(c *cli.Context, changes []alteration) ([]alteration, error) {
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	dry := c.Bool("dry-run")
	seen := map[resource]bool{}
	for i, a := range changes {
		changes[i].statusWord = status(dry)
		if !seen[a.resource] {
			seen[a.resource] = true
			if err := l.fillOld(ctx, a.resource, changes); err != nil {
				return nil, err
			}
		}
	}
	return l.alterConfigs(ctx, changes, alterOptions{dry: dry, noWait: c.Bool("no-wait")})
}

// alterOptions say how settings are changed: dry only asks whether they could be, noWait does not wait until they show.
type alterOptions struct{ dry, noWait bool }

// alterConfigs changes settings, and returns those of the resources that were not refused.
func (l *link) alterConfigs(ctx context.Context, changes []alteration, o alterOptions) ([]alteration, error) {
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.ValidateOnly = o.dry
	wanted := map[resource]map[string]*string{}
	var order []resource
	for _, a := range changes {
		if wanted[a.resource] == nil {
			wanted[a.resource] = map[string]*string{}
			order = append(order, a.resource)
			req.Resources = append(req.Resources, alterResource(a.resource, changes))
		}
		wanted[a.resource][a.key] = a.to
	}
	resp, err := req.RequestWith(ctx, l.cl)
	if err != nil {
		return nil, err
	}
	failed := map[resource]bool{}
	err = each(resp.Resources, func(r kmsg.IncrementalAlterConfigsResponseResource) error {
		if r.ErrorCode == 0 {
			return nil
		}
		res := resource{r.ResourceType, r.ResourceName}
		failed[res] = true
		return about(res.String(), nameHint(kafkaError(r.ErrorCode, r.ErrorMessage), res.scope(), sortedKeys(wanted[res])))
	})
	done := slices.DeleteFunc(slices.Clone(changes), func(a alteration) bool { return failed[a.resource] })
	if o.dry || o.noWait {
		return done, err
	}
	for _, r := range order {
		if failed[r] {
			continue
		}
		if waitErr := l.waitForConfigs(ctx, r, wanted[r]); waitErr != nil && err == nil {
			err = waitErr
		}
	}
	return done, err
}

func alterResource(r resource, changes []alteration) kmsg.IncrementalAlterConfigsRequestResource {
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = r.kind, r.name
	for _, a := range changes {
		if a.resource == r {
			cfg := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
			cfg.Name, cfg.Op, cfg.Value = a.key, a.op, a.to
			res.Configs = append(res.Configs, cfg)
		}
	}
	return res
}

// fillOld notes the values before the change. Whoever may alter but not describe simply does not see them.
func (l *link) fillOld(ctx context.Context, r resource, changes []alteration) error {
	rows, err := l.configRows(ctx, r, nil)
	if err != nil {
		if st, _ := judge(err); st == exitDenied {
			return nil
		}
		return err
	}
	for i := range changes {
		for _, row := range rows {
			if changes[i].resource == r && row.key == changes[i].key && row.source == r.source() {
				changes[i].from = row.value
			}
		}
	}
	return nil
}

// nameHint adds the name that was perhaps meant.
func nameHint(err error, scope config.Scope, keys []string) error {
	for _, k := range keys {
		if _, known := config.Lookup(scope, k); !known && scope != 0 {
			if near := config.Suggest(scope, k); near != "" {
				return &failure{err: err, advice: fmt.Sprintf("%s is not known; did you mean %s?", k, near)}
			}
		}
	}
	return err
}

func configListCommand(s *session) *cli.Command {
	cols := slices.Concat([]column[configRow]{
		{key: "resource", doc: "whose setting it is", value: func(r configRow) any { return r.resource.String() }},
	}, configColumns())
	return &cli.Command{
		Name:  "list",
		Usage: "list every setting in the cluster that is not a default",
		Description: describe("",
			"kctl config list",
			"kctl config list -o jsonl"),
		Flags:  flagSet(nil, outputFlags(), clientFlags()),
		Action: listing(s, cols, s.configList),
	}
}

func (s *session) configList(c *cli.Context) ([]configRow, error) {
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	topics, err := l.topics(ctx, nil, "", true)
	if err != nil {
		return nil, err
	}
	ids, err := l.brokers(ctx)
	if err != nil {
		return nil, err
	}
	req := resource{kind: kmsg.ConfigResourceTypeBroker}.describe(nil)
	for _, t := range topics {
		req.Resources = append(req.Resources, resource{kmsg.ConfigResourceTypeTopic, *t.Topic}.describe(nil).Resources...)
	}
	resp, err := req.RequestWith(ctx, l.cl)
	if err != nil {
		return nil, err
	}
	out, err := rowsOf(resp)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		rows, err := l.configRows(ctx, resource{kmsg.ConfigResourceTypeBroker, fmt.Sprint(id)}, nil)
		if err != nil {
			return nil, err
		}
		out = append(out, rows...)
	}
	return changedOnly(out), nil
}

func optionNames(scope config.Scope) []string {
	var names []string
	for _, o := range config.Options(scope) {
		names = append(names, o.Name)
	}
	return names
}
