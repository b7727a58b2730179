package replica

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/partition"
)

// maxDetailed is up to how many partitions each one has series of its own.
const maxDetailed = 2000

// collector reads the counters of topics and the ends of partitions when it is asked: nothing is kept twice, and the
// produce path pays for an atomic addition only.
type collector struct {
	set *Set

	bytesIn, bytesOut, recordsIn, size *prometheus.Desc // by topic
	start, end, stableLag              *prometheus.Desc // by topic and partition
	roles, parked                      *prometheus.Desc
	replicated                         *prometheus.Desc // by topic
	under, underMin, differing         *prometheus.Desc
	proposals                          *prometheus.Desc // by outcome
	interrupted, truncated             *prometheus.Desc
	lag, lagSeconds                    *prometheus.Desc // by broker
}

func newCollector(s *Set) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &collector{
		set:       s,
		bytesIn:   desc("karst_topic_bytes_in_total", "Bytes of record batches appended by producers.", "topic"),
		bytesOut:  desc("karst_topic_bytes_out_total", "Bytes of record batches sent to consumers.", "topic"),
		recordsIn: desc("karst_topic_records_in_total", "Records appended by producers.", "topic"),
		size:      desc("karst_topic_size_bytes", "Bytes of the topic's logs on this broker.", "topic"),
		start:     desc("karst_partition_start_offset", "First offset of the log.", "topic", "partition"),
		end:       desc("karst_partition_end_offset", "High watermark: the offset after the last committed record.", "topic", "partition"),
		stableLag: desc("karst_partition_stable_offset_lag",
			"Records between the last stable offset and the high watermark: held back by open transactions.", "topic", "partition"),
		parked: desc("karst_replica_parked_fetches",
			"Places in which fetches wait for records: a fetch takes one on each of its partitions."),
		replicated: desc("karst_topic_replication_bytes_out_total", "Bytes of record batches sent to followers.", "topic"),
		under: desc("karst_partitions_under_replicated",
			"Partitions led by this broker of which some replica is not in sync."),
		underMin: desc("karst_partitions_under_min_isr",
			"Partitions led by this broker with fewer replicas in sync than min.insync.replicas asks for."),
		differing: desc("karst_partitions_differing",
			"Followers on this broker whose bytes are not their leader's, as the scrubber found."),
		proposals: desc("karst_replica_isr_proposals_total",
			"Changes of in-sync sets that leaders on this broker proposed, by what became of them: applied, refused, unknown.", "outcome"),
		interrupted: desc("karst_replica_fetch_interruptions_total", "Connections to leading brokers that broke or could not be made."),
		truncated:   desc("karst_replica_truncations_total", "Times that a log was cut because its leader's history is another one."),
		lag: desc("karst_replica_lag_records",
			"Records that a follower is behind, on the partition led by this broker where it is most.", "broker"),
		lagSeconds: desc("karst_replica_lag_seconds",
			"How long ago a follower had all records, on the partition led by this broker where that is longest; 0 when it has all.", "broker"),
		roles: desc("karst_partitions", "Partitions on this broker by role: leader, follower, offline.", "role"),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.bytesIn, c.bytesOut, c.recordsIn, c.size, c.start, c.end, c.stableLag, c.roles, c.parked,
		c.replicated, c.under, c.underMin, c.differing, c.proposals, c.interrupted, c.truncated, c.lag, c.lagSeconds,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	roles := map[string]int{"leader": 0, "follower": 0, "offline": 0}
	parked, under, underMin, differing := 0, 0, 0, 0
	lags := map[metadata.BrokerID]lag{}
	detailed := c.set.Image().PartitionCount() <= maxDetailed
	for t := range c.set.byID.all() {
		var size int64
		for _, slot := range *t.slots.Load() {
			p := slot.Load()
			if p == nil {
				continue
			}
			r := p.role.Load()
			roles[r.name()]++
			parked += p.Parked()
			differing += count(p.Difference() != nil)
			if r.leads && r.err == nil {
				under += count(len(r.meta.ISR) < len(r.meta.Replicas))
				have, want := p.inSync(r)
				underMin += count(have < want)
				p.lags(lags)
			}
			if p.log == nil {
				continue
			}
			size += p.log.Size()
			if detailed && r.err == nil {
				c.partition(out, p)
			}
		}
		counter := func(d *prometheus.Desc, v int64) {
			out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), t.name)
		}
		counter(c.bytesIn, t.bytesIn.Load())
		counter(c.bytesOut, t.bytesOut.Load())
		counter(c.recordsIn, t.recordsIn.Load())
		counter(c.replicated, t.replicated.Load())
		out <- prometheus.MustNewConstMetric(c.size, prometheus.GaugeValue, float64(size), t.name)
	}
	out <- prometheus.MustNewConstMetric(c.parked, prometheus.GaugeValue, float64(parked))
	out <- prometheus.MustNewConstMetric(c.under, prometheus.GaugeValue, float64(under))
	out <- prometheus.MustNewConstMetric(c.underMin, prometheus.GaugeValue, float64(underMin))
	out <- prometheus.MustNewConstMetric(c.differing, prometheus.GaugeValue, float64(differing))
	out <- prometheus.MustNewConstMetric(c.interrupted, prometheus.CounterValue, float64(c.set.fetchers.interrupted.Load()))
	out <- prometheus.MustNewConstMetric(c.truncated, prometheus.CounterValue, float64(c.set.fetchers.truncated.Load()))
	for id, l := range lags {
		broker := strconv.Itoa(int(id))
		out <- prometheus.MustNewConstMetric(c.lag, prometheus.GaugeValue, float64(l.records), broker)
		out <- prometheus.MustNewConstMetric(c.lagSeconds, prometheus.GaugeValue, l.time.Seconds(), broker)
	}
	for o, n := range c.set.outcomes() {
		out <- prometheus.MustNewConstMetric(c.proposals, prometheus.CounterValue, float64(n), o)
	}
	for role, n := range roles {
		out <- prometheus.MustNewConstMetric(c.roles, prometheus.GaugeValue, float64(n), role)
	}
}

// lag is how far a follower is behind.
type lag struct {
	records int64
	time    time.Duration
}

// lags raises what is known of the followers to their lag on this partition.
func (p *Partition) lags(of map[metadata.BrokerID]lag) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.lead == nil {
		return
	}
	now, end := p.env.mono(), p.log.End()
	for _, f := range p.mu.lead.Replicas() {
		l := of[f.Broker]
		if missing := end - max(f.End, p.log.Start()); missing > 0 {
			l.records, l.time = max(l.records, missing), max(l.time, now.Sub(f.CaughtUp))
		}
		of[f.Broker] = l
	}
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// outcomes counts the proposals of in-sync sets by what became of them.
func (s *Set) outcomes() map[string]int64 {
	all := map[string]int64{"applied": 0, "refused": 0, "unknown": 0}
	if q := s.changes; q != nil {
		all["applied"], all["refused"], all["unknown"] = q.ended[partition.Applied].Load(), q.ended[partition.Refused].Load(),
			q.ended[partition.Unknown].Load()
	}
	return all
}

func (c *collector) partition(out chan<- prometheus.Metric, p *Partition) {
	index := strconv.Itoa(int(p.index))
	gauge := func(d *prometheus.Desc, v int64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), p.topic.name, index)
	}
	stable, hw := p.log.StableOffset(), p.log.HighWatermark()
	gauge(c.start, p.log.Start())
	gauge(c.end, hw)
	gauge(c.stableLag, hw-stable)
}

func (r *role) name() string {
	switch {
	case r.err != nil:
		return "offline"
	case r.leads:
		return "leader"
	}
	return "follower"
}
