package coordinator

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/karstlog/karst/group"
)

// metrics counts what groups do here. By group there is the lag only, of a bounded number of them: clients could make any
// number of series.
type metrics struct {
	loadFailures prometheus.Counter
	loadSeconds  prometheus.Histogram
	loadRecords  prometheus.Counter
}

func newMetrics(c *Coordinator, r prometheus.Registerer) *metrics {
	m := &metrics{
		loadFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "karst_group_load_failures_total", Help: "Partitions of the offsets topic that could not be read; they are tried again.",
		}),
		loadSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "karst_group_load_seconds", Help: "How long it took to read a partition of the offsets topic.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 9),
		}),
		loadRecords: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "karst_group_load_records_total", Help: "Records that were read to load groups.",
		}),
	}
	if r != nil {
		r.MustRegister(m.loadFailures, m.loadSeconds, m.loadRecords, &collector{
			c:          c,
			groups:     prometheus.NewDesc("karst_group_groups", "Groups that this broker coordinates, by state.", []string{"state"}, nil),
			members:    prometheus.NewDesc("karst_group_members", "Members of the groups that this broker coordinates.", nil, nil),
			partitions: prometheus.NewDesc("karst_group_partitions", "Partitions of the offsets topic that this broker coordinates, by phase.", []string{"phase"}, nil),
			lag:        prometheus.NewDesc("karst_group_lag", "Records between a group's offsets and the ends of a topic's partitions.", []string{"group", "topic"}, nil),
			behind:     prometheus.NewDesc("karst_group_time_lag_seconds", "Age of the oldest record of a topic that a group has yet to read; 0 when it has read all.", []string{"group", "topic"}, nil),
			waiting:    prometheus.NewDesc("karst_group_waiting_calls", "Calls that wait for a rebalance or a write.", nil, nil),
		})
	}
	return m
}

func (m *metrics) loaded(took time.Duration, records int) {
	m.loadSeconds.Observe(took.Seconds())
	m.loadRecords.Add(float64(records))
}

// collector counts groups when it is asked.
type collector struct {
	c                                    *Coordinator
	groups, members, partitions, waiting *prometheus.Desc
	lag, behind                          *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (k *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{k.groups, k.members, k.partitions, k.waiting, k.lag, k.behind} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (k *collector) Collect(out chan<- prometheus.Metric) {
	states := map[group.State]int{}
	phases := map[phase]int{}
	members, waiting := 0, 0
	for _, s := range *k.c.shards.Load() {
		if s == nil {
			continue
		}
		s.mu.Lock()
		phases[s.mu.phase]++
		waiting += len(s.mu.calls)
		for _, e := range s.mu.groups {
			states[e.State()]++
			members += e.Members()
		}
		s.mu.Unlock()
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for _, st := range []group.State{group.Empty, group.PreparingRebalance, group.CompletingRebalance, group.Stable} {
		gauge(k.groups, states[st], st.String())
	}
	gauge(k.partitions, phases[phaseLoading], "loading")
	gauge(k.partitions, phases[phaseActive], "active")
	gauge(k.members, members)
	gauge(k.waiting, waiting)
	for _, l := range *k.c.lags.Load() {
		gauge(k.lag, int(l.records), l.group, l.topic)
		if l.timed {
			out <- prometheus.MustNewConstMetric(k.behind, prometheus.GaugeValue, l.behind.Seconds(), l.group, l.topic)
		}
	}
}
