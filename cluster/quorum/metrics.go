package quorum

import (
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/bbolt"
)

// metrics counts for this package. Figures of the store are read when somebody asks.
type metrics struct {
	storeSeconds  prometheus.Histogram
	storeEntries  prometheus.Histogram
	storeFailures prometheus.Counter
	entrySeconds  prometheus.Histogram
	entryCommands prometheus.Histogram
	entryBytes    prometheus.Counter
	forwarded     prometheus.Counter
	restarts      prometheus.Counter
	bolt          func() bbolt.Stats // nil in memory
	collectors    []prometheus.Collector
}

func newMetrics() *metrics {
	seconds := prometheus.ExponentialBuckets(0.0001, 2, 16)
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "karst_quorum_" + name, Help: help, Buckets: buckets})
	}
	counts := prometheus.ExponentialBuckets(1, 2, 10)
	m := &metrics{
		storeSeconds:  histogram("store_seconds", "Time to write entries to the metadata log and sync them.", seconds),
		storeEntries:  histogram("store_entries", "Entries written to the metadata log at once.", counts),
		entrySeconds:  histogram("entry_seconds", "Time from proposing an entry to having applied it.", seconds),
		entryCommands: histogram("entry_commands", "Commands in one entry of the metadata log.", counts),
		storeFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "karst_quorum_store_failures_total", Help: "Writes to the metadata log that failed or took too long.",
		}),
		entryBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "karst_quorum_entry_bytes_total", Help: "Bytes of commands proposed.",
		}),
		forwarded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "karst_quorum_forwarded_total", Help: "Proposals that were sent to a leader elsewhere.",
		}),
		restarts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "karst_quorum_restarts_total", Help: "Times that Raft began anew since the same snapshot came twice.",
		}),
	}
	m.collectors = []prometheus.Collector{
		m.storeSeconds, m.storeEntries, m.entrySeconds, m.entryCommands, m.storeFailures, m.entryBytes, m.forwarded, m.restarts,
	}
	return m
}

func (m *metrics) store(entries int, took time.Duration, err error) {
	m.storeSeconds.Observe(took.Seconds())
	m.storeEntries.Observe(float64(entries))
	if err != nil {
		m.storeFailures.Inc()
	}
}

func (m *metrics) entry(commands, bytes int, took time.Duration) {
	m.entrySeconds.Observe(took.Seconds())
	m.entryCommands.Observe(float64(commands))
	m.entryBytes.Add(float64(bytes))
}

// register adds the figures that are read from q when asked for.
func (m *metrics) register(r prometheus.Registerer, q *Quorum) error {
	gauge := func(name, help string, f func() float64) {
		m.collectors = append(m.collectors, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "karst_quorum_" + name, Help: help}, f))
	}
	gauge("image_index", "Index of the last command in this node's image.", func() float64 { return float64(q.Image().Index()) })
	gauge("apply_lag_entries", "Entries in the log that are not applied yet.", q.applyLag)
	gauge("snapshot_lag_entries", "Entries applied since the last snapshot.", q.snapshotLag)
	gauge("leader", "1 while this node leads the metadata log.", func() float64 {
		if q.IsLeader() {
			return 1
		}
		return 0
	})
	gauge("queued_commands", "Commands waiting to be proposed.", func() float64 { return float64(q.queue.waiting()) })
	gauge("file_bytes", "Size of the metadata log's file.", q.fileBytes)
	if m.bolt != nil {
		page := float64(os.Getpagesize())
		gauge("file_free_bytes", "Free pages in the metadata log's file.", func() float64 { return float64(m.bolt().FreePageN) * page })
		gauge("file_free_list_bytes", "Memory for the list of free pages.", func() float64 { return float64(m.bolt().FreelistInuse) })
	}
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

func (q *Quorum) applyLag() float64 {
	node := q.node.Load()
	if node == nil {
		return 0
	}
	return float64(node.LastIndex()) - float64(node.AppliedIndex())
}

func (q *Quorum) snapshotLag() float64 {
	list, err := q.snaps.List()
	if err != nil || len(list) == 0 {
		return float64(q.Image().Index())
	}
	return max(0, float64(q.Image().Index())-float64(list[0].Index))
}

func (q *Quorum) fileBytes() float64 {
	info, err := os.Stat(q.log.path)
	if q.o.Dir == "" || err != nil {
		return 0
	}
	return float64(info.Size())
}
