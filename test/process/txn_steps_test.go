package process

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/test/internal/proc"
)

// stage is a point of the protocol at which something is killed.
type stage struct {
	name string
	done int      // how many of the steps before EndTxn
	old  bool     // a step that only the old protocol has
	hold []string // EndTxn is under way, and held there
	// reached is the hold that was come to, times how often, when the stage is reached.
	reached string
	times   int
	// answered: EndTxn has been.
	answered bool
}

// stages are all steps, in the order of the protocol. The steps before EndTxn are those of txnDrive.step.
func stages() []stage {
	end := func(name string, reached string, times int, answered bool, hold ...string) stage {
		return stage{name: name, done: 6, hold: append(hold, reached), reached: reached, times: times, answered: answered}
	}
	return []stage{
		{name: "InitProducerId", done: 1},
		{name: "AddPartitionsToTxn", done: 2, old: true},
		{name: "Produce_to_the_first_partition", done: 3},
		{name: "Produce_to_the_second_partition", done: 4},
		{name: "AddOffsetsToTxn", done: 5, old: true},
		{name: "TxnOffsetCommit", done: 6},
		end("EndTxn_before_prepare", "before-prepare", 1, false),
		end("EndTxn_after_prepare", "after-prepare", 1, false, "before-markers"),
		end("before_markers", "before-markers", 1, true),
		// Come to a second time, the others have been answered.
		end("before_the_marker_to_the_first_partition", "before-marker.t-0", 2, true),
		end("before_the_marker_to_the_second_partition", "before-marker.t-1", 2, true),
		end("before_the_marker_to_the_offsets", "before-marker.__consumer_offsets-0", 2, true),
		end("before_complete", "before-complete", 1, true),
		{name: "after_complete", done: 6, hold: []string{}, answered: true},
	}
}

// TestKilledAtEachStepOfATransaction kills the coordinator, the leader of a partition, and all brokers, at each step of the
// protocols of transactions, the old one and version 2. Transactions that were decided are there as a whole, with their
// offsets; others as well if their producer goes on, and not at all if a new one takes its place. Whoever it is can begin
// the next one, and nothing holds readers back.
func TestKilledAtEachStepOfATransaction(t *testing.T) {
	holds := t.TempDir()
	binary := proc.Tagged(t, "hold")
	c := proc.NewClusterOf(t, 3, func(int) proc.Options {
		return proc.Options{
			Binary: binary, Env: []string{"KARST_TEST_HOLD=" + holds},
			Settings: []string{"offsets.topic.num.partitions=1", "offsets.topic.replication.factor=3"},
		}
	})
	c.Start()
	c.AwaitHealth()
	id := controller(t, c)
	others := []int{1 + id%3, 1 + (id+1)%3}
	c.MustKctl("topic", "create", "t", "-c", "min.insync.replicas=2", "--assignments",
		fmt.Sprintf("0:%d,%d,%d;1:%d,%d,%d", others[0], others[1], id, others[1], others[0], id))
	for _, victim := range []string{"leader", "coordinator", "all"} {
		t.Run(victim, func(t *testing.T) { killAtEachStep(t, c, holds, victim) })
	}
}

func killAtEachStep(t *testing.T, c *proc.Cluster, holds, victim string) {
	var drives []*txnDrive
	for _, s := range stages() {
		for _, version := range []int{1, 2} {
			for _, abandoned := range []bool{false, true} {
				if version == 2 && s.old {
					continue
				}
				d := &txnDrive{t: t, c: c, holds: holds, stage: s, version: version, abandoned: abandoned}
				d.name = fmt.Sprintf("%s/version_%d/%s", s.name, version, map[bool]string{false: "goes_on", true: "abandoned"}[abandoned])
				d.id = strings.ReplaceAll(victim+"/"+d.name, "/", "-")
				drives = append(drives, d)
				d.reach()
			}
		}
	}
	victims := c.Brokers
	switch victim {
	case "coordinator":
		victims = []*proc.Broker{c.Broker(controller(t, c))}
	case "leader":
		victims = []*proc.Broker{c.Broker(leaderOf(t, c, "t"))}
	}
	for _, b := range victims {
		b.Kill()
	}
	release(t, holds)
	for _, b := range victims {
		b.Launch()
	}
	for _, d := range drives {
		d.resolve(victim != "leader")
	}
	c.AwaitHealth()
	seen := [2][]string{}
	for p := range seen {
		seen[p] = readCommitted(t, c, int32(p))
	}
	for _, d := range drives {
		t.Run(d.name, func(t *testing.T) { d.judge(t, seen) })
	}
}

// release lets everything go on that is held.
func release(t *testing.T, holds string) {
	t.Helper()
	files, err := os.ReadDir(holds)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := os.Remove(filepath.Join(holds, f.Name())); err != nil {
			t.Fatal(err)
		}
	}
}

// txnDrive is a transactional producer, driven step by step.
type txnDrive struct {
	t         *testing.T
	c         *proc.Cluster
	holds     string
	stage     stage
	version   int // of transactions: 1 or 2
	abandoned bool
	name, id  string

	pid   int64
	epoch int16
	ended chan int16 // EndTxn's answer; noAnswer when there is none
	want  string     // "committed", "aborted" or "either"
	err   error      // of what must succeed
}

const noAnswer = int16(-2)

// step does one of the steps before EndTxn. Doing it twice changes nothing, but for the first.
func (d *txnDrive) step(i int) {
	switch {
	case i == 0:
		d.init()
	case i == 1 && d.version == 1:
		d.must("AddPartitionsToTxn", d.addPartitions())
	case i == 2 || i == 3:
		d.must("Produce", d.produce(i-2, d.id))
	case i == 4 && d.version == 1:
		req := kmsg.NewPtrAddOffsetsToTxnRequest()
		req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = 3, d.id, d.pid, d.epoch, d.id
		d.must("AddOffsetsToTxn", d.ask(d.coordinator(1), req, func(r kmsg.Response) int16 { return r.(*kmsg.AddOffsetsToTxnResponse).ErrorCode }))
	case i == 5:
		d.must("TxnOffsetCommit", d.commitOffsets())
	}
}

func (d *txnDrive) must(what string, code int16) {
	if code != 0 && d.err == nil {
		d.err = fmt.Errorf("%s of %s: code %d", what, d.id, code)
	}
}

// reach drives the transaction up to its stage.
func (d *txnDrive) reach() {
	for i := range d.stage.done {
		d.step(i)
	}
	if d.err != nil {
		d.t.Fatal(d.err) // before anything was killed
	}
	if d.stage.hold == nil {
		return
	}
	for _, h := range d.stage.hold {
		if err := os.WriteFile(filepath.Join(d.holds, h+"."+d.id), nil, 0o600); err != nil {
			d.t.Fatal(err)
		}
	}
	d.ended = make(chan int16, 1)
	go func() { d.ended <- d.end(d.abandoned) }()
	if d.stage.answered {
		d.must("EndTxn", <-d.ended)
	}
	held := filepath.Join(d.holds, d.stage.reached+"."+d.id+".held")
	switch {
	case d.err != nil:
	case d.stage.reached == "":
		eventually(d.t, d.id+" is complete", func() bool { return d.state() == "CompleteCommit" })
	default:
		eventually(d.t, d.id+" is held", func() bool {
			f, err := os.Stat(held)
			return err == nil && f.Size() >= int64(d.stage.times)
		})
	}
}

// resolve ends the transaction after the kill, in one way or another, and makes the next one. killed: the coordinator was.
func (d *txnDrive) resolve(killed bool) {
	var answer int16 = noAnswer
	if d.ended != nil && !d.stage.answered {
		answer = <-d.ended
	}
	decided := d.stage.answered || d.stage.reached == "after-prepare" || answer == 0
	switch {
	case !d.abandoned && d.ended == nil:
		for i := max(d.stage.done-1, 1); i < 6; i++ { // the last step is done again, as after a lost answer
			d.step(i)
		}
		d.must("EndTxn", d.end(false))
		d.want = "committed"
	case !d.abandoned:
		if !d.stage.answered {
			d.must("EndTxn", answer)
		}
		d.want = "committed"
	default:
		d.init()
		d.want = "aborted"
		if decided {
			d.want = "committed"
		} else if d.ended != nil && !killed {
			d.want = "either"
		}
	}
	if d.version == 1 {
		d.must("AddPartitionsToTxn of the next", d.addPartitions())
	}
	for p := range 2 {
		d.must("Produce of the next", d.produce(p, d.id+"/next"))
	}
	d.must("EndTxn of the next", d.end(false))
}

// judge holds what is there against what must be.
func (d *txnDrive) judge(t *testing.T, seen [2][]string) {
	offset := int64(-2)
	if d.err == nil {
		offset = d.committedOffset()
	}
	if d.err != nil {
		t.Fatal(d.err)
	}
	var times []int
	for p := range seen {
		n := 0
		for _, v := range seen[p] {
			if v == d.id {
				n++
			}
		}
		times = append(times, n)
		if !slices.Contains(seen[p], d.id+"/next") {
			t.Errorf("partition %d has no record of the next transaction", p)
		}
	}
	whole := map[string]bool{
		"committed": times[0] == 1 && times[1] == 1 && offset == 7,
		"aborted":   times[0] == 0 && times[1] == 0 && offset == -1,
	}
	whole["either"] = whole["committed"] || whole["aborted"]
	if !whole[d.want] {
		t.Errorf("%d and %d records and the offset %d are there of a transaction that should be %s", times[0], times[1], offset, d.want)
	}
}

func (d *txnDrive) init() {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.Version, req.TransactionalID, req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = 4, &d.id, 300_000, -1, -1
	d.must("InitProducerId", d.ask(d.coordinator(1), req, func(r kmsg.Response) int16 {
		a := r.(*kmsg.InitProducerIDResponse)
		d.pid, d.epoch = a.ProducerID, a.ProducerEpoch
		return a.ErrorCode
	}))
}

func (d *txnDrive) addPartitions() int16 {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch = 3, d.id, d.pid, d.epoch
	req.Topics = append(req.Topics, kmsg.AddPartitionsToTxnRequestTopic{Topic: "t", Partitions: []int32{0, 1}})
	return d.ask(d.coordinator(1), req, func(r kmsg.Response) int16 {
		ps := r.(*kmsg.AddPartitionsToTxnResponse).Topics[0].Partitions
		return max(ps[0].ErrorCode, ps[1].ErrorCode)
	})
}

// produce writes one record. The same value again is the same batch again.
func (d *txnDrive) produce(partition int, value string) int16 {
	seq := int32(0)
	if strings.HasSuffix(value, "/next") && d.version == 1 && !d.abandoned {
		seq = 1 // the epoch is the same
	}
	req := produceRequest("t", txnRecord(d.t, d, seq, value))
	req.Version, req.TransactionID = 9, &d.id
	if d.version == 2 {
		req.Version = 12
	}
	req.Topics[0].Partitions[0].Partition = int32(partition)
	leader := func() (string, error) { return leaderAddr(d.t, d.c, int32(partition)) }
	return d.ask(leader, req, func(r kmsg.Response) int16 { return r.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode })
}

func (d *txnDrive) commitOffsets() int16 {
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.Version, req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch = 3, d.id, d.id, d.pid, d.epoch
	if d.version == 2 {
		req.Version = 5
	}
	req.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Offset: 7, LeaderEpoch: -1}}}}
	return d.ask(d.coordinator(0), req, func(r kmsg.Response) int16 {
		return r.(*kmsg.TxnOffsetCommitResponse).Topics[0].Partitions[0].ErrorCode
	})
}

// end asks for the commit. once: an answer that is lost is not asked for again.
func (d *txnDrive) end(once bool) int16 {
	req := kmsg.NewPtrEndTxnRequest()
	req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = 4, d.id, d.pid, d.epoch, true
	if d.version == 2 {
		req.Version = 5
	}
	code := func(r kmsg.Response) int16 {
		a := r.(*kmsg.EndTxnResponse)
		if a.ErrorCode == 0 && d.version == 2 {
			d.pid, d.epoch = a.ProducerID, a.ProducerEpoch
		}
		return a.ErrorCode
	}
	if once {
		return d.askOnce(d.coordinator(1), req, code)
	}
	return d.ask(d.coordinator(1), req, code)
}

func (d *txnDrive) state() string {
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{d.id}
	state := ""
	d.must("DescribeTransactions", d.ask(d.coordinator(1), req, func(r kmsg.Response) int16 {
		s := r.(*kmsg.DescribeTransactionsResponse).TransactionStates[0]
		state = s.State
		return s.ErrorCode
	}))
	return state
}

// committedOffset is the group's offset once no transaction holds it back.
func (d *txnDrive) committedOffset() int64 {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version, req.Group, req.RequireStable = 7, d.id, true
	req.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: "t", Partitions: []int32{0}}}
	offset := int64(-2)
	d.must("OffsetFetch", d.ask(d.coordinator(0), req, func(r kmsg.Response) int16 {
		a := r.(*kmsg.OffsetFetchResponse)
		if a.ErrorCode != 0 {
			return a.ErrorCode
		}
		offset = a.Topics[0].Partitions[0].Offset
		return a.Topics[0].Partitions[0].ErrorCode
	}))
	return offset
}

// coordinator finds the coordinator of the group (0) or of the transactional id (1), which have the same name.
func (d *txnDrive) coordinator(kind int8) func() (string, error) {
	return func() (string, error) {
		req := kmsg.NewPtrFindCoordinatorRequest()
		req.Version, req.CoordinatorKey, req.CoordinatorType = 3, d.id, kind
		resp, err := askAny(d.t, d.c, req)
		if err != nil {
			return "", err
		}
		a := resp.(*kmsg.FindCoordinatorResponse)
		if a.ErrorCode != 0 {
			return "", fmt.Errorf("FindCoordinator: code %d", a.ErrorCode)
		}
		return a.Host + ":" + strconv.Itoa(int(a.Port)), nil
	}
}

// passing are the codes after which clients try again.
var passing = []int16{3, 5, 6, 7, 14, 15, 16, 19, 20, 51, 88, noAnswer}

// ask asks again until there is an answer that is final.
func (d *txnDrive) ask(at func() (string, error), req kmsg.Request, code func(kmsg.Response) int16) int16 {
	answer := noAnswer
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if answer = d.askOnce(at, req, code); !slices.Contains(passing, answer) {
			break
		}
	}
	return answer
}

func (d *txnDrive) askOnce(at func() (string, error), req kmsg.Request, code func(kmsg.Response) int16) int16 {
	addr, err := at()
	if err != nil {
		return noAnswer
	}
	resp, err := askAddr(d.t, addr, req)
	if err != nil {
		return noAnswer
	}
	return code(resp)
}

// askAddr asks a broker that may be killed meanwhile.
func askAddr(t *testing.T, addr string, req kmsg.Request) (kmsg.Response, error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	w := &wire{Conn: conn, t: t}
	_ = w.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := w.Write(w.frame(req)); err != nil {
		return nil, err
	}
	return w.answer(req)
}

// askAny asks the first broker that answers.
func askAny(t *testing.T, c *proc.Cluster, req kmsg.Request) (resp kmsg.Response, err error) {
	err = errors.New("no broker runs")
	for _, b := range c.Brokers {
		if resp, err = askAddr(t, b.Addr, req); err == nil {
			return resp, nil
		}
	}
	return nil, err
}

// leaderAddr is where the leader of a partition of t is.
func leaderAddr(t *testing.T, c *proc.Cluster, partition int32) (string, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 9
	name := "t"
	req.Topics = []kmsg.MetadataRequestTopic{{Topic: &name}}
	resp, err := askAny(t, c, req)
	if err != nil {
		return "", err
	}
	for _, p := range resp.(*kmsg.MetadataResponse).Topics[0].Partitions {
		if p.Partition == partition && p.Leader > 0 {
			return c.Broker(int(p.Leader)).Addr, nil
		}
	}
	return "", fmt.Errorf("partition %d has no leader", partition)
}

// txnRecord is a batch with one record of a transaction.
func txnRecord(t *testing.T, d *txnDrive, seq int32, value string) []byte {
	build := batch.NewBuilder(batch.BuilderOptions{
		HasProducer: true, ProducerID: d.pid, ProducerEpoch: d.epoch, BaseSequence: seq, Transactional: true,
	})
	if err := build.Append(batch.Record{Timestamp: time.Now().UnixMilli(), Value: []byte(value)}); err != nil {
		t.Error(err)
	}
	b, err := build.Build()
	if err != nil {
		t.Error(err)
	}
	return b
}

// readCommitted returns the values of a partition of t, once all of it is decided.
func readCommitted(t *testing.T, c *proc.Cluster, partition int32) []string {
	t.Helper()
	cl := client(t, c.Broker(1).Addr, kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"t": {partition: kgo.NewOffset().AtStart()}}))
	defer cl.Close()
	var end int64
	eventually(t, "all transactions are over", func() bool {
		stable, err := kadm.NewClient(cl).ListCommittedOffsets(within(t), "t")
		all, err2 := kadm.NewClient(cl).ListEndOffsets(within(t), "t")
		s, _ := stable.Lookup("t", partition)
		e, _ := all.Lookup("t", partition)
		end = e.Offset
		return err == nil && err2 == nil && s.Err == nil && e.Err == nil && s.Offset == e.Offset
	})
	return valuesUpTo(t, cl, end)
}
