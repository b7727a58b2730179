package broker

import (
	"testing"

	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
	"github.com/karstlog/karst/txn"
)

// TestAskingAgainForgetsNoOtherPartition: of a request for two partitions, one is asked about again, since its log went on.
// What the other is written with stays as it was.
func TestAskingAgainForgetsNoOtherPartition(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 2, nil)
	var parts [2]*replica.Partition
	for i := range parts {
		var err error
		if parts[i], err = r.set.Get("t", int32(i)); err != nil {
			t.Fatal(err)
		}
	}
	build := batch.NewBuilder(batch.BuilderOptions{HasProducer: true, ProducerID: 7, Transactional: true})
	if err := build.Append(batch.Record{Value: []byte("v")}); err != nil {
		t.Fatal(err)
	}
	b, err := build.Build()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parts[0].Append(b, replica.AppendOptions{Acks: -1, Now: testTime}); err != nil {
		t.Fatal(err)
	}
	p := &produce{}
	for _, part := range parts {
		p.asked = append(p.asked, txnAsked{part: part, producer: txn.Producer{ID: 7}, guard: storage.TxnGuard{Epoch: -1, First: -1, Marker: 3}})
	}
	p.askAgain(nil, parts[0], txn.Producer{ID: 7})
	if g, err := p.guardOf(parts[0]); g != nil || err != nil {
		t.Errorf("the transaction is open, and yet: %+v, %v", g, err)
	}
	if g, err := p.guardOf(parts[1]); err != nil || g == nil || g.Marker != 3 {
		t.Errorf("the other partition's guard is %+v, %v", g, err)
	}
}
