package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/wire"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/storage"
	txncoordinator "github.com/karstlog/karst/txn/coordinator"
)

// txnPeers asks other brokers for markers of transactions, over the cluster port.
type txnPeers struct{ link wire.Caller }

// Outcomes of a marker, as they stand in wire.PbMarked.
const (
	marked       = 0
	notMarked    = 1
	notMyMarkers = 2 // there is a newer coordinator
)

// Mark implements txncoordinator.Peers.
func (p txnPeers) Mark(ctx context.Context, broker metadata.BrokerID, m txncoordinator.Marks) ([]error, error) {
	q := &wire.PbMarks{Id: m.ID, Revision: m.Revision, CoordinatorEpoch: m.CoordinatorEpoch}
	for _, at := range m.Partitions {
		q.Partitions = append(q.Partitions, &wire.PbMarkPartition{Topic: at.Topic[:], Partition: at.Partition})
	}
	a, err := wire.Mark.Call(ctx, p.link, broker, q)
	if err != nil {
		return nil, err
	}
	if len(a.GetOutcomes()) != len(m.Partitions) {
		return nil, fmt.Errorf("broker %d answered for %d of %d markers", broker, len(a.GetOutcomes()), len(m.Partitions))
	}
	errs := make([]error, len(m.Partitions))
	for i, outcome := range a.GetOutcomes() {
		switch outcome {
		case marked:
		case notMyMarkers:
			errs[i] = &storage.CoordinatorEpochError{}
		default:
			errs[i] = txncoordinator.ErrNotAvailable
		}
	}
	return errs, nil
}

// serveMarks writes markers that the coordinator of transactions asks for.
func (n *Node) serveMarks(c *protocol.Call, q *wire.PbMarks) {
	m := txncoordinator.Marks{ID: q.GetId(), Revision: q.GetRevision(), CoordinatorEpoch: q.GetCoordinatorEpoch()}
	for _, at := range q.GetPartitions() {
		if len(at.GetTopic()) != len(uuid.UUID{}) {
			c.Fail(errors.New("a topic id that is none"))
			return
		}
		m.Partitions = append(m.Partitions, metadata.TxnPartition{Topic: uuid.UUID(at.GetTopic()), Partition: at.GetPartition()})
	}
	n.txns.Mark(m, func(errs []error) {
		a := &wire.PbMarked{Outcomes: make([]int32, len(errs))}
		for i, err := range errs {
			switch {
			case err == nil:
			case errors.As(err, new(*storage.CoordinatorEpochError)):
				a.Outcomes[i] = notMyMarkers
			default:
				a.Outcomes[i] = notMarked
			}
		}
		wire.Mark.Reply(c, a)
	})
}
