package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"

	javaproperties "github.com/karstlog/karst/internal/properties"
)

const defaultBootstrap = "localhost:9092"

func clientFlags() []cli.Flag {
	const where = "Connection"
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "bootstrap-server", Aliases: []string{"b"}, Category: where, Usage: "`HOST:PORT` of a broker; repeat it or separate by commas (default: KCTL_BOOTSTRAP_SERVER, else localhost:9092)"},
		&cli.StringSliceFlag{Name: "property", Aliases: []string{"X"}, Category: where, Usage: "`KEY=VALUE`: a client property of Kafka or librdkafka, such as security.protocol=SASL_SSL or sasl.password=@FILE"},
		&cli.StringFlag{Name: "command-config", Category: where, Usage: "`FILE` of client properties, as Kafka's own tools take it (default: KCTL_COMMAND_CONFIG)"},
		&cli.StringFlag{Name: "profile", Category: where, Usage: "the cluster that kctl profile calls `NAME` (default: KCTL_PROFILE, else the current one)"},
		&cli.StringFlag{Name: "timeout", Category: where, Usage: "`DURATION` to wait for brokers, and for a change to be visible (default: 30s)"},
	}
}

// link is a connection to a cluster.
type link struct {
	s       *session
	cl      *kgo.Client
	adm     *kadm.Client
	seeds   []string
	timeout time.Duration
	props   *properties
	opts    []kgo.Opt // of the client, for more clients like it
	dialer  *dialer
}

// connect opens a client with the command's connection flags and makes sure that a broker answers.
func (s *session) connect(c *cli.Context, extra ...kgo.Opt) (*link, error) {
	l, opts, err := s.prepare(c)
	if err != nil {
		return nil, err
	}
	if len(l.seeds) > 1 {
		opts = append(opts, kgo.SeedBrokers(l.awake(c.Context)...))
	} else {
		l.dialer.trust(l.seeds...)
	}
	if l.cl, err = kgo.NewClient(slices.Concat(opts, extra)...); err != nil {
		return nil, usage("%s", err)
	}
	l.adm = kadm.NewClient(l.cl)
	l.adm.SetTimeoutMillis(int32(l.timeout.Milliseconds()))
	ctx, cancel := context.WithTimeout(c.Context, min(l.timeout, 10*time.Second))
	defer cancel()
	if err := l.cl.Ping(ctx); err != nil {
		l.close()
		return nil, l.unreachable(c.Context, err)
	}
	return l, nil
}

// awake are the brokers among several that answer, so that one that is stopped, whose port still takes connections, holds
// up nothing. All of them, when none does: the error that follows says more.
func (l *link) awake(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, min(l.timeout, probePatience))
	defer cancel()
	answers := make(chan int, len(l.seeds))
	for i, seed := range l.seeds {
		go func() {
			if err := l.dialer.probe(ctx, "tcp", seed); err != nil {
				i = -1
			}
			answers <- i
		}()
	}
	var awake []string
	for range l.seeds {
		if i := <-answers; i >= 0 {
			awake = append(awake, l.seeds[i])
			time.AfterFunc(20*time.Millisecond, cancel) // the others may be as quick
		}
	}
	if len(awake) == 0 {
		l.dialer.trust(l.seeds...) // it may take them longer
		return l.seeds
	}
	return awake
}

// prepare reads the connection flags without opening anything.
func (s *session) prepare(c *cli.Context) (*link, []kgo.Opt, error) {
	l := &link{s: s, timeout: 30 * time.Second}
	var err error
	if t := first(c.String("timeout"), s.getenv("KCTL_TIMEOUT")); t != "" {
		if l.timeout, err = parseDuration(t); err != nil {
			return nil, nil, err
		}
	}
	if l.props, err = s.loadProperties(c); err != nil {
		return nil, nil, err
	}
	if l.seeds, err = s.bootstrap(c, l.props); err != nil {
		return nil, nil, err
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(l.seeds...),
		kgo.MaxVersions(nil), // the newest that both sides know, also of keys that are not Kafka's
		kgo.SoftwareNameAndVersion("kctl", softwareVersion()),
		kgo.ClientID("kctl"),
		kgo.RequestRetries(5),
		kgo.RetryTimeout(l.timeout),
		kgo.RequestTimeoutOverhead(min(l.timeout, 10*time.Second)),
		kgo.MetadataMinAge(100 * time.Millisecond),
	}
	more, d, err := l.props.options(min(l.timeout, 5*time.Second))
	if err != nil {
		return nil, nil, err
	}
	l.opts, l.dialer = append(opts, more...), d
	return l, l.opts, nil
}

// softwareVersion is the version in the form that ApiVersions allows (KIP-511).
func softwareVersion() string {
	v := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}, buildInfo().Version)
	return strings.Trim(v, ".-")
}

func (s *session) bootstrap(c *cli.Context, p *properties) ([]string, error) {
	given := c.StringSlice("bootstrap-server")
	named := strings.Join(p.profile.Bootstrap, ",")
	texts := []string{s.getenv("KCTL_BOOTSTRAP_SERVER"), s.getenv("KCTL_BOOTSTRAP_SERVERS"), p.values["bootstrap.servers"], named, defaultBootstrap}
	if c.String("profile") != "" { // a flag wins over the environment
		texts = []string{named}
	}
	for _, text := range texts {
		if len(given) == 0 && text != "" {
			given = []string{text}
		}
	}
	var seeds []string
	for _, g := range given {
		for _, seed := range strings.Split(g, ",") {
			if seed = strings.TrimSpace(seed); seed == "" {
				continue
			}
			if _, rest, ok := strings.Cut(seed, "://"); ok { // PLAINTEXT://host:port, as a broker prints it
				seed = rest
			}
			seeds = append(seeds, seed)
		}
	}
	if len(seeds) == 0 {
		return nil, usage("--bootstrap-server names no broker")
	}
	return seeds, nil
}

func (l *link) close() { l.cl.Close() }

// limited is the command's context bounded by --timeout.
func (l *link) limited(c *cli.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.Context, l.timeout)
}

func (l *link) unreachable(parent context.Context, err error) error {
	if parent.Err() != nil {
		return parent.Err()
	}
	if status, _ := judgeCause(err); status == exitDenied {
		return err
	}
	advice := "check the port, security.protocol (TLS and SASL, or not) and the firewall"
	if errors.Is(err, syscall.ECONNREFUSED) {
		advice = "is the broker running? `kctl serve` starts one here; -b HOST:PORT names another"
	}
	return &failure{status: exitTimeout, text: "cannot reach " + strings.Join(l.seeds, ", "), err: err, advice: advice}
}

// brokers lists the ids of the live brokers.
func (l *link) brokers(ctx context.Context) ([]int32, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	resp, err := req.RequestWith(ctx, l.cl)
	if err != nil {
		return nil, err
	}
	var ids []int32
	for _, b := range resp.Brokers {
		ids = append(ids, b.NodeID)
	}
	slices.Sort(ids)
	return ids, nil
}

// first returns the first text that is not empty.
func first(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

// loadProperties collects client properties: those of the profile, over them --command-config, over it KCTL_* of the environment, over it -X.
func (s *session) loadProperties(c *cli.Context) (*properties, error) {
	p := &properties{values: map[string]string{}, getenv: s.getenv}
	var err error
	if p.profile, err = s.profile(c); err != nil {
		return nil, err
	}
	maps.Copy(p.values, p.profile.Properties)
	if file := first(c.String("command-config"), s.getenv("KCTL_COMMAND_CONFIG")); file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, usage("--command-config: %s", err)
		}
		lines, err := javaproperties.Parse(string(b))
		if err != nil {
			return nil, usage("--command-config %s: %s", file, err)
		}
		for _, l := range lines {
			p.values[l.Name] = strings.TrimRight(l.Value, " \t") // Java keeps blanks at the end; nobody means them
			if _, known := clientProperties[l.Name]; !known && !foreignProperty(l.Name) {
				s.say("%s %s: unknown property %s%s", s.paint("33", "warning:"), file, l.Name, didYouMean(l.Name, propertyNames()))
			}
		}
	}
	for name := range clientProperties {
		if v := s.getenv("KCTL_" + strings.ToUpper(strings.ReplaceAll(name, ".", "_"))); v != "" {
			p.values[name] = v
		}
	}
	for _, x := range c.StringSlice("property") {
		key, value, ok := strings.Cut(x, "=")
		if !ok {
			return nil, usage("-X %s: want KEY=VALUE", x)
		}
		if _, known := clientProperties[key]; !known && !foreignProperty(key) {
			return nil, usage("-X: unknown client property %s%s", key, didYouMean(key, propertyNames()))
		}
		if strings.HasSuffix(key, "password") && !isReference(value) {
			s.say("%s a password on the command line is visible to others on this machine; use %s=@FILE or %s=env:NAME",
				s.paint("33", "warning:"), key, key)
		}
		p.values[key] = value
	}
	return p, nil
}

func propertyNames() []string { return slices.Sorted(maps.Keys(clientProperties)) }

// configPairs reads repeated -c KEY=VALUE.
func configPairs(given []string) ([]member, error) {
	var out []member
	for _, g := range given {
		key, value, ok := strings.Cut(g, "=")
		if key = strings.TrimSpace(key); !ok || key == "" {
			return nil, usage("%q: want KEY=VALUE", g)
		}
		for _, m := range out {
			if m.key == key {
				return nil, usage("%s is given twice", key)
			}
		}
		out = append(out, member{key, value})
	}
	return out, nil
}

// needArgs checks the number of arguments; most < 0 is any number.
func needArgs(c *cli.Context, least, most int, what string) error {
	switch n := c.Args().Len(); {
	case n < least:
		return usage("missing %s", what)
	case most >= 0 && n > most:
		return usage("too many arguments: %s", strings.Join(c.Args().Slice()[most:], " "))
	}
	return nil
}

// flagSet joins groups of flags.
func flagSet(own []cli.Flag, groups ...[]cli.Flag) []cli.Flag {
	return slices.Concat(append([][]cli.Flag{own}, groups...)...)
}

// each collects the errors of independent things, so that one missing topic does not hide the others.
func each[T any](things []T, do func(T) error) error {
	var errs []error
	for _, t := range things {
		if err := do(t); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) < 2 {
		return errors.Join(errs...)
	}
	status, advice := judge(errs[0])
	var texts []string
	for _, e := range errs {
		texts = append(texts, errorText(e))
	}
	return &failure{status: status, advice: advice, text: fmt.Sprintf("%d errors:\n  %s", len(errs), strings.Join(texts, "\n  "))}
}
