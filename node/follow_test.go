package node

import (
	"testing"
	"time"

	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/config"
)

// How followers fetch is what the settings say, each in its place.
func TestFollowersFetchAsConfigured(t *testing.T) {
	b, _, err := config.ParseBroker(map[string]string{
		"replica.fetch.wait.max.ms": "123", "replica.fetch.min.bytes": "7", "replica.fetch.max.bytes": "4321",
		"replica.fetch.response.max.bytes": "8765", "replica.fetch.backoff.ms": "37", "replica.socket.timeout.ms": "20000",
		"replica.lag.time.max.ms": "5000",
	})
	if err != nil {
		t.Fatal(err)
	}
	got := (&Node{o: Options{Config: b}}).replicaOptions()
	want := replica.FetchSettings{
		MaxWait: 123 * time.Millisecond, MinBytes: 7, MaxBytes: 4321, MaxResponseBytes: 8765, MaxBackoff: 37 * time.Millisecond, Timeout: 20 * time.Second,
	}
	if got.Fetch != want || got.MaxLag != 5*time.Second {
		t.Errorf("%+v, lag %s", got.Fetch, got.MaxLag)
	}
}
