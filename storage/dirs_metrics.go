package storage

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// dirsMetrics counts what happens in the log directories. What can be looked up is looked up when somebody asks.
type dirsMetrics struct {
	d          *Dirs
	registry   prometheus.Registerer
	syncs      prometheus.Histogram
	syncErrors prometheus.Counter
	scrubbed   prometheus.Counter
	cleaner    cleanerMetrics
	registered []prometheus.Collector
}

func newDirsMetrics(d *Dirs) *dirsMetrics {
	m := &dirsMetrics{
		d: d, registry: d.o.Registerer,
		syncs: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "karst_storage_sync_seconds", Help: "Time that syncs of logs took.",
			Buckets: prometheus.ExponentialBuckets(0.0002, 4, 9),
		}),
		syncErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "karst_storage_sync_errors_total", Help: "Syncs of logs that failed; each takes its directory offline.",
		}),
	}
	m.cleaner = newCleanerMetrics()
	m.scrubbed = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "karst_storage_scrubbed_bytes_total", Help: "Bytes of closed segments that were read again to check them.",
	})
	if m.registry == nil {
		return m
	}
	for _, c := range append(m.cleaner.all(), m.scrubbed, m.syncs, m.syncErrors, m) {
		if m.registry.Register(c) == nil {
			m.registered = append(m.registered, c)
		}
	}
	return m
}

func (m *dirsMetrics) unregister() {
	for _, c := range m.registered {
		m.registry.Unregister(c)
	}
}

func (m *dirsMetrics) synced(took time.Duration, failed bool) {
	m.syncs.Observe(took.Seconds())
	if failed {
		m.syncErrors.Inc()
	}
}

// cleanerMetrics counts what compaction does.
type cleanerMetrics struct {
	passes, errors, read, written, removed prometheus.Counter
	seconds                                prometheus.Histogram
}

func newCleanerMetrics() cleanerMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "karst_storage_cleaner_" + name, Help: help})
	}
	return cleanerMetrics{
		passes:  counter("passes_total", "Passes of compaction over a log that were made to their end."),
		errors:  counter("errors_total", "Passes that failed, those over damaged logs included."),
		read:    counter("read_bytes_total", "Bytes of batches that compaction read."),
		written: counter("written_bytes_total", "Bytes that compaction wrote."),
		removed: counter("removed_bytes_total", "Bytes by which compaction made logs smaller."),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "karst_storage_cleaner_seconds", Help: "Time that passes of compaction took.",
			Buckets: prometheus.ExponentialBuckets(0.01, 4, 9),
		}),
	}
}

func (m *cleanerMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.passes, m.errors, m.read, m.written, m.removed, m.seconds}
}

func (m *dirsMetrics) cleaned(s CleanStats, took time.Duration, err error) {
	c := &m.cleaner
	c.read.Add(float64(s.Read))
	c.written.Add(float64(s.Written))
	if err != nil {
		c.errors.Inc()
		return
	}
	c.passes.Inc()
	c.removed.Add(float64(max(0, s.Before-s.After)))
	c.seconds.Observe(took.Seconds())
}

// dirGauge is one figure per directory.
type dirGauge struct {
	desc  *prometheus.Desc
	value func(*Dirs, *directory) float64
}

func dirGauges() []dirGauge {
	gauge := func(name, help string, value func(*Dirs, *directory) float64) dirGauge {
		return dirGauge{prometheus.NewDesc("karst_storage_"+name, help, []string{"dir"}, nil), value}
	}
	flag := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	return []dirGauge{
		gauge("dir_offline", "1 when the log directory is offline.",
			func(_ *Dirs, dir *directory) float64 { return flag(dir.offline() != nil) }),
		gauge("disk_full", "1 when appends are refused because the disk's reserve is reached.",
			func(_ *Dirs, dir *directory) float64 { return flag(dir.watch.full.Load()) }),
		gauge("disk_total_bytes", "Size of the disk that holds the log directory.",
			func(_ *Dirs, dir *directory) float64 { return float64(dir.total.Load()) }),
		gauge("disk_free_bytes", "What is free on it.",
			func(_ *Dirs, dir *directory) float64 { return float64(dir.free.Load()) }),
		gauge("logs", "Partitions in the log directory.",
			func(d *Dirs, dir *directory) float64 { return float64(len(d.slotsOf(dir))) }),
		gauge("damaged_logs", "Partitions in it that are known to be damaged; compaction leaves them alone.",
			func(d *Dirs, dir *directory) float64 { return float64(d.damagedIn(dir)) }),
		gauge("held_logs", "Partitions in it that are not deleted or compacted as their settings ask.",
			func(d *Dirs, dir *directory) float64 { n, _ := d.heldIn(dir); return float64(n) }),
		gauge("held_bytes", "Bytes of them that would be gone.",
			func(d *Dirs, dir *directory) float64 { _, n := d.heldIn(dir); return float64(n) }),
		gauge("strays", "Directories of unknown partitions that are set aside.",
			func(_ *Dirs, dir *directory) float64 { return float64(dir.reap.strays()) }),
		gauge("unsynced_age_seconds", "Age of the oldest byte that is not on disk; 0 when all is.",
			func(d *Dirs, dir *directory) float64 { return d.unsyncedAge(dir).Seconds() }),
		gauge("slowest_write_seconds", "How long the longest write or sync that is running has taken so far.",
			func(_ *Dirs, dir *directory) float64 { return dir.watch.longest().Seconds() }),
	}
}

// damagedIn is how many logs of a directory are known to be damaged.
func (d *Dirs) damagedIn(dir *directory) (n int) {
	for _, l := range d.logsOf(dir) {
		if l.Damaged() != nil {
			n++
		}
	}
	return n
}

// heldIn counts the logs of a directory that something keeps larger than they should be.
func (d *Dirs) heldIn(dir *directory) (logs, bytes int64) {
	for _, l := range d.logsOf(dir) {
		if h := l.Held(); h != nil {
			logs++
			bytes += h.Bytes
		}
	}
	return logs, bytes
}

// unsyncedAge is how long ago the oldest byte was written that is not on disk.
func (d *Dirs) unsyncedAge(dir *directory) time.Duration {
	var oldest time.Time
	for _, l := range d.logsOf(dir) {
		if at := l.OldestUnsynced(); !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
	}
	if oldest.IsZero() {
		return 0
	}
	return max(0, d.o.Wall().Sub(oldest))
}

// Describe implements prometheus.Collector.
func (m *dirsMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, g := range dirGauges() {
		out <- g.desc
	}
	out <- openFilesDesc()
	out <- dirtyRatioDesc()
}

// Collect implements prometheus.Collector.
func (m *dirsMetrics) Collect(out chan<- prometheus.Metric) {
	for _, g := range dirGauges() {
		for _, dir := range m.d.dirs {
			out <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, g.value(m.d, dir), dir.path)
		}
	}
	out <- prometheus.MustNewConstMetric(openFilesDesc(), prometheus.GaugeValue, float64(m.d.cache.Open()))
	out <- prometheus.MustNewConstMetric(dirtyRatioDesc(), prometheus.GaugeValue, math.Float64frombits(m.d.cleaner.dirty.Load()))
}

func openFilesDesc() *prometheus.Desc {
	return prometheus.NewDesc("karst_storage_open_files", "Files and mappings of logs that are open.", nil, nil)
}

func dirtyRatioDesc() *prometheus.Desc {
	return prometheus.NewDesc("karst_storage_cleaner_dirty_ratio", "Largest share of uncleaned bytes in a compacted log at the last look.", nil, nil)
}
