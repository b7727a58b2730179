package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// measure registers what is about the process and the node as a whole.
func (n *Node) measure() {
	version := n.o.Version
	if version == "" {
		version = "unknown"
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "karst_build_info", Help: "Always 1; the label version says which build this is.", ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	n.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), build,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "karst_ready", Help: "1 while /readyz says that this broker takes clients."}, func() float64 {
			if len(n.notReady()) > 0 {
				return 0
			}
			return 1
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "karst_uptime_seconds", Help: "Time since the start of the broker."}, func() float64 {
			return time.Since(n.started).Seconds()
		}),
	)
}
