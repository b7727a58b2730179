package protocol

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts what the server does. Everything on the path of a request is looked up once, when the server is made.
type metrics struct {
	requests   *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
	bytes      *prometheus.CounterVec
	inFlight   prometheus.Gauge
	open       *prometheus.GaugeVec
	accepted   *prometheus.CounterVec
	rejected   *prometheus.CounterVec
	ended      *prometheus.CounterVec
	collectors []prometheus.Collector
}

// apiMetrics are those of one row of the table.
type apiMetrics struct {
	started  *Server
	first    int16
	versions []prometheus.Counter
	seconds  prometheus.Observer
	in, out  prometheus.Counter
}

// listenerMetrics are those of one listener.
type listenerMetrics struct {
	open                       prometheus.Gauge
	accepted, rejected, failed prometheus.Counter
}

func newMetrics(s *Server) *metrics {
	prefix := "karst_"
	if s.opts.Internal {
		prefix = "karst_internal_"
	}
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "requests_total", Help: "Requests that have ended, by API and version.",
		}, []string{"api", "version"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "request_seconds", Help: "From the request's last byte to the answer's, time parked included.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 4, 11),
		}, []string{"api"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "request_bytes", Help: "Bytes of requests (in) and answers (out).",
		}, []string{"api", "dir"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "requests_inflight", Help: "Requests whose answer has not left.",
		}),
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "connections", Help: "Open connections.",
		}, []string{"listener"}),
		accepted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "connections_total", Help: "Connections by what became of them: accepted, rejected, failed.",
		}, []string{"listener", "result"}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "connection_rejected_total", Help: "Connections reset because a limit was reached.",
		}, []string{"reason"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "protocol_connections_ended_total", Help: "Connections that have ended, by reason.",
		}, []string{"reason"}),
	}
	m.collectors = []prometheus.Collector{
		m.requests, m.seconds, m.bytes, m.inFlight, m.open, m.accepted, m.rejected, m.ended,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: prefix + "protocol_frame_bytes", Help: "Memory that requests hold, of the budget.",
		},
			func() float64 { return float64(s.budget.used.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: prefix + "protocol_frame_waiting", Help: "Connections that wait for memory to read a request.",
		},
			func() float64 { return float64(s.budget.waiting.Load()) }),
	}
	for _, e := range s.table.sorted {
		e.metrics = m.api(s, e)
	}
	return m
}

func (m *metrics) api(s *Server, e *entry) *apiMetrics {
	a := &apiMetrics{
		started: s, first: e.Min, seconds: m.seconds.WithLabelValues(e.name),
		in: m.bytes.WithLabelValues(e.name, "in"), out: m.bytes.WithLabelValues(e.name, "out"),
	}
	for v := e.Min; v <= e.Max; v++ {
		a.versions = append(a.versions, m.requests.WithLabelValues(e.name, strconv.Itoa(int(v))))
	}
	return a
}

func (m *metrics) listener(name string) *listenerMetrics {
	return &listenerMetrics{
		open:     m.open.WithLabelValues(name),
		accepted: m.accepted.WithLabelValues(name, "accepted"),
		rejected: m.accepted.WithLabelValues(name, "rejected"),
		failed:   m.accepted.WithLabelValues(name, "failed"),
	}
}

// done counts a call whose answer of n bytes has left.
func (a *apiMetrics) done(c *Call, n int, now time.Duration) {
	a.versions[c.version-a.first].Inc()
	a.seconds.Observe((now - c.received.Sub(a.started.started)).Seconds())
	a.in.Add(float64(c.size))
	a.out.Add(float64(n))
}

// register hands the metrics over.
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

// endLabel is the metric's word for why a connection ended.
func endLabel(reason error) string {
	var size *FrameSizeError
	var unsupported *UnsupportedError
	switch {
	case reason == nil, errors.Is(reason, io.EOF):
		return "closed_by_peer"
	case errors.Is(reason, ErrIdle):
		return "idle"
	case errors.Is(reason, ErrStalled):
		return "stalled"
	case errors.Is(reason, ErrMalformed), errors.As(reason, &size):
		return "malformed"
	case errors.As(reason, &unsupported):
		return "unsupported"
	case errors.Is(reason, context.Canceled), errors.Is(reason, os.ErrDeadlineExceeded):
		return "server_stopped"
	case errors.Is(reason, syscall.ECONNRESET), errors.Is(reason, syscall.EPIPE), errors.Is(reason, io.ErrUnexpectedEOF):
		return "broken"
	}
	return "failed"
}
