package gossip

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct{ list []prometheus.Collector }

func newMetrics() *metrics { return &metrics{} }

func (m *metrics) register(r prometheus.Registerer, v *view) error {
	if r == nil {
		return nil
	}
	m.list = []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "karst_gossip_members", Help: "Other brokers that gossip holds for alive.",
		}, func() float64 { return float64(len(v.members())) }),
	}
	var errs []error
	for _, c := range m.list {
		errs = append(errs, r.Register(c))
	}
	return errors.Join(errs...)
}

func (m *metrics) unregister(r prometheus.Registerer) {
	for _, c := range m.list {
		r.Unregister(c)
	}
}
