package config

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// ResolveBroker is ParseBroker with the settings made at run time on top. Listeners, directories and whatever else is
// read-only come from l.Static alone.
func ResolveBroker(l Layers) (*Broker, []Warning, error) {
	p := &brokerParser{parser: parser{layers: &l, scope: ScopeBroker}}
	p.checkAll(l.Static)
	p.refuseForeign()
	b := &Broker{
		NodeID:       p.nodeID(),
		Rack:         p.string("broker.rack"),
		ClusterName:  p.string("karst.cluster.name"),
		ClusterID:    p.string("karst.cluster.id"),
		HTTPAddr:     p.string("karst.http.addr"),
		Console:      p.bool("karst.console"),
		Data:         p.string("karst.data"),
		Import:       p.bool("karst.import"),
		Network:      p.network(),
		Topics:       p.topics(),
		Storage:      p.storage(),
		Fetch:        p.fetch(),
		Follow:       p.follow(),
		Groups:       p.groups(),
		Transactions: p.transactions(),
		Process:      p.process(),
	}
	p.directories(b)
	p.listeners(b)
	b.Together = p.together(b.Listeners)
	p.defaults(&l)
	if p.err != nil {
		return nil, nil, p.err
	}
	return b, p.warnings, nil
}

// brokerParser is a parser that also warns.
type brokerParser struct {
	parser
	warnings []Warning
}

func (p *brokerParser) warn(text string, names ...string) {
	p.warnings = append(p.warnings, Warning{Names: names, Text: text})
}

func (p *brokerParser) conflict(reason string, names ...string) {
	p.fail(&ConflictError{Names: names, Reason: reason})
}

// checkAll checks every known option that is set, whether or not something reads it.
func (p *brokerParser) checkAll(static map[string]string) {
	for _, name := range sortedKeys(static) {
		o, ok := Lookup(ScopeBroker, name)
		if ok && o.Treatment != Hidden {
			p.fail(o.Check(static[name]))
		}
	}
}

// defaults checks what the static settings make of a topic that sets nothing.
func (p *brokerParser) defaults(l *Layers) {
	_, err := ParseTopic(Layers{Broker: l.Broker, ClusterDefault: l.ClusterDefault, Static: l.Static})
	p.fail(err)
}

// kafkaAuthorizers are the class names that turn the built-in authorizer on.
var kafkaAuthorizers = []string{
	"", "karst",
	"org.apache.kafka.metadata.authorizer.StandardAuthorizer",
	"kafka.security.authorizer.AclAuthorizer",
	"kafka.security.auth.SimpleAclAuthorizer",
}

// refuseForeign refuses classes whose rules would be lost in silence, and an authorizer while there is none to turn on.
func (p *brokerParser) refuseForeign() {
	authorizer := p.string("authorizer.class.name")
	switch {
	case !slices.Contains(kafkaAuthorizers, authorizer):
		p.conflict("authorizer.class.name: "+authorizer+" cannot run here, and its rules would be lost silently;"+
			" remove it, or use karst for the built-in authorizer", "authorizer.class.name")
	case authorizer != "":
		p.conflict("authorizer.class.name: this build has no authorizer yet, and would let everybody do everything;"+
			" remove it to start without one", "authorizer.class.name")
	}
	const builder = "principal.builder.class"
	if v := p.string(builder); v != p.option(builder).Default {
		p.conflict(builder+": "+v+" cannot run here; principals would be others than you expect", builder)
	}
	const handler = "sasl.server.callback.handler.class"
	if v := p.string(handler); v != "" {
		p.conflict(handler+": "+v+" cannot run here; who may log in would be decided otherwise than you expect", handler)
	}
	const selector = "replica.selector.class"
	if v := p.string(selector); v != "" && v != "org.apache.kafka.common.replica.RackAwareReplicaSelector" {
		p.conflict(selector+": "+v+" cannot run here; Kafka's RackAwareReplicaSelector is understood", selector)
	}
}

// nodeID reads node.id and its old name broker.id, which must agree.
func (p *brokerParser) nodeID() int32 {
	id, old := p.int32("node.id"), p.int32("broker.id")
	switch {
	case !p.isSet("node.id"):
		return max(-1, old)
	case p.isSet("broker.id") && old != id:
		p.conflict("node.id and broker.id are two names for one thing and must be the same", "node.id", "broker.id")
	}
	return id
}

func (p *brokerParser) network() Network {
	n := Network{
		MaxRequestBytes:       p.int32("socket.request.max.bytes"),
		QueuedMaxRequestBytes: p.int64("queued.max.request.bytes"),
		MaxConnections:        p.int32("max.connections"),
		MaxConnectionsPerIP:   p.int32("max.connections.per.ip"),
		IdleTimeout:           p.duration("connections.max.idle.ms"),
	}
	const overrides = "max.connections.per.ip.overrides"
	var err error
	if n.PerIPOverrides, err = parseOverrides(p.string(overrides)); err != nil {
		p.fail(&ValueError{Name: overrides, Value: p.string(overrides), Reason: "Expected host:count,host:count,..."})
	}
	return n
}

// parseOverrides reads host:count pairs; an IPv6 address may stand bare, since the count follows the last colon.
func parseOverrides(v string) (map[string]int32, error) {
	var out map[string]int32
	for _, e := range SplitList(v) {
		i := strings.LastIndexByte(e, ':')
		if i <= 0 {
			return nil, errUnit
		}
		n, err := strconv.ParseInt(strings.TrimSpace(e[i+1:]), 10, 32)
		if err != nil || n < 0 {
			return nil, errUnit
		}
		if out == nil {
			out = map[string]int32{}
		}
		out[strings.Trim(strings.TrimSpace(e[:i]), "[]")] = int32(n)
	}
	return out, nil
}

func (p *brokerParser) topics() Topics {
	t := Topics{
		AutoCreate:            p.bool("auto.create.topics.enable"),
		NumPartitions:         p.int32("num.partitions"),
		DeleteEnable:          p.bool("delete.topic.enable"),
		DeleteGrace:           p.duration("karst.delete.grace"),
		MaxDescribePartitions: p.int32("max.request.partition.size.limit"),
	}
	const factor = "default.replication.factor"
	if p.isSet(factor) {
		n := p.int32(factor)
		if n < 1 || n > 1<<15-1 {
			p.fail(&ValueError{Name: factor, Value: p.string(factor), Reason: "Value must be at least 1"})
		}
		t.ReplicationFactor = int16(n)
	}
	return t
}

func (p *brokerParser) storage() Storage {
	s := Storage{
		RetentionCheckInterval: p.duration("log.retention.check.interval.ms"),
		FlushInterval:          p.duration("karst.flush.interval.ms"),
		RecoveryPointInterval:  p.duration("log.flush.offset.checkpoint.interval.ms"),
		HighWatermarkInterval:  p.duration("replica.high.watermark.checkpoint.interval.ms"),
		RecoveryThreads:        int(p.int32("num.recovery.threads.per.data.dir")),
		DiskStall:              p.duration("karst.disk.stall.ms"),
	}
	s.Cordoned = p.list("cordoned.log.dirs")
	s.MoveBytesPerSecond = p.int64("replica.alter.log.dirs.io.max.bytes.per.second")
	s.Cleaner = Cleaner{
		Enable:         p.bool("log.cleaner.enable"),
		Threads:        int(p.int32("log.cleaner.threads")),
		DedupeBytes:    p.int64("log.cleaner.dedupe.buffer.size"),
		LoadFactor:     p.float("log.cleaner.io.buffer.load.factor"),
		BytesPerSecond: p.float("log.cleaner.io.max.bytes.per.second"),
		Backoff:        p.duration("log.cleaner.backoff.ms"),
	}
	s.ScrubInterval, s.ScrubBytesPerSecond = p.duration("karst.scrub.interval.ms"), p.int64("karst.scrub.bytes.per.second")
	s.DiskReserve, _ = ParseReserve(p.string("karst.disk.reserve")) // checked already
	return s
}

func (p *brokerParser) fetch() Fetch {
	return Fetch{
		MaxBytes:     p.int32("fetch.max.bytes"),
		SessionSlots: int(p.int32("max.incremental.fetch.session.cache.slots")),
	}
}

func (p *brokerParser) follow() Follow {
	return Follow{
		MaxLag:           p.duration("replica.lag.time.max.ms"),
		MaxWait:          p.duration("replica.fetch.wait.max.ms"),
		MinBytes:         p.int32("replica.fetch.min.bytes"),
		MaxBytes:         p.int32("replica.fetch.max.bytes"),
		MaxResponseBytes: p.int32("replica.fetch.response.max.bytes"),
		Backoff:          p.duration("replica.fetch.backoff.ms"),
		Timeout:          p.duration("replica.socket.timeout.ms"),
		RackAware:        p.string("replica.selector.class") != "",
	}
}

func (p *brokerParser) transactions() Transactions {
	return Transactions{
		MaxTimeout:     p.duration("transaction.max.timeout.ms"),
		AbortInterval:  p.duration("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
		Expiry:         p.duration("transactional.id.expiration.ms"),
		ExpireInterval: p.duration("transaction.remove.expired.transaction.cleanup.interval.ms"),
		Verify:         p.bool("transaction.partition.verification.enable"),
	}
}

// minSegmentBytes is the least that a topic takes for segment.bytes; the setting for the offsets topic may be less.
const minSegmentBytes = 1 << 20

func (p *brokerParser) groups() Groups {
	g := Groups{
		MinSession:       p.duration("group.min.session.timeout.ms"),
		MaxSession:       p.duration("group.max.session.timeout.ms"),
		InitialDelay:     p.duration("group.initial.rebalance.delay.ms"),
		MaxSize:          int(p.int32("group.max.size")),
		MaxMetadataBytes: int(p.int32("offset.metadata.max.bytes")),
		Retention:        time.Duration(p.int32("offsets.retention.minutes")) * time.Minute,
		RetentionCheck:   p.duration("offsets.retention.check.interval.ms"),
		CommitTimeout:    p.duration("offsets.commit.timeout.ms"),
		LoadBufferBytes:  int(p.int32("offsets.load.buffer.size")),
		Partitions:       p.int32("offsets.topic.num.partitions"),
		SegmentBytes:     max(p.int32("offsets.topic.segment.bytes"), minSegmentBytes),
	}
	const codec, factor = "offsets.topic.compression.codec", "offsets.topic.replication.factor"
	n := p.int32(codec)
	if n < 0 || n > 4 {
		p.fail(&ValueError{Name: codec, Value: p.string(codec), Reason: "Expected a number from 0 to 4"})
	}
	g.Codec = int8(n)
	g.ReplicationFactor = int16(min(p.int32(factor), 1<<15-1))
	if g.MinSession > g.MaxSession {
		p.conflict("group.min.session.timeout.ms is larger than group.max.session.timeout.ms: nobody could join",
			"group.min.session.timeout.ms", "group.max.session.timeout.ms")
	}
	return g
}

func (p *brokerParser) process() Process {
	c := Process{LogLevel: p.string("karst.log.level"), LogFormat: p.string("karst.log.format")}
	if v := p.string("karst.memory.limit"); v != "" && v != "auto" {
		c.MemoryLimit, _ = ParseBytes(v) // checked already
	}
	return c
}

// The ports of a cluster's brokers when none are given, on the host of the first listener.
const (
	defaultClusterPort = 9093
	defaultGossipPort  = 7946
)

// together reads the settings of a cluster.
func (p *brokerParser) together(listeners []Listener) Together {
	t := Together{
		Name:             p.string("karst.cluster.name"),
		ClusterAddr:      p.string("karst.cluster.addr"),
		ClusterAdvertise: p.string("karst.cluster.advertise"),
		GossipAddr:       p.string("karst.gossip.addr"),
		GossipAdvertise:  p.string("karst.gossip.advertise"),
		GossipKeyFile:    p.string("karst.gossip.key.file"),
		TLSCert:          p.string("karst.cluster.tls.cert"),
		TLSKey:           p.string("karst.cluster.tls.key"),
		TLSCA:            p.string("karst.cluster.tls.ca"),
		Bootstrap:        p.bool("karst.bootstrap"),
		BootstrapExpect:  p.int32("karst.bootstrap.expect"),
		Join:             p.list("karst.join"),
	}
	t.Asked = t.Bootstrap || t.BootstrapExpect > 0 || len(t.Join) > 0 || t.ClusterAddr != "" || t.GossipAddr != ""
	host := ""
	if len(listeners) > 0 {
		host = listeners[0].Host
	}
	if t.ClusterAddr == "" {
		t.ClusterAddr = joinHostPort(host, defaultClusterPort)
	}
	if t.GossipAddr == "" {
		t.GossipAddr = joinHostPort(host, defaultGossipPort)
	}
	if t.Bootstrap && t.BootstrapExpect > 1 {
		p.conflict("karst.bootstrap and karst.bootstrap.expect: the first begins a cluster with this broker alone, the second with several: give one of them",
			"karst.bootstrap", "karst.bootstrap.expect")
	}
	if (t.TLSCert == "") != (t.TLSKey == "") || (t.TLSCert == "") != (t.TLSCA == "") {
		p.conflict("karst.cluster.tls.cert, karst.cluster.tls.key and karst.cluster.tls.ca: give all three or none",
			"karst.cluster.tls.cert", "karst.cluster.tls.key", "karst.cluster.tls.ca")
	}
	return t
}

// directories finds the log directories: log.dirs, else log.dir, else log/ in the data directory. With log.dirs alone the
// data directory is .karst in the first of them, so that a Kafka file that knows only log.dirs is enough.
func (p *brokerParser) directories(b *Broker) {
	name := "log.dirs"
	if !p.isSet(name) {
		name = "log.dir"
	}
	b.LogDirs = p.list(name)
	if p.isSet(name) && len(b.LogDirs) == 0 {
		p.fail(&ValueError{Name: name, Reason: "Expected at least one directory"})
		return
	}
	for i, d := range b.LogDirs {
		if slices.Contains(b.LogDirs[:i], d) {
			p.conflict(name+": "+d+" is there twice", name)
		}
	}
	switch {
	case len(b.LogDirs) == 0:
		b.LogDirs = []string{strings.TrimRight(b.Data, "/") + "/log"}
	case !p.isSet("karst.data"):
		b.Data = strings.TrimRight(b.LogDirs[0], "/") + "/.karst"
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
