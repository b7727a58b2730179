package link

import "github.com/prometheus/client_golang/prometheus"

// metrics counts for this package.
type metrics struct {
	accepted     *prometheus.CounterVec
	refused      *prometheus.CounterVec
	connected    prometheus.Counter
	dialFailures prometheus.Counter
	calls        prometheus.Counter
	gone         prometheus.Counter
	collectors   []prometheus.Collector
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "karst_link_" + name, Help: help})
	}
	m := &metrics{
		accepted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "karst_link_accepted_total", Help: "Streams accepted on the cluster port, by kind: R Raft, K internal requests, J joining.",
		}, []string{"kind"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "karst_link_turned_away_total", Help: "Connections to the cluster port that became no stream, by reason.",
		}, []string{"reason"}),
		connected:    counter("control_connections_total", "Control connections made to other brokers."),
		dialFailures: counter("dial_failures_total", "Streams to other brokers that could not be opened."),
		calls:        counter("calls_total", "Requests over control connections."),
		gone:         counter("gone_total", "Processes of other brokers that were seen to have ended."),
	}
	m.collectors = []prometheus.Collector{m.accepted, m.refused, m.connected, m.dialFailures, m.calls, m.gone}
	return m
}

func (m *metrics) turnedAway(reason string) { m.refused.WithLabelValues(reason).Inc() }

func (m *metrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	for _, c := range m.collectors {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func (m *metrics) unregister(r prometheus.Registerer) {
	if r == nil {
		return
	}
	for _, c := range m.collectors {
		r.Unregister(c)
	}
}
