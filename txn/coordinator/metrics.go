package coordinator

import "github.com/prometheus/client_golang/prometheus"

// metrics are karst_txn_*, of the transactions that this broker coordinates.
type metrics struct {
	committed, aborted, completed, timedOut, expired, conflicts prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "karst_txn_" + name, Help: help})
		if r != nil {
			r.MustRegister(c)
		}
		return c
	}
	return &metrics{
		committed: counter("commits_total", "Transactions that clients committed."),
		aborted:   counter("aborts_total", "Transactions that clients aborted."),
		completed: counter("completed_total", "Transactions whose markers all partitions have."),
		timedOut:  counter("timeouts_total", "Transactions that were aborted because they took too long."),
		expired:   counter("expired_ids_total", "Transactional ids that were forgotten because nobody used them."),
		conflicts: counter("conflicts_total", "Decisions that lost against another one and were made again."),
	}
}

func (m *metrics) ended(commit bool) {
	if commit {
		m.committed.Inc()
		return
	}
	m.aborted.Inc()
}
