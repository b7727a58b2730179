package karst_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/karstlog/karst"
)

func start(t *testing.T, c karst.Config) *karst.Broker {
	t.Helper()
	b, err := karst.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Shutdown(context.Background()) })
	return b
}

func TestEmbeddedBroker(t *testing.T) {
	defer goleak.VerifyNone(t)
	t.Run("life", func(t *testing.T) {
		b := start(t, karst.Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0", Settings: map[string]string{"num.partitions": "2"}})
		client, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.AllowAutoTopicCreation())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if metrics, err := b.Metrics().Gather(); err != nil || len(metrics) == 0 {
			t.Errorf("metrics: %d, %v", len(metrics), err)
		}
		w := httptest.NewRecorder()
		b.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		if w.Code != http.StatusOK {
			t.Errorf("readyz: %d %s", w.Code, w.Body)
		}
		if err := b.Shutdown(t.Context()); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		<-b.Done()
		if b.Err() != nil {
			t.Errorf("a clean shutdown left %v", b.Err())
		}
	})
}

func TestNewRefusesBadSettings(t *testing.T) {
	_, err := karst.New(karst.Config{Settings: map[string]string{"log.retention.ms": "soon"}})
	if err == nil || !strings.Contains(err.Error(), "log.retention.ms") {
		t.Errorf("a bad setting: %v", err)
	}
}

func TestStartOnlyOnce(t *testing.T) {
	b := start(t, karst.Config{InMemory: true, Listen: "127.0.0.1:0"})
	if err := b.Start(t.Context()); err == nil {
		t.Error("the second start succeeded")
	}
}

func TestStartSaysWhyItFails(t *testing.T) {
	first := start(t, karst.Config{InMemory: true, Listen: "127.0.0.1:0"})
	second, err := karst.New(karst.Config{InMemory: true, Listen: first.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("a port that is taken: %v", err)
	}
}
