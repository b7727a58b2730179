package broker

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/karstlog/karst/cluster/replica"
)

// metrics counts what only the handlers know. Bytes and records of topics are counted by package replica.
type metrics struct {
	produceErrors *prometheus.CounterVec
	produceConv   *prometheus.CounterVec
	fetchConv     *prometheus.CounterVec
	registry      prometheus.Registerer
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		produceErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "karst_produce_errors_total",
			Help: "Partitions of Produce requests that were refused, by topic and Kafka error code; topic is empty when it does not exist.",
		}, []string{"topic", "error"}),
		produceConv: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "karst_produce_conversion_total",
			Help: "Message sets of old clients that were rewritten as batches, by their magic.",
		}, []string{"from"}),
		fetchConv: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "karst_fetch_conversion_total",
			Help: "Partitions whose batches were rewritten as message sets for old clients, by magic.",
		}, []string{"to"}),
		registry: r,
	}
	if r != nil {
		r.MustRegister(m.produceErrors, m.produceConv, m.fetchConv)
	}
	return m
}

func (m *metrics) watchFetches(f *fetchAPI) {
	c := f.sessions

	if m.registry == nil {
		return
	}
	gauge := func(name, help string, get func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, get)
	}
	m.registry.MustRegister(
		gauge("karst_fetch_parked_partitions", "Partitions that fetches wait on.", func() float64 {
			return float64(f.parked.Load())
		}),
		gauge("karst_fetch_conversion_bytes", "Bytes held by conversions for old clients.", func() float64 {
			return float64(f.converting.held.Load())
		}),
		gauge("karst_fetch_sessions", "Incremental fetch sessions that are cached.", func() float64 {
			n, _, _ := c.size()
			return float64(n)
		}),
		gauge("karst_fetch_session_partitions", "Partitions in all fetch sessions.", func() float64 {
			_, n, _ := c.size()
			return float64(n)
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "karst_fetch_session_evictions_total", Help: "Fetch sessions dropped to make room for others.",
		}, func() float64 {
			_, _, n := c.size()
			return float64(n)
		}),
	)
}

// produceFailed counts a refusal. A topic that does not exist gets no series of its own: clients could make any number.
func (m *metrics) produceFailed(p *replica.Partition, code int16) {
	topic := ""
	if p != nil {
		topic = p.Topic()
	}
	m.produceErrors.WithLabelValues(topic, strconv.Itoa(int(code))).Inc()
}

// produceConversions counts a rewritten message set by the magic of its first entry.
func (m *metrics) produceConversions(set []byte) {
	const magicAt = 16
	if len(set) > magicAt {
		m.produceConv.WithLabelValues(strconv.Itoa(int(set[magicAt]))).Inc()
	}
}

func (m *metrics) fetchConverted(magic int8) {
	m.fetchConv.WithLabelValues(strconv.Itoa(int(magic))).Inc()
}
