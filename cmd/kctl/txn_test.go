package main

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/karsttest"
	"github.com/karstlog/karst/protocol/batch"
)

// openTxn leaves a transaction open that has written one record to t-0.
func openTxn(t *testing.T, b *karsttest.Broker, id string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Bootstrap()...), kgo.TransactionalID(id), kgo.DefaultProduceTopic("t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(context.Background(), kgo.StringRecord("open")).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func TestTransactionsAreListedAndAborted(t *testing.T) {
	b := karsttest.Start(t, karsttest.Topic("t", 1))
	openTxn(t, b, "pay-3")
	at := func(args ...string) (int, string) {
		stdout, stderr, status := execute(t, "", append(args, "-b", b.Bootstrap()[0])...)
		return status, stdout + stderr
	}
	if status, out := at("txn", "list", "--state", "Ongoing"); status != 0 || !strings.Contains(out, "pay-3") {
		t.Errorf("list: %d %s", status, out)
	}
	if _, out := at("txn", "list", "--older-than", "1h"); strings.Contains(out, "pay-3") {
		t.Errorf("list --older-than 1h: %s", out)
	}
	if status, out := at("txn", "describe", "pay-3"); status != 0 || !strings.Contains(out, "t-0") {
		t.Errorf("describe: %d %s", status, out)
	}
	if status, out := at("txn", "producers", "t"); status != 0 || !strings.Contains(out, "pay-3") {
		t.Errorf("producers: %d %s", status, out)
	}
	if status, out := at("txn", "find-hanging"); status != 0 {
		t.Errorf("its coordinator knows it: %d %s", status, out)
	}
	if status, out := at("txn", "abort", "--txn-id", "pay-3", "--yes"); status != exitUsage {
		t.Errorf("abort without --fence: %d %s", status, out)
	}
	if status, out := at("txn", "abort", "--txn-id", "pay-3", "--fence", "--yes"); status != 0 {
		t.Errorf("abort: %d %s", status, out)
	}
	if status, out := at("txn", "list", "--state", "Ongoing"); status != 0 || strings.Contains(out, "pay-3") {
		t.Errorf("list after the abort: %d %s", status, out)
	}
	if status, out := at("txn", "describe", "none"); status == 0 {
		t.Errorf("describe of none: %s", out)
	}
}

// TestHangingTransactionIsFoundAndAborted makes one that no coordinator knows, which takes a broker that does not ask.
func TestHangingTransactionIsFoundAndAborted(t *testing.T) {
	b := karsttest.Start(t, karsttest.Topic("t", 1), karsttest.Setting("transaction.partition.verification.enable", "false"))
	hang(t, b)
	at := func(args ...string) (int, string) {
		stdout, stderr, status := execute(t, "", append(args, "-b", b.Bootstrap()[0])...)
		return status, stdout + stderr
	}
	if status, out := at("txn", "find-hanging", "--topic", "t"); status != exitUnhealthy || !strings.Contains(out, "4711") {
		t.Errorf("find-hanging: %d %s", status, out)
	}
	if status, out := at("txn", "abort", "--topic", "t", "--partition", "0", "--start-offset", strconv.Itoa(5), "--yes"); status != exitNotFound {
		t.Errorf("abort of none: %d %s", status, out)
	}
	if status, out := at("txn", "abort", "--topic", "t", "--partition", "0", "--start-offset", "0", "--yes"); status != 0 {
		t.Errorf("abort: %d %s", status, out)
	}
	if status, out := at("txn", "find-hanging"); status != 0 {
		t.Errorf("after the abort: %d %s", status, out)
	}
}

func hang(t *testing.T, b *karsttest.Broker) {
	t.Helper()
	build := batch.NewBuilder(batch.BuilderOptions{HasProducer: true, ProducerID: 4711, Transactional: true})
	if err := build.Append(batch.Record{Value: []byte("hangs")}); err != nil {
		t.Fatal(err)
	}
	records, err := build.Build()
	if err != nil {
		t.Fatal(err)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Bootstrap()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	id := "x"
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.TransactionID, req.Acks, req.TimeoutMillis = 9, &id, -1, 10_000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = "t"
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Records = records
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := cl.Broker(1).Request(context.Background(), pinned{req})
	if err != nil {
		t.Fatal(err)
	}
	if code := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode; code != 0 {
		t.Fatalf("produce: %d", code)
	}
}

// pinned keeps the version of a request, which names its topics.
type pinned struct{ *kmsg.ProduceRequest }

// MaxVersion implements kmsg.Request.
func (pinned) MaxVersion() int16 { return 9 }
