package cluster

import "github.com/prometheus/client_golang/prometheus"

// metrics counts for this package.
type metrics struct {
	autoCreateDropped prometheus.Counter
	producerIDBlocks  prometheus.Counter
	fenced            prometheus.Counter
	unclean           prometheus.Counter
	recovered         prometheus.Counter
	behind            prometheus.Gauge
}

func newMetrics() *metrics {
	return &metrics{
		autoCreateDropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "karst_cluster_auto_create_dropped_total", Help: "Topics not created on first use since too many waited.",
		}),
		producerIDBlocks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "karst_cluster_producer_id_blocks_total", Help: "Blocks of producer ids loaded after the first.",
		}),
		fenced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "karst_cluster_brokers_fenced_total", Help: "Brokers that this one, as the controller, has taken out of use.",
		}),
		unclean: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "karst_cluster_unclean_elections_total", Help: "Leaders elected that may lack acknowledged records.",
		}),
		recovered: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "karst_cluster_recovered_elections_total", Help: "Leaders elected by the longest log, since nobody could prove to have everything.",
		}),
		behind: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "karst_cluster_metadata_lag_entries",
			Help: "Entries of the metadata log that the slowest broker in use is behind, as its controller knows; 0 elsewhere.",
		}),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.autoCreateDropped, m.producerIDBlocks, m.fenced, m.unclean, m.recovered, m.behind}
}

func (m *metrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	for _, c := range m.collectors() {
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
	for _, c := range m.collectors() {
		r.Unregister(c)
	}
}
