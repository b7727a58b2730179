package metadata

import (
	"fmt"
	"math"
	"slices"

	"github.com/karstlog/karst/internal/uuid"
)

// txnCommandToProto encodes the commands of transactions; nil for others.
func txnCommandToProto(c Command) *PbCommand {
	p := &PbTxnCommand{}
	switch c := c.(type) {
	case InitTxn:
		p.Id, p.Revision, p.NowMs = c.ID, c.Revision, c.NowMillis
		p.Change = &PbTxnCommand_Init{&PbInitTxn{
			ProducerId: c.ProducerID, Epoch: int32(c.Epoch), LastEpoch: int32(c.LastEpoch),
			PreviousProducerId: c.PreviousProducerID, TimeoutMs: c.TimeoutMillis,
		}}
	case AddToTxn:
		p.Id, p.Revision, p.NowMs = c.ID, c.Revision, c.NowMillis
		p.Change = &PbTxnCommand_Add{&PbAddToTxn{Topics: txnTopicsToProto(c.Partitions), Version: int32(c.Version)}}
	case PrepareTxn:
		p.Id, p.Revision, p.NowMs = c.ID, c.Revision, c.NowMillis
		p.Change = &PbTxnCommand_Prepare{&PbPrepareTxn{
			Commit: c.Commit, Epoch: int32(c.Epoch), LastEpoch: int32(c.LastEpoch), NextProducerId: c.NextProducerID,
		}}
	case CompleteTxn:
		p.Id, p.Revision, p.NowMs = c.ID, c.Revision, c.NowMillis
		p.Change = &PbTxnCommand_Complete{&PbCompleteTxn{}}
	case ForgetTxn:
		p.Id, p.Revision = c.ID, c.Revision
		p.Change = &PbTxnCommand_Forget{&PbForgetTxn{}}
	case SyncTxns:
		p.Change = &PbTxnCommand_Sync{&PbSyncTxns{}}
	default:
		return nil
	}
	return &PbCommand{Kind: &PbCommand_Txn{p}}
}

func txnCommandFromProto(p *PbTxnCommand) (Command, error) {
	if err := knows(p); err != nil {
		return nil, err
	}
	id, revision, now := p.GetId(), p.GetRevision(), p.GetNowMs()
	switch k := p.Change.(type) {
	case *PbTxnCommand_Init:
		c := k.Init
		e := epochs{}
		return InitTxn{
			ID: id, Revision: revision, ProducerID: c.GetProducerId(), Epoch: e.get(c.GetEpoch()), LastEpoch: e.get(c.GetLastEpoch()),
			PreviousProducerID: c.GetPreviousProducerId(), TimeoutMillis: c.GetTimeoutMs(), NowMillis: now,
		}, first(knows(c), e.err)
	case *PbTxnCommand_Add:
		c := k.Add
		ps, err := txnTopicsFromProto(c.GetTopics())
		return AddToTxn{
			ID: id, Revision: revision, Partitions: ps, Version: int8(c.GetVersion()), NowMillis: now,
		}, first(knows(c), err)
	case *PbTxnCommand_Prepare:
		c := k.Prepare
		e := epochs{}
		return PrepareTxn{
			ID: id, Revision: revision, Commit: c.GetCommit(), Epoch: e.get(c.GetEpoch()), LastEpoch: e.get(c.GetLastEpoch()),
			NextProducerID: c.GetNextProducerId(), NowMillis: now,
		}, first(knows(c), e.err)
	case *PbTxnCommand_Complete:
		return CompleteTxn{ID: id, Revision: revision, NowMillis: now}, knows(k.Complete)
	case *PbTxnCommand_Forget:
		return ForgetTxn{ID: id, Revision: revision}, knows(k.Forget)
	case *PbTxnCommand_Sync:
		return SyncTxns{}, knows(k.Sync)
	}
	return nil, &CorruptError{"transaction command of an unknown kind"}
}

// epochs narrows numbers and keeps the first that is none of 16 bits.
type epochs struct{ err error }

func (e *epochs) get(v int32) int16 {
	if v < math.MinInt16 || v > math.MaxInt16 {
		e.err = first(e.err, &CorruptError{fmt.Sprintf("producer epoch %d", v)})
	}
	return int16(v)
}

// txnTopicsToProto groups partitions by topic, sorted.
func txnTopicsToProto(ps []TxnPartition) []*PbTxnTopic {
	if !slices.IsSortedFunc(ps, comparePartition) {
		ps = slices.SortedFunc(slices.Values(ps), comparePartition)
	}
	var out []*PbTxnTopic
	for i := range ps {
		if i == 0 || ps[i].Topic != ps[i-1].Topic {
			out = append(out, &PbTxnTopic{Topic: ps[i].Topic[:]})
		}
		t := out[len(out)-1]
		t.Partitions = append(t.Partitions, ps[i].Partition)
	}
	return out
}

func txnTopicsFromProto(ts []*PbTxnTopic) (out []TxnPartition, err error) {
	for _, t := range ts {
		var id uuid.UUID
		if id, err = idFromProto(t.GetTopic()); err != nil {
			return nil, err
		}
		if err = knows(t); err != nil {
			return nil, err
		}
		for _, p := range t.GetPartitions() {
			out = append(out, TxnPartition{id, p})
		}
	}
	return out, nil
}

func txnToProto(t *Txn) *PbTxn {
	return &PbTxn{
		Id: t.ID, ProducerId: t.ProducerID, Epoch: int32(t.Epoch), LastEpoch: int32(t.LastEpoch),
		PreviousProducerId: t.PreviousProducerID, NextProducerId: t.NextProducerID, State: int32(t.State), TimeoutMs: t.TimeoutMillis,
		Topics: txnTopicsToProto(t.Partitions), StartedMs: t.StartedMillis, UpdatedMs: t.UpdatedMillis, Revision: t.Revision,
		Version: int32(t.Version),
	}
}

func txnFromProto(p *PbTxn) (*Txn, error) {
	ps, err := txnTopicsFromProto(p.GetTopics())
	e := epochs{}
	t := &Txn{
		ID: p.GetId(), ProducerID: p.GetProducerId(), Epoch: e.get(p.GetEpoch()), LastEpoch: e.get(p.GetLastEpoch()),
		PreviousProducerID: p.GetPreviousProducerId(), NextProducerID: p.GetNextProducerId(), State: TxnState(p.GetState()),
		TimeoutMillis: p.GetTimeoutMs(), Partitions: ps, StartedMillis: p.GetStartedMs(), UpdatedMillis: p.GetUpdatedMs(),
		Revision: p.GetRevision(), Version: int8(p.GetVersion()),
	}
	switch {
	case p.GetState() < 0 || p.GetState() > int32(TxnCompleteAbort):
		err = first(err, &CorruptError{fmt.Sprintf("transaction state %d", p.GetState())})
	case !slices.IsSortedFunc(ps, comparePartition):
		err = first(err, &CorruptError{fmt.Sprintf("partitions of transactional id %q are not in order", t.ID)})
	case t.Revision == 0:
		err = first(err, &CorruptError{fmt.Sprintf("transactional id %q without a revision", t.ID)})
	}
	return t, first(knows(p), err, e.err)
}

// txn takes a transactional id out of a snapshot.
func (s *snapshotReader) txn(p *PbTxn) error {
	t, err := txnFromProto(p)
	if err != nil {
		return err
	}
	if _, ok := s.im.Txn(t.ID); ok {
		return &CorruptError{fmt.Sprintf("transactional id %q twice", t.ID)}
	}
	_, err = s.im.replaceTxn(nil, t)
	return err
}
