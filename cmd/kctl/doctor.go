package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"

	"github.com/karstlog/karst/protocol/private"
)

// finding is something that is wrong, or will be.
type finding struct {
	id       string
	severity string // critical, warning, info
	subject  string
	evidence string
	fix      string
}

func findingColumns() []column[finding] {
	return []column[finding]{
		{key: "severity", doc: "critical: data or service is at risk now; warning: it will be; info: worth knowing", value: func(f finding) any { return f.severity }},
		{key: "id", head: "FINDING", doc: "what kind of finding, the same in every release", value: func(f finding) any { return f.id }},
		{key: "subject", doc: "what it is about", value: func(f finding) any { return f.subject }},
		{key: "evidence", doc: "what was seen", value: func(f finding) any { return f.evidence }},
		{key: "fix", doc: "what to do", value: func(f finding) any { return f.fix }},
	}
}

// check is one thing that the doctor looks at. Checks of the host need to run on it.
type check struct {
	id, doc string
	host    bool
	run     func(*examination) []finding
}

// checks are what the doctor looks at, in this order.
func checks() []check {
	return []check{
		{"listener-unreachable", "an advertised address cannot be reached from here", false, checkReachable},
		{"listener-loopback", "an advertised address is this machine only", false, checkLoopback},
		{"clock-skew", "the clocks of brokers and of this machine differ by more than 500 ms", false, checkSkew},
		{"disk-filling", "a log directory is nearly full, and when it will be", false, checkDiskSpace},
		{"log-damaged", "replicas whose bytes are not those that were written", false, checkDamaged},
		{"replicas-differ", "replicas with other records than their leader", false, checkDiffers},
		{"retention-held", "logs that are not deleted or compacted although they should be, and why", false, checkHeld},
		{"leaderless", "partitions without a leader", false, checkLeaderless},
		{"under-min-isr", "partitions that refuse acks=all", false, checkMinISR},
		{"single-replica", "topics that one broken disk destroys", false, checkSingleReplica},
		{"too-few-brokers", "topics with more replicas than there are brokers", false, checkTooFewBrokers},
		{"no-slack", "topics where one broker away stops writers", false, checkNoSlack},
		{"unclean-elections", "topics that may lose acknowledged records", false, checkUnclean},
		{"descriptor-limit", "few open files allowed", true, checkDescriptors},
		{"map-count", "few mappings allowed", true, checkMapCount},
		{"swap", "memory that may be swapped out", true, checkSwap},
		{"file-system", "a log directory on tmpfs, NFS, or with access times", true, checkFileSystem},
		{"slow-sync", "syncs that take long", true, checkSync},
	}
}

// examination is what was asked of the cluster once, for all checks.
type examination struct {
	ctx     context.Context
	l       *link
	dir     string // a data directory on this machine; "": none was named
	brokers []kmsg.MetadataResponseBroker
	topics  []kmsg.MetadataResponseTopic
	configs map[string]map[string]string // by topic

	asked    bool // for the logs
	troubles []private.Logs
}

func doctorCommand(s *session) *cli.Command {
	var list []string
	for _, c := range checks() {
		list = append(list, "  "+c.id+": "+c.doc)
	}
	return &cli.Command{
		Name:  "doctor",
		Usage: "find out what is wrong with a cluster or a host, and what to do",
		Description: describe("Exits with 10 when something is critical or a warning. With --data it also looks at this machine, as the host of a broker.\n\nIt looks for:\n"+strings.Join(list, "\n"),
			"kctl doctor",
			"kctl doctor --data /var/lib/karst -o json",
			"kctl doctor --only leaderless,under-min-isr"),
		Flags: flagSet([]cli.Flag{
			&cli.StringFlag{Name: "data", Usage: "also look at this machine, with the data directory `DIR`"},
			&cli.StringSliceFlag{Name: "only", Usage: "just these `FINDINGS`, separated by commas"},
		}, outputFlags(), clientFlags()),
		Action: listing(s, findingColumns(), s.doctor),
	}
}

func (s *session) doctor(c *cli.Context) ([]finding, error) {
	only := strings.FieldsFunc(strings.Join(c.StringSlice("only"), ","), func(r rune) bool { return r == ',' })
	slices.Sort(only)
	only = slices.Compact(only)
	chosen := slices.DeleteFunc(checks(), func(k check) bool {
		return len(only) > 0 && !slices.Contains(only, k.id) || k.host && c.String("data") == ""
	})
	if len(only) > 0 && len(chosen) < len(only) {
		return nil, usage("--only: %s: no such finding, or one of the host without --data", strings.Join(only, ","))
	}
	l, ctx, hangUp, err := s.reach(c)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	x, err := l.examine(ctx, c.String("data"))
	if err != nil {
		return nil, err
	}
	var found []finding
	bad := 0
	for _, k := range chosen {
		for _, f := range k.run(x) {
			f.id = k.id
			if f.severity != "info" {
				bad++
			}
			found = append(found, f)
		}
	}
	order := []string{"critical", "warning", "info"}
	slices.SortStableFunc(found, func(a, b finding) int {
		return cmp.Compare(slices.Index(order, a.severity), slices.Index(order, b.severity))
	})
	if bad == 0 {
		s.say("%d checks, nothing to do", len(chosen))
		return found, nil
	}
	return found, &failure{status: exitUnhealthy, text: fmt.Sprintf("%d checks, %d findings", len(chosen), bad), advice: "see FIX of each"}
}

func (l *link) examine(ctx context.Context, dir string) (*examination, error) {
	x := &examination{ctx: ctx, l: l, dir: dir, configs: map[string]map[string]string{}}
	resp, err := l.metadata(ctx, nil)
	if err != nil {
		return nil, err
	}
	x.brokers, x.topics = resp.Brokers, resp.Topics
	slices.SortFunc(x.brokers, func(a, b kmsg.MetadataResponseBroker) int { return cmp.Compare(a.NodeID, b.NodeID) })
	slices.SortFunc(x.topics, func(a, b kmsg.MetadataResponseTopic) int { return strings.Compare(orEmpty(a.Topic), orEmpty(b.Topic)) })
	req := kmsg.NewPtrDescribeConfigsRequest()
	for _, t := range x.topics {
		req.Resources = append(req.Resources, resource{kmsg.ConfigResourceTypeTopic, *t.Topic}.describe([]string{"min.insync.replicas", "unclean.leader.election.enable"}).Resources...)
	}
	if len(req.Resources) == 0 {
		return x, nil
	}
	described, err := req.RequestWith(ctx, l.cl)
	if err != nil {
		return x, nil // without the right to see settings, checks of settings find nothing
	}
	for _, r := range described.Resources {
		x.configs[r.ResourceName] = map[string]string{}
		for _, c := range r.Configs {
			x.configs[r.ResourceName][c.Name] = orEmpty(c.Value)
		}
	}
	return x, nil
}

func (x *examination) minISR(topic string) int {
	n, _ := strconv.Atoi(x.configs[topic]["min.insync.replicas"])
	return n
}

func checkReachable(x *examination) (out []finding) {
	for _, b := range x.brokers {
		addr := net.JoinHostPort(b.Host, fmt.Sprint(b.Port))
		d := net.Dialer{Timeout: 2 * time.Second}
		conn, err := d.DialContext(x.ctx, "tcp", addr)
		if err == nil {
			conn.Close()
			continue
		}
		out = append(out, finding{severity: "critical", subject: fmt.Sprintf("broker %d", b.NodeID), evidence: err.Error(), fix: "set advertised.listeners of the broker to an address that its clients can reach, and open the port"})
	}
	return out
}

func checkLoopback(x *examination) (out []finding) {
	for _, b := range x.brokers {
		addrs, _ := net.DefaultResolver.LookupIPAddr(x.ctx, b.Host)
		local := len(addrs) > 0
		for _, a := range addrs {
			local = local && a.IP.IsLoopback()
		}
		if !local {
			continue
		}
		f := finding{severity: "info", subject: fmt.Sprintf("broker %d", b.NodeID), evidence: b.Host + " is this machine for everybody", fix: "clients on other machines need advertised.listeners with a name or address of the host"}
		if len(x.brokers) > 1 && slices.ContainsFunc(x.brokers, func(o kmsg.MetadataResponseBroker) bool { return o.Host != b.Host && !isLoopbackName(o.Host) }) {
			f.severity = "critical"
		}
		out = append(out, f)
	}
	return out
}

func isLoopbackName(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// maxSkew is how far clocks may be apart.
const maxSkew = 500 * time.Millisecond

// checkSkew compares this machine's clock with that of the broker that leads the metadata log: it tells when it was last
// caught up with itself, which is now.
func checkSkew(x *examination) (out []finding) {
	if f, ok := unsynchronised(); ok && x.dir != "" {
		out = append(out, f)
	}
	req := kmsg.NewPtrDescribeQuorumRequest()
	t := kmsg.NewDescribeQuorumRequestTopic()
	t.Topic = "__cluster_metadata"
	t.Partitions = append(t.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
	req.Topics = append(req.Topics, t)
	before := x.l.s.now()
	resp, err := req.RequestWith(x.ctx, x.l.cl)
	after := x.l.s.now()
	if err != nil {
		return out
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			for _, v := range p.CurrentVoters {
				if v.ReplicaID != p.LeaderID || v.LastCaughtUpTimestamp <= 0 {
					continue
				}
				at := time.UnixMilli(v.LastCaughtUpTimestamp)
				skew := max(before.Sub(at), at.Sub(after)) // how far it lies outside of the request's time
				if skew > maxSkew {
					out = append(out, finding{
						severity: "warning", subject: fmt.Sprintf("broker %d", v.ReplicaID), evidence: fmt.Sprintf("its clock differs by %s from this machine's", skew.Round(time.Millisecond)),
						fix: "run chrony or ntpd on all machines: retention and timestamps go by the wall clock",
					})
				}
			}
		}
	}
	return out
}

// diskWarn and diskCritical are how full a directory may be.
const (
	diskWarn     = 0.85
	diskCritical = 0.95
)

func checkDiskSpace(x *examination) (out []finding) {
	first, err := x.l.dirSpaces(x.ctx)
	if err != nil || !slices.ContainsFunc(first, func(d dirSpace) bool { return d.used() > diskWarn/2 }) {
		return nil
	}
	began := time.Now()
	select {
	case <-x.ctx.Done():
		return nil
	case <-time.After(time.Second):
	}
	second, err := x.l.dirSpaces(x.ctx)
	if err != nil {
		return nil
	}
	return judgeDisks(first, second, time.Since(began))
}

// judgeDisks compares two looks at the log directories.
func judgeDisks(first, second []dirSpace, between time.Duration) (out []finding) {
	for _, d := range second {
		i := slices.IndexFunc(first, func(o dirSpace) bool { return o.broker == d.broker && o.dir == d.dir })
		if i < 0 {
			continue
		}
		evidence := fmt.Sprintf("%.0f%% of %s used", 100*d.used(), formatSize(d.total))
		perSecond := float64(first[i].usable-d.usable) / between.Seconds()
		eta := time.Duration(0)
		if perSecond > 0 {
			eta = time.Duration(float64(d.usable) / perSecond * float64(time.Second))
			evidence += fmt.Sprintf(", full in %s at the rate of the last second", shortDuration(eta))
		}
		f := finding{severity: "warning", subject: fmt.Sprintf("broker %d %s", d.broker, d.dir), evidence: evidence, fix: "lower retention, `kctl topic trim`, move partitions with `kctl partition rebalance`, or add space"}
		switch {
		case d.used() > diskCritical:
			f.severity = "critical"
		case d.used() > diskWarn, eta > 0 && eta < 12*time.Hour && d.used() > diskWarn/2:
		default:
			continue
		}
		out = append(out, f)
	}
	return out
}

// dirSpace is the space of a log directory.
type dirSpace struct {
	broker        int32
	dir           string
	total, usable int64
}

func (d dirSpace) used() float64 {
	if d.total <= 0 {
		return 0
	}
	return 1 - float64(d.usable)/float64(d.total)
}

func (l *link) dirSpaces(ctx context.Context) ([]dirSpace, error) {
	ids, err := l.brokers(ctx)
	if err != nil {
		return nil, err
	}
	var out []dirSpace
	for _, id := range ids {
		req := kmsg.NewPtrDescribeLogDirsRequest()
		req.Topics = []kmsg.DescribeLogDirsRequestTopic{}
		resp, err := l.cl.Broker(int(id)).RetriableRequest(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, d := range resp.(*kmsg.DescribeLogDirsResponse).Dirs {
			out = append(out, dirSpace{id, d.Dir, d.TotalBytes, d.UsableBytes})
		}
	}
	return out, nil
}

// partitionsWhere counts the partitions of each topic for which bad holds, and makes a finding of each topic.
func (x *examination) partitionsWhere(bad func(*kmsg.MetadataResponseTopic, *kmsg.MetadataResponseTopicPartition) bool, make func(topic string, partitions []int32) finding) (out []finding) {
	for _, t := range x.topics {
		var ids []int32
		for _, p := range t.Partitions {
			if bad(&t, &p) {
				ids = append(ids, p.Partition)
			}
		}
		if len(ids) > 0 {
			slices.Sort(ids)
			f := make(*t.Topic, ids)
			f.subject = fmt.Sprintf("%s (%d of %d partitions)", *t.Topic, len(ids), len(t.Partitions))
			out = append(out, f)
		}
	}
	return out
}

func some(ids []int32) string {
	if len(ids) > 10 {
		return joinInts(ids[:10]) + ",..."
	}
	return joinInts(ids)
}

func checkLeaderless(x *examination) []finding {
	return x.partitionsWhere(func(_ *kmsg.MetadataResponseTopic, p *kmsg.MetadataResponseTopicPartition) bool { return p.Leader < 0 }, func(topic string, ids []int32) finding {
		return finding{severity: "critical", evidence: "nobody leads " + some(ids), fix: "start the brokers that hold them (`kctl partition list " + topic + "`); if they are lost, `kctl partition elect --unclean " + topic + "`"}
	})
}

func checkMinISR(x *examination) []finding {
	return x.partitionsWhere(func(t *kmsg.MetadataResponseTopic, p *kmsg.MetadataResponseTopicPartition) bool {
		return p.Leader >= 0 && len(p.ISR) < x.minISR(*t.Topic)
	}, func(topic string, ids []int32) finding {
		return finding{severity: "critical", evidence: fmt.Sprintf("fewer than min.insync.replicas=%d in sync: %s", x.minISR(topic), some(ids)), fix: "bring brokers back; `kctl partition list " + topic + "` shows who is missing"}
	})
}

func (x *examination) own(t *kmsg.MetadataResponseTopic) bool { return !t.IsInternal }

func checkSingleReplica(x *examination) []finding {
	if len(x.brokers) < 2 {
		return nil
	}
	return x.partitionsWhere(func(t *kmsg.MetadataResponseTopic, p *kmsg.MetadataResponseTopicPartition) bool {
		return len(p.Replicas) == 1
	}, func(topic string, _ []int32) finding {
		return finding{severity: "warning", evidence: fmt.Sprintf("one replica on %d brokers", len(x.brokers)), fix: fmt.Sprintf("kctl partition reassign %s -r %d --yes", topic, min(3, len(x.brokers)))}
	})
}

func checkTooFewBrokers(x *examination) []finding {
	return x.partitionsWhere(func(_ *kmsg.MetadataResponseTopic, p *kmsg.MetadataResponseTopicPartition) bool {
		return len(p.Replicas) > len(x.brokers)
	}, func(topic string, _ []int32) finding {
		return finding{severity: "warning", evidence: fmt.Sprintf("more replicas than the %d brokers that live", len(x.brokers)), fix: fmt.Sprintf("start the others, or kctl partition reassign %s -r %d --yes", topic, len(x.brokers))}
	})
}

func checkNoSlack(x *examination) []finding {
	return x.partitionsWhere(func(t *kmsg.MetadataResponseTopic, p *kmsg.MetadataResponseTopicPartition) bool {
		return len(p.Replicas) > 1 && x.minISR(*t.Topic) >= len(p.Replicas)
	}, func(topic string, _ []int32) finding {
		return finding{severity: "warning", evidence: fmt.Sprintf("min.insync.replicas=%d is the number of replicas: one broker away stops acks=all", x.minISR(topic)), fix: fmt.Sprintf("kctl config set topic %s min.insync.replicas=%d", topic, max(1, x.minISR(topic)-1))}
	})
}

func checkUnclean(x *examination) []finding {
	return x.partitionsWhere(func(t *kmsg.MetadataResponseTopic, p *kmsg.MetadataResponseTopicPartition) bool {
		return x.own(t) && x.configs[*t.Topic]["unclean.leader.election.enable"] == "true"
	}, func(topic string, _ []int32) finding {
		return finding{severity: "warning", evidence: "unclean.leader.election.enable=true: a replica that lacks acknowledged records may lead", fix: "kctl config set topic " + topic + " unclean.leader.election.enable=false"}
	})
}
