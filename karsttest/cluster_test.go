package karsttest_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/karstlog/karst/karsttest"
)

func TestClusterKeepsRecordsWhenABrokerGoes(t *testing.T) {
	c := karsttest.StartCluster(t, 3, karsttest.Topic("orders", 3))
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Bootstrap()...), kgo.ConsumeTopics("orders"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	topics, err := kadm.NewClient(client).ListTopics(t.Context(), "orders")
	if err != nil || topics["orders"].Partitions.NumReplicas() != 3 {
		t.Fatalf("replicas: %d, %v", topics["orders"].Partitions.NumReplicas(), err)
	}
	const n = 300
	for i := range n {
		if i == n/2 {
			c.Broker(2).Stop()
		}
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Value: []byte(strconv.Itoa(i))}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for len(seen) < n {
		fetches := client.PollFetches(t.Context())
		if fetches.IsClientClosed() || t.Context().Err() != nil {
			t.Fatal("no more records")
		}
		fetches.EachRecord(func(r *kgo.Record) { seen[string(r.Value)] = true })
	}
	c.Stop()
}

// TestMetricsOfClustersAreListed holds what /metrics shows in a cluster against docs/metrics.md.
func TestMetricsOfClustersAreListed(t *testing.T) {
	c := karsttest.StartCluster(t, 2, karsttest.Topic("t", 1))
	listed, err := os.ReadFile(filepath.Join("..", "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	families, err := c.Broker(1).Broker().Metrics().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if name := f.GetName(); strings.HasPrefix(name, "karst_") && !strings.Contains(string(listed), "`"+name+"`") {
			t.Errorf("docs/metrics.md does not list %s: %s (%s)", name, f.GetHelp(), f.GetType())
		}
	}
}
