package broker

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/protocol/batch"
)

// Produce, key 0, versions 0-13. Appends inline, in the order of the requests of a connection; acks=all answers when the
// high watermark has passed, or with REQUEST_TIMED_OUT and the base offset.
// v0-v2 message sets of magic 0 and 1, stored as batches · v3 exactly one batch, transactional id (KIP-98)
// v5 log start · v7 zstd (KIP-110) · v8 record errors (KIP-467) · v10 leader hints (KIP-951)
// v11 TRANSACTION_ABORTABLE (KIP-890) · v12 the first write adds a partition to the transaction · v13 topic ids (KIP-516)

// firstBatchVersion is the version from which on a request carries record batches instead of message sets (KIP-98).
const firstBatchVersion = 3

// produceAPI appends records.
type produceAPI struct {
	set     *replica.Set
	wall    func() time.Time
	hint    leaderHint
	metrics *metrics
	txns    txnGate
	pool    *sync.Pool
}

func (h *produceAPI) apis() []protocol.API {
	return []protocol.API{protocol.RouteProduce(0, 13, h.produce)}
}

func (h *produceAPI) produce(c *protocol.Call, r *protocol.ProduceRequest) {
	if len(r.Topics) == 0 && (r.Acks == 0 || c.Version() < firstBatchVersion) {
		c.Fail(errNothingSent) // more likely garbage than a client
		return
	}
	p := h.pool.Get().(*produce)
	p.call, p.api = c, h
	p.begin(r)
	if r.HasTransactionalID {
		p.askAll(r)
	}
	p.appendAll(r)
	switch {
	case r.Acks == 0:
		p.endSilently()
	case len(p.waits) == 0:
		p.reply()
	default:
		c.ReleaseBody()
		p.await(r.Timeout)
	}
}

// produce is one request on its way. It is reused when it was answered and no timer can touch it any more.
type produce struct {
	api  *produceAPI
	call *protocol.Call
	resp protocol.ProduceResponse
	all  []protocol.ProducePartitionResult // what resp's topics are cut from

	rules batch.Rules
	opts  replica.AppendOptions
	seen  map[*replica.Partition]struct{} // only in requests for several partitions
	wakes replica.Wakes                   // followers to be woken when all partitions are appended
	first error                           // for acks=0, whose only answer is the end of the connection
	asked []txnAsked                      // partitions whose transaction had to be asked about

	waits   []produceWait
	waiting atomic.Int32 // waits not ended, plus one while they are being registered
	timer   *time.Timer
	late    atomic.Bool // the timer has fired
}

// produceWait is a partition whose high watermark must pass before the answer.
type produceWait struct {
	replica.CommitWait
	produce   *produce
	partition *replica.Partition
	result    *protocol.ProducePartitionResult
	err       error // how it ended
}

func newProduce() any { return &produce{seen: map[*replica.Partition]struct{}{}} }

// maxKeptResults bounds what a pooled request or answer keeps.
const maxKeptResults = 4096

// begin lays out the answer, so that pointers into it stay valid.
func (p *produce) begin(r *protocol.ProduceRequest) {
	n := 0
	for i := range r.Topics {
		n += len(r.Topics[i].Partitions)
	}
	p.resp.Topics = p.resp.Topics[:0]
	p.resp.Endpoints = p.resp.Endpoints[:0]
	p.all = resize(p.all, n)
	p.first = nil
	p.opts = replica.AppendOptions{Acks: r.Acks, Now: p.api.wall()}
}

func (p *produce) appendAll(r *protocol.ProduceRequest) {
	rest := p.all
	several := len(rest) > 1
	p.opts.Wakes = &p.wakes
	defer p.wakes.Fire()
	for i := range r.Topics {
		t := &r.Topics[i]
		results := rest[:len(t.Partitions):len(t.Partitions)]
		rest = rest[len(t.Partitions):]
		for j := range t.Partitions {
			in, out := &t.Partitions[j], &results[j]
			*out = protocol.ProducePartitionResult{Index: in.Index, BaseOffset: -1, LogAppendTime: -1, LogStart: -1}
			part, err := p.find(t, in.Index)
			if err == nil && several {
				err = p.once(part)
			}
			if err == nil {
				err = p.append(r, part, in, out)
			}
			if err != nil {
				p.failed(err, part, out)
			}
		}
		p.resp.Topics = append(p.resp.Topics, protocol.ProduceTopicResult{Name: t.Name, ID: t.ID, Partitions: results})
	}
	if several {
		clear(p.seen)
	}
}

func (p *produce) find(t *protocol.ProduceTopic, partition int32) (*replica.Partition, error) {
	if p.opts.Acks < -1 || p.opts.Acks > 1 {
		return nil, errInvalidAcks
	}
	var part *replica.Partition
	var err error
	if p.call.Version() >= 13 {
		part, err = p.api.set.ByID(t.ID, partition)
	} else {
		part, err = p.api.set.Get(t.Name, partition)
	}
	if err == nil && internalTopic(part.Topic()) {
		return nil, errInternalTopic
	}
	return part, err
}

// once refuses a partition that is in the request a second time.
func (p *produce) once(part *replica.Partition) error {
	if _, twice := p.seen[part]; twice {
		return errTwice
	}
	p.seen[part] = struct{}{}
	return nil
}

// append checks and stores the records of one partition and notes what has to be waited for.
func (p *produce) append(r *protocol.ProduceRequest, part *replica.Partition, in *protocol.ProducePartition,
	out *protocol.ProducePartitionResult,
) error {
	admitted, err := p.admit(r, part, in.Records)
	if err != nil {
		return err
	}
	if admitted.Batch == nil { // an empty message set of an old client
		return nil
	}
	p.opts.Records = admitted.Records
	a, err := p.store(r, part, admitted.Batch)
	if err != nil {
		return err
	}
	out.BaseOffset, out.LogAppendTime, out.LogStart = a.First, a.AppendTime, a.LogStart
	if r.Acks == -1 && !a.Committed {
		p.waits = append(p.waits, produceWait{
			CommitWait: replica.CommitWait{End: a.Last + 1, Epoch: a.Epoch}, produce: p, partition: part, result: out,
		})
	}
	return nil
}

func (p *produce) admit(r *protocol.ProduceRequest, part *replica.Partition, records []byte) (batch.Admitted, error) {
	if records == nil {
		return batch.Admitted{}, errNullRecords
	}
	version := p.call.Version()
	if err := checkTransaction(r, records); err != nil {
		return batch.Admitted{}, err
	}
	p.rules = *part.Rules()
	p.rules.Now = p.opts.Now.UnixMilli()
	p.rules.NoZstd = version < 7
	if version < firstBatchVersion {
		return p.admitLegacy(records)
	}
	return batch.Admit(records, &p.rules)
}

func (p *produce) admitLegacy(records []byte) (batch.Admitted, error) {
	a, err := batch.AdmitLegacy(records, &p.rules)
	if err == nil && a.Rebuilt {
		p.api.metrics.produceConversions(records)
	}
	return a, err
}

// checkTransaction refuses transactional batches outside of a transactional producer's request.
func checkTransaction(r *protocol.ProduceRequest, records []byte) error {
	if transactional(records) && !r.HasTransactionalID {
		return errTransactionalBatch
	}
	return nil
}

// transactional looks at the header only as far as it is there; Admit checks it.
func transactional(records []byte) bool {
	b := batch.Batch(records)
	return len(b) >= batch.HeaderSize && b.Magic() == 2 && b.Transactional()
}

// failed writes an error into a result. part is nil when the partition was not found.
func (p *produce) failed(err error, part *replica.Partition, out *protocol.ProducePartitionResult) {
	code := codeOf(err)
	if p.call.Version() < 4 {
		code = oldCodeOf(err)
	}
	p.api.metrics.produceFailed(part, code)
	if p.first == nil {
		p.first = err
	}
	out.ErrorCode = code
	out.ErrorMessage, out.RecordErrors = explain(err)
	if out.Leader = p.api.hint.leader(err); out.Leader != nil {
		p.resp.Endpoints = p.api.hint.addEndpoint(p.resp.Endpoints, out.Leader, p.call.Conn().Listener)
	}
}

// endSilently ends acks=0: no answer, or the end of the connection, from which the client learns that it should look for
// the leader.
func (p *produce) endSilently() {
	c, err := p.call, p.first
	p.recycle()
	if err != nil {
		c.Fail(err)
		return
	}
	c.NoReply()
}

// reply answers, with what the waits ended in.
func (p *produce) reply() {
	for i := range p.waits {
		if w := &p.waits[i]; w.err != nil {
			base := w.result.BaseOffset
			p.failed(w.err, w.partition, w.result)
			if !appendedAnyway(w.err) {
				base = -1
			}
			w.result.BaseOffset = base
		}
	}
	p.call.ReplyProduce(&p.resp)
	// A timer that cannot be stopped any more may still look at p, which is then left to the collector.
	if p.timer == nil || len(p.waits) == 0 || p.timer.Stop() {
		p.recycle()
	}
}

// appendedAnyway says that the records are in the log although acks=all did not come about.
func appendedAnyway(err error) bool {
	return errors.Is(err, errTimedOut) || codeOf(err) == codeShrunkAfterAppend
}

func (p *produce) recycle() {
	if cap(p.all) > maxKeptResults {
		return
	}
	clear(p.all)
	clear(p.resp.Topics)
	clear(p.waits)
	p.waits = p.waits[:0]
	p.asked = nil
	pool := p.api.pool
	p.call, p.api, p.first = nil, nil, nil
	p.rules = batch.Rules{}
	pool.Put(p)
}

// await answers once all partitions of acks=all are committed, or the client's time is over.
func (p *produce) await(timeout time.Duration) {
	p.waiting.Store(int32(len(p.waits)) + 1)
	p.late.Store(false)
	if p.timer == nil {
		p.timer = time.AfterFunc(max(timeout, 0), p.timedOut)
	} else {
		p.timer.Reset(max(timeout, 0))
	}
	for i := range p.waits {
		w := &p.waits[i]
		w.Done = w
		w.partition.Await(&w.CommitWait)
	}
	if p.late.Load() { // the timer came before the last Await
		p.forgetAll()
	}
	p.ended()
}

func (p *produce) timedOut() {
	p.late.Store(true)
	p.forgetAll()
}

func (p *produce) forgetAll() {
	waits := p.waits
	for i := range waits {
		if w := &waits[i]; w.partition.Forget(&w.CommitWait) {
			w.err = errTimedOut
			p.ended()
		}
	}
}

// Committed ends the wait for one partition.
func (w *produceWait) Committed(_ *replica.CommitWait, err error) {
	w.err = err
	w.produce.ended()
}

// ended counts a wait that is over. The last one answers.
func (p *produce) ended() {
	if p.waiting.Add(-1) == 0 {
		p.reply()
	}
}
