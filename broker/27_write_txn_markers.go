package broker

import (
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/protocol"
	"github.com/karstlog/karst/protocol/batch"
)

// WriteTxnMarkers, key 27, versions 0-2: markers as an admin asks for them, to end a transaction that holds a partition back
// and that no coordinator knows (KIP-664). Karst's own coordinator asks in its own way, by topic id.
// v1 flexible · v2 transaction version (KIP-1228)
func (h *txnAPI) writeTxnMarkers(c *protocol.Call, req *kmsg.WriteTxnMarkersRequest) {
	w := &txnMarkers{call: c, resp: kmsg.NewPtrWriteTxnMarkersResponse()}
	n := int32(1)
	for i := range req.Markers {
		w.resp.Markers = append(w.resp.Markers, layMarker(&req.Markers[i]))
		for _, t := range req.Markers[i].Topics {
			n += int32(len(t.Partitions))
		}
	}
	w.open.Store(n)
	for i := range req.Markers {
		m := &req.Markers[i]
		for j, t := range m.Topics {
			for k, p := range t.Partitions {
				at := &w.resp.Markers[i].Topics[j].Partitions[k]
				h.txns.Write(t.Topic, p, batch.Marker{
					ProducerID: m.ProducerID, ProducerEpoch: m.ProducerEpoch, Commit: m.Committed, CoordinatorEpoch: m.CoordinatorEpoch,
				}, func(err error) {
					at.ErrorCode = codeOf(err)
					w.end()
				})
			}
		}
	}
	w.end()
}

// txnMarkers is one request on its way.
type txnMarkers struct {
	call *protocol.Call
	resp *kmsg.WriteTxnMarkersResponse
	open atomic.Int32
}

func (w *txnMarkers) end() {
	if w.open.Add(-1) == 0 {
		w.call.Reply(w.resp)
	}
}

// layMarker lays out the answer to one marker.
func layMarker(m *kmsg.WriteTxnMarkersRequestMarker) kmsg.WriteTxnMarkersResponseMarker {
	out := kmsg.NewWriteTxnMarkersResponseMarker()
	out.ProducerID = m.ProducerID
	for _, t := range m.Topics {
		to := kmsg.NewWriteTxnMarkersResponseMarkerTopic()
		to.Topic = t.Topic
		for _, p := range t.Partitions {
			each := kmsg.NewWriteTxnMarkersResponseMarkerTopicPartition()
			each.Partition = p
			to.Partitions = append(to.Partitions, each)
		}
		out.Topics = append(out.Topics, to)
	}
	return out
}
