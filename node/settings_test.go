package node

import (
	"context"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/storage"
)

// patience is for machines that do nothing else than something else.
const patience = time.Minute

// startNode runs a node in memory until the test ends. settings are name=value.
func startNode(t *testing.T, fs vfs.FS, settings ...string) *Node {
	t.Helper()
	loaded, err := LoadConfig(LoadOptions{
		Flags: map[string]string{"listeners": "127.0.0.1:0", "karst.http.addr": ""}, Sets: settings,
		ReadFile: files(nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	n := New(Options{Config: loaded.Broker, Static: loaded.Static, Memory: true, FS: fs})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { err = n.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	select {
	case <-n.Ready():
	case <-time.After(patience):
		t.Fatal("not ready")
	}
	return n
}

func (n *Node) admin(t *testing.T) *kadm.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(n.Addr("PLAINTEXT").String()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return kadm.NewClient(cl)
}

// set changes a setting of one broker, or of all when none is named, at run time.
func set(t *testing.T, adm *kadm.Client, name, value string, brokers ...int32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resp, err := adm.AlterBrokerConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, brokers...)
	if err == nil {
		err = resp[0].Err
	}
	if err != nil {
		t.Fatalf("%s=%s: %v", name, value, err)
	}
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not seen: " + what)
		}
	}
}

// What the log directories do by themselves is as configured, each setting in its place.
func TestDirectoriesWorkAsConfigured(t *testing.T) {
	b, _, err := config.ParseBroker(map[string]string{
		"log.cleaner.threads": "3", "log.cleaner.dedupe.buffer.size": "1000000", "log.cleaner.io.buffer.load.factor": "0.6",
		"log.cleaner.io.max.bytes.per.second": "5000", "log.cleaner.backoff.ms": "700",
		"karst.flush.interval.ms": "250", "karst.disk.stall.ms": "3000", "karst.disk.reserve": "123456", "cordoned.log.dirs": "/a", "log.dirs": "/a,/b",
	})
	if err != nil {
		t.Fatal(err)
	}
	c := cleaner(b.Storage.Cleaner)
	if c.Threads != 3 || c.DedupeBytes != 1_000_000 || c.LoadFactor != 0.6 || c.BytesPerSecond != 5000 || c.Backoff != 700*time.Millisecond {
		t.Errorf("%+v", c)
	}
	l := dirsLimits(b.Storage)
	if l.FlushInterval != 250*time.Millisecond || l.Stall != 3*time.Second || l.Reserve.MaxBytes != 123456 || !reflect.DeepEqual(l.Cordoned, []string{"/a"}) {
		t.Errorf("%+v", l)
	}
}

// What was set at run time counts when the logs are opened at the next start.
func TestSettingsOfRunTimeCountAtTheNextStart(t *testing.T) {
	n := startNode(t, nil, "num.recovery.threads.per.data.dir=3")
	if got := n.settingsAtStart().Storage.RecoveryThreads; got != 3 {
		t.Errorf("%d threads", got)
	}
	adm := n.admin(t)
	set(t, adm, "num.recovery.threads.per.data.dir", "5")
	until(t, "five threads", func() bool { return n.settingsAtStart().Storage.RecoveryThreads == 5 })
	set(t, adm, "num.recovery.threads.per.data.dir", "7", n.ID())
	until(t, "seven threads", func() bool { return n.settingsAtStart().Storage.RecoveryThreads == 7 })
}

// karst.disk.stall.ms: a directory whose disk does not come back from a write is given up, and told of as offline. The
// setting is changed while the disk hangs.
func TestStalledDiskIsGivenUp(t *testing.T) {
	open := make(chan struct{})
	defer close(open)
	f := vfs.NewFaulty(vfs.NewMem(1))
	n := startNode(t, f, "log.dirs=/a,/b", "karst.disk.stall.ms=0", "karst.flush.interval.ms=1000")
	adm := n.admin(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := adm.CreateTopic(ctx, 2, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	hung := make(chan struct{})
	var once sync.Once
	f.SetHook(func(op vfs.Op) *vfs.Fault {
		if op.Kind == vfs.Write && strings.HasPrefix(op.Path, "/a/t-") {
			once.Do(func() { close(hung) })
			<-open
		}
		return nil
	})
	cl, err := kgo.NewClient(kgo.SeedBrokers(n.Addr("PLAINTEXT").String()), kgo.DefaultProduceTopic("t"), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for range 4 {
		cl.Produce(ctx, kgo.StringRecord("x"), nil)
	}
	select {
	case <-hung:
	case <-ctx.Done():
		t.Fatal("no write to /a")
	}
	if len(n.dirs.Offline()) != 0 {
		t.Fatal("given up without a limit")
	}
	set(t, adm, "karst.disk.stall.ms", "1000")
	until(t, "the directory is offline", func() bool {
		for _, d := range n.dirs.Describe() {
			if d.Path == "/a" && d.Err != nil && strings.Contains(d.Err.Error(), "does not answer") {
				return true
			}
		}
		return false
	})
}

// log.cleaner.threads and what else belongs to the cleaner: a broker that cleans nothing does from the moment it is told to.
func TestCleanerIsSetAtRunTime(t *testing.T) {
	n := startNode(t, nil, "log.cleaner.threads=0", "log.cleaner.backoff.ms=3600000", "log.segment.bytes=1048576")
	adm := n.admin(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	compact, ratio, age := "compact", "0.01", "1"
	if _, err := adm.CreateTopic(ctx, 1, 1, map[string]*string{"cleanup.policy": &compact, "min.cleanable.dirty.ratio": &ratio, "segment.ms": &age}, "t"); err != nil {
		t.Fatal(err)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(n.Addr("PLAINTEXT").String()), kgo.DefaultProduceTopic("t"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	l, ok := n.dirs.Get(storage.TopicPartition{Topic: "t"})
	if !ok {
		t.Fatal("no log")
	}
	write := func() {
		if err := cl.ProduceSync(ctx, kgo.KeyStringRecord("k", "v")).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	largest := l.Size()
	for range 20 {
		write()
		if l.Size() < largest {
			t.Fatal("cleaned without a thread")
		}
		largest = l.Size()
	}
	set(t, adm, "log.cleaner.backoff.ms", "20")
	set(t, adm, "log.cleaner.threads", "1")
	until(t, "a smaller log", func() bool {
		write()
		return l.Size() < largest
	})
}

// karst.cluster.advertise and karst.gossip.advertise: other brokers are told these addresses instead of those that were
// bound, and reach the broker there.
func TestOtherBrokersAreToldTheAdvertisedAddresses(t *testing.T) {
	first := startNode(t, nil, "node.id=1", "karst.bootstrap=true", "karst.cluster.addr=0.0.0.0:0", "karst.gossip.addr=0.0.0.0:0",
		"karst.cluster.advertise=127.0.0.2:0", "karst.gossip.advertise=127.0.0.3:0")
	for what, addr := range map[string][2]string{"cluster": {first.ClusterAddr(), "127.0.0.2"}, "gossip": {first.GossipAddr(), "127.0.0.3"}} {
		if host, port, err := net.SplitHostPort(addr[0]); err != nil || host != addr[1] || port == "0" {
			t.Errorf("the %s address is %s", what, addr[0])
		}
	}
	second := startNode(t, nil, "node.id=2", "karst.cluster.addr=127.0.0.1:0", "karst.gossip.addr=127.0.0.1:0", "karst.join="+first.GossipAddr())
	b, ok := second.quorum.Image().Broker(1)
	if !ok || b.ClusterAddr != first.ClusterAddr() {
		t.Errorf("the second broker knows the first as %+v", b)
	}
	until(t, "the first broker by gossip", func() bool {
		m, ok := second.member.gossip.Find(1)
		return ok && m.ClusterAddr == first.ClusterAddr()
	})
	if plain := second.ClusterAddr(); !strings.HasPrefix(plain, "127.0.0.1:") {
		t.Errorf("without a setting: %s", plain)
	}
}
