package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/karstlog/karst/node"
)

// serveOptions are the flags that set an option each; the rest of the options go through --set.
var serveOptions = []struct{ flag, option, usage string }{
	{"id", "node.id", "this broker's id, 1 and up (default: what the data says, else the cluster allots one)"},
	{"data", "karst.data", "directory for everything the broker keeps (default ./karst-data)"},
	{"http-addr", "karst.http.addr", "address of /healthz, /readyz, /metrics; empty: none (default 127.0.0.1:9644)"},
	{"rack", "broker.rack", "rack or zone of this broker"},
	{"cluster-name", "karst.cluster.name", "name of the cluster, so that two on one network do not mix (default karst)"},
	{"cluster-addr", "karst.cluster.addr", "address for other brokers (default in a cluster: port 9093 of the first listener's host)"},
	{"cluster-advertise", "karst.cluster.advertise", "address that other brokers are told for --cluster-addr"},
	{"gossip-addr", "karst.gossip.addr", "address for gossip, TCP and UDP (default in a cluster: port 7946 of the first listener's host)"},
	{"gossip-advertise", "karst.gossip.advertise", "address that other brokers are told for --gossip-addr"},
	{"gossip-key", "karst.gossip.key.file", "file with gossip keys in base64, one a line; the first is for sending"},
	{"cluster-tls-cert", "karst.cluster.tls.cert", "PEM file of this broker's certificate for mutual TLS among brokers"},
	{"cluster-tls-key", "karst.cluster.tls.key", "PEM file of its key"},
	{"cluster-tls-ca", "karst.cluster.tls.ca", "PEM file of the authorities that sign brokers' certificates"},
	{"bootstrap-expect", "karst.bootstrap.expect", "number of brokers that form a new cluster together: the same on all of them"},
	{"log-level", "karst.log.level", "debug, info, warn or error (default info)"},
	{"log-format", "karst.log.format", "text, json, or auto: text on a terminal, else json"},
	{"memory-limit", "karst.memory.limit", "bytes the process tries to stay below, 512MiB for example (default: 60 % of the container's)"},
}

func serveCommand(s *session) *cli.Command {
	flags := []cli.Flag{
		&cli.StringSliceFlag{Name: "listen", Aliases: []string{"listeners"}, Usage: "address for clients, [NAME://]HOST:PORT; repeat or separate by commas (default 127.0.0.1:9092)"},
		&cli.StringSliceFlag{Name: "advertise", Aliases: []string{"advertised-listeners"}, Usage: "address that clients are told, [NAME://]HOST:PORT (default: what is listened on)"},
		&cli.StringFlag{Name: "config", Usage: "a server.properties of Karst or Apache Kafka"},
		&cli.StringSliceFlag{Name: "set", Usage: "an option, NAME=VALUE; repeat for more"},
		&cli.BoolFlag{Name: "strict-config", Usage: "refuse unknown options instead of warning of them"},
		&cli.BoolFlag{Name: "import", Usage: "take over the topics of log directories that Apache Kafka wrote, at the first start"},
		&cli.BoolFlag{Name: "bootstrap", Usage: "begin a new cluster with this broker alone, and open the ports for others; data that belongs to a cluster keeps it"},
		&cli.StringSliceFlag{Name: "join", Usage: "HOST:PORT of gossip of brokers to join; repeat or separate by commas, the own address is ignored"},
		&cli.BoolFlag{Name: "dry-run", Usage: "print the configuration in force and exit"},
	}
	for _, o := range serveOptions {
		flags = append(flags, &cli.StringFlag{Name: o.flag, Usage: o.usage})
	}
	return &cli.Command{
		Name:  "serve",
		Usage: "run a broker",
		Description: describe("Without flags: data in ./karst-data, clients on 127.0.0.1:9092, health and metrics on 127.0.0.1:9644. "+
			"SIGTERM stops it cleanly; kill -9 loses nothing that was acknowledged. Settings come from flags, --set, KARST_* and KAFKA_* variables and "+
			"--config, in this order. A first broker with --bootstrap and others with --join, or all of them with --bootstrap-expect N and --join, are a cluster.",
			"kctl serve",
			"kctl serve --bootstrap-expect 3 --join k1:7946,k2:7946,k3:7946 --listen 0.0.0.0:9092 --advertise k1:9092",
			"kctl serve --config server.properties --set num.partitions=6",
			"kctl serve --config kafka/server.properties --import"),
		Flags:  flags,
		Action: func(c *cli.Context) error { return serve(c, s) },
	}
}

func serve(c *cli.Context, s *session) error {
	if c.NArg() > 0 {
		return usage("serve takes no arguments, got %q", c.Args().First())
	}
	loaded, err := node.LoadConfig(loadOptions(c))
	if err != nil {
		return usage("%s", err)
	}
	if c.Bool("dry-run") {
		return loaded.Print(s.out, false)
	}
	log, level := newLogger(s, loaded)
	for _, w := range loaded.Warnings {
		log.Warn(w.Text, "options", strings.Join(w.Names, ","))
	}
	tuneMemory(loaded.Broker.Process.MemoryLimit)
	n := node.New(node.Options{Config: loaded.Broker, Static: loaded.Static, Logger: log, Level: level, Version: buildInfo().Version, Fatal: func(err error) {
		log.Error("this broker cannot go on", "err", err)
		os.Exit(1) // what hangs in I/O would keep the sockets open
	}})
	ctx, cancel := context.WithCancel(c.Context)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	select {
	case err := <-done:
		return err
	case <-n.Ready():
	}
	announce(s.out, n, loaded)
	if err := s.flush(); err != nil {
		log.Warn("cannot announce the start", "err", err)
	}
	err = <-done
	if err != nil {
		log.Error("stopped", "err", err)
		return err
	}
	log.Info("stopped")
	return nil
}

func loadOptions(c *cli.Context) node.LoadOptions {
	o := node.LoadOptions{Flags: map[string]string{}, Sets: c.StringSlice("set"), Environ: os.Environ(), File: c.String("config"), Strict: c.Bool("strict-config")}
	for _, f := range serveOptions {
		if c.IsSet(f.flag) {
			o.Flags[f.option] = c.String(f.flag)
		}
	}
	for flag, option := range map[string]string{"listen": "listeners", "advertise": "advertised.listeners", "join": "karst.join"} {
		if c.IsSet(flag) {
			o.Flags[option] = strings.Join(c.StringSlice(flag), ",")
		}
	}
	for flag, option := range map[string]string{"import": "karst.import", "bootstrap": "karst.bootstrap"} {
		if c.Bool(flag) {
			o.Flags[option] = "true"
		}
	}
	return o
}

// newLogger writes text for people and JSON for machines. The level may be changed at any time.
func newLogger(s *session, l *node.Loaded) (*slog.Logger, *slog.LevelVar) {
	level := &slog.LevelVar{}
	_ = level.UnmarshalText([]byte(l.Broker.Process.LogLevel)) // checked when it was loaded
	opts := &slog.HandlerOptions{Level: level}
	format := l.Broker.Process.LogFormat
	if format == "text" || format == "auto" && s.errTTY {
		return slog.New(slog.NewTextHandler(s.errw, opts)), level
	}
	return slog.New(slog.NewJSONHandler(s.errw, opts)), level
}

// tuneMemory sets the process's memory limit: what was asked for, else 60 % of the container's, since file pages count
// there too and Go's own limit does not see them.
func tuneMemory(limit int64) {
	if os.Getenv("GOMEMLIMIT") != "" && limit == 0 {
		return
	}
	if limit == 0 {
		limit = containerLimit() / 10 * 6
	}
	if limit > 0 {
		debug.SetMemoryLimit(limit)
	}
}

// containerLimit is the memory limit of the control group, 0 when there is none.
func containerLimit() int64 {
	for _, path := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		b, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		if err != nil || n >= math.MaxInt64/2 {
			return 0
		}
		return n
	}
	return 0
}

// announce tells a person what runs and what to type next.
func announce(w io.Writer, n *node.Node, l *node.Loaded) {
	var b strings.Builder
	fmt.Fprintf(&b, "karst %s  node %d  cluster %s  data %s  ready in %d ms\n", buildInfo().Version, n.ID(), n.ClusterID(), l.Broker.Data, n.Started().Milliseconds())
	for _, listener := range l.Broker.Listeners {
		fmt.Fprintf(&b, "  clients   %s://%s\n", listener.Name, n.Addr(listener.Name))
	}
	if a := n.HTTPAddr(); a != nil {
		fmt.Fprintf(&b, "  health    http://%s/readyz   metrics http://%s/metrics\n", a, a)
	}
	if cluster, gossip := n.ClusterAddr(), n.GossipAddr(); cluster != "" {
		fmt.Fprintf(&b, "  brokers   %s   gossip %s   next broker: kctl serve --join %s\n", cluster, gossip, gossip)
	}
	fmt.Fprintf(&b, "  partitions %d\n", n.Partitions())
	addr := n.Addr(l.Broker.Listeners[0].Name).String()
	where := ""
	if addr != "127.0.0.1:9092" {
		where = " -b " + addr
	}
	fmt.Fprintf(&b, "next:\n  echo hello | kctl produce greetings%s\n  kctl consume greetings%s -s start --exit\n", where, where)
	_, _ = io.WriteString(w, b.String())
}
