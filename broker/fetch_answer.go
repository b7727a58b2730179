package broker

import (
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/storage"
)

// fetchAnswer is the memory of an answer, reused with its fetch.
type fetchAnswer struct {
	resp  protocol.FetchResponse
	parts []protocol.FetchPartitionResult // what resp's topics are cut from
	spent int                             // bytes that conversion has made
}

func (a *fetchAnswer) reset() {
	clear(a.parts)
	clear(a.resp.Topics)
	a.resp.Topics, a.resp.Endpoints = a.resp.Topics[:0], a.resp.Endpoints[:0]
}

// answer makes the response out of what the items have read. In an incremental session it leaves out what did not
// change, and puts what had records last for the next fetch.
func (f *fetch) answer() *protocol.FetchResponse {
	a := &f.out
	a.parts = resize(a.parts, len(f.items))
	a.resp = protocol.FetchResponse{Topics: a.resp.Topics[:0], Endpoints: a.resp.Endpoints[:0]}
	a.spent = 0
	if s := f.session; s != nil {
		a.resp.SessionID = s.id
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	n, start := 0, 0
	var last *fetchItem
	for i := range f.items {
		it := &f.items[i]
		if it.member != nil && !it.tell(f) {
			continue
		}
		if last == nil || !it.sameTopic(last) {
			start = n
			a.resp.Topics = append(a.resp.Topics, protocol.FetchTopicResult{Name: it.name, ID: it.id})
		}
		f.result(it, &a.parts[n])
		n, last = n+1, it
		t := &a.resp.Topics[len(a.resp.Topics)-1]
		t.Partitions = a.parts[start:n:n]
	}
	return &a.resp
}

// tell notes what the session's client will know after this answer, and reports whether the partition belongs into it.
func (it *fetchItem) tell(f *fetch) bool {
	m := it.member
	m.replica = it.part
	if it.err != nil {
		m.told = nothingTold // so that the next answer is complete again
		return true
	}
	now := told{highWatermark: it.res.HighWatermark, stable: it.res.StableOffset, logStart: it.res.LogStart}
	changed := m.told != now
	m.told = now
	records := it.res.Slice.Len() > 0
	if records {
		f.session.rotateLocked(m)
	}
	return f.full || changed || records || it.res.Diverging != nil || it.res.Preferred > 0
}

func (it *fetchItem) sameTopic(o *fetchItem) bool { return it.name == o.name && it.id == o.id }

// result writes one partition's part of the answer.
func (f *fetch) result(it *fetchItem, out *protocol.FetchPartitionResult) {
	*out = protocol.FetchPartitionResult{Index: it.partition, HighWatermark: -1, StableOffset: -1, LogStart: -1}
	if it.err == nil && it.res.Slice.Len() > 0 {
		f.records(it, out)
	}
	if it.err != nil {
		f.failed(it, out)
		return
	}
	out.HighWatermark, out.StableOffset, out.LogStart = it.res.HighWatermark, it.res.StableOffset, it.res.LogStart
	if d := it.res.Diverging; d != nil {
		out.Diverging = &protocol.EpochEnd{Epoch: d.Epoch, End: d.End}
	}
	if it.res.Preferred > 0 {
		out.HasPreferred, out.Preferred = true, int32(it.res.Preferred)
	}
	if f.committed {
		out.Aborted = aborted(it.res.Aborted)
	}
}

func aborted(txns []storage.AbortedTxn) []protocol.AbortedTransaction {
	list := make([]protocol.AbortedTransaction, len(txns)) // empty, not null, to a reader of committed records
	for i, t := range txns {
		list[i] = protocol.AbortedTransaction{ProducerID: t.ProducerID, First: t.First}
	}
	return list
}

func (f *fetch) failed(it *fetchItem, out *protocol.FetchPartitionResult) {
	out.ErrorCode = codeOf(it.err)
	if f.version < 6 {
		out.ErrorCode = oldCodeOf(it.err)
	}
	if f.version < 16 {
		return
	}
	if out.Leader = f.api.hint.leader(it.err); out.Leader != nil {
		e := &f.out.resp.Endpoints
		*e = f.api.hint.addEndpoint(*e, out.Leader, f.call.Conn().Listener)
	}
}

// records hands the range over, or converts it for a client from before batches. The range is gone from it afterwards.
func (f *fetch) records(it *fetchItem, out *protocol.FetchPartitionResult) {
	slice := it.res.Slice // on the heap from here on, until the answer has left
	it.res.Slice = storage.Slice{}
	it.part.Sent(int64(slice.Len()))
	if f.version > lastConverted {
		out.Records = &slice
		return
	}
	set, err := f.convert(it, &slice)
	slice.Release()
	if it.err = err; set != nil {
		out.Records = set
	}
}

// openSession finds out which partitions the request is about: its own, or those of its session (KIP-227).
func (f *fetch) openSession(r *protocol.FetchRequest) error {
	if f.version < 7 || r.SessionEpoch <= 0 {
		if r.SessionID != 0 {
			if s, ok := f.api.sessions.get(r.SessionID); ok {
				f.api.sessions.remove(s)
			}
		}
		f.fromRequest(r)
		if f.version >= 7 && r.SessionEpoch == 0 && !f.follower {
			f.createSession()
		}
		return nil
	}
	return f.continueSession(r)
}

// fromRequest takes the partitions that the request names.
func (f *fetch) fromRequest(r *protocol.FetchRequest) {
	for i := range r.Topics {
		t := &r.Topics[i]
		for j := range t.Partitions {
			f.items = append(f.items, fetchItem{fetchTarget: target(t, &t.Partitions[j])})
		}
	}
}

func target(t *protocol.FetchTopic, p *protocol.FetchPartition) fetchTarget {
	return fetchTarget{
		fetchKey: fetchKey{name: t.Name, id: t.ID, partition: p.Index},
		from:     p.Offset, maxBytes: p.MaxBytes, currentEpoch: p.CurrentEpoch, fetchedEpoch: p.LastFetchedEpoch,
	}
}

// createSession keeps the items as a session if there is room; otherwise the client goes on with full fetches.
func (f *fetch) createSession() {
	targets := make([]fetchTarget, len(f.items))
	for i := range f.items {
		targets[i] = f.items[i].fetchTarget
	}
	s := f.api.sessions.create(targets, f.version >= 13, f.call.Received())
	if s == nil {
		return
	}
	f.session = s
	f.fromSession()
}

func (f *fetch) continueSession(r *protocol.FetchRequest) error {
	s, ok := f.api.sessions.get(r.SessionID)
	if !ok {
		return errSessionNotFound
	}
	u := sessionUpdate{epoch: r.SessionEpoch, byIDs: f.version >= 13, now: f.call.Received()}
	for i := range r.Topics {
		t := &r.Topics[i]
		for j := range t.Partitions {
			u.set = append(u.set, target(t, &t.Partitions[j]))
		}
	}
	for i := range r.Forgotten {
		t := &r.Forgotten[i]
		for _, p := range t.Partitions {
			u.forget = append(u.forget, fetchKey{name: t.Name, id: t.ID, partition: p})
		}
	}
	over, err := f.api.sessions.update(s, u)
	if err != nil || over {
		return err
	}
	f.session, f.full = s, false
	f.fromSession()
	return nil
}

// fromSession takes the partitions of the session, in its order.
func (f *fetch) fromSession() {
	s := f.session
	s.mu.Lock()
	defer s.mu.Unlock()
	f.items = f.items[:0]
	s.eachLocked(func(m *sessionPartition) {
		f.items = append(f.items, fetchItem{fetchTarget: m.fetchTarget, part: m.replica, member: m})
	})
}
