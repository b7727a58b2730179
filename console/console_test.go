package console

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func get(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func TestReadinessFollowsItsReasons(t *testing.T) {
	var reasons []string
	h := Handler(Options{Gatherer: prometheus.NewRegistry(), NotReady: func() []string { return reasons }})
	if code, body := get(t, h, "/readyz"); code != 200 || !strings.Contains(body, `"ready":true`) {
		t.Errorf("ready broker: %d %s", code, body)
	}
	reasons = []string{"recovering 3 partitions"}
	if code, body := get(t, h, "/readyz"); code != 503 || !strings.Contains(body, "recovering 3 partitions") {
		t.Errorf("broker in recovery: %d %s", code, body)
	}
	if code, _ := get(t, h, "/healthz"); code != 200 {
		t.Errorf("healthz = %d although the process lives", code)
	}
}

func TestMetricsComeFromTheGivenRegistry(t *testing.T) {
	r := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "karst_test_total"})
	r.MustRegister(c)
	c.Add(7)
	h := Handler(Options{Gatherer: r, NotReady: func() []string { return nil }})
	if code, body := get(t, h, "/metrics"); code != 200 || !strings.Contains(body, "karst_test_total 7") {
		t.Errorf("metrics: %d %s", code, body)
	}
}

func TestProfilesOnlyOnRequest(t *testing.T) {
	for _, on := range []bool{false, true} {
		h := Handler(Options{Gatherer: prometheus.NewRegistry(), NotReady: func() []string { return nil }, Profiles: on})
		code, _ := get(t, h, "/debug/pprof/")
		if (code == 200) != on {
			t.Errorf("profiles %v: status %d", on, code)
		}
	}
}
