package partition

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/karstlog/karst/cluster/metadata"
)

// TestServeComparesEpochsBeforeOffsets: the leader has epoch 2 from 10 to 20 and epoch 5 from 20 to 30.
func TestServeComparesEpochsBeforeOffsets(t *testing.T) {
	self, other := Member{Broker: 1, Incarnation: [16]byte{1}}, Member{Broker: 2, Incarnation: [16]byte{2}}
	l, _ := NewLeader(LeaderOptions{Self: self, End: 30, Counted: 30, View: View{
		Leader: 1, LeaderEpoch: 5, Replicas: []metadata.BrokerID{1, 2}, ISR: []metadata.BrokerID{1, 2}, MinInsync: 1,
		Peers: []Peer{{self, true}, {other, true}},
	}})
	log := LeaderLog{Start: 10, End: 30, EndOf: func(e metadata.LeaderEpoch) EpochEnd {
		switch {
		case e < 2 || e > 5:
			return EpochEnd{-1, -1}
		case e < 5:
			return EpochEnd{2, 20}
		}
		return EpochEnd{5, 30}
	}}
	for _, c := range []struct {
		name string
		from Member
		q    Question
		want Answer
	}{
		{"up to the end", other, Question{30, 5, 5}, Answer{}},
		{"in the epoch before", other, Question{20, 2, 5}, Answer{}},
		{"longer in the epoch before", other, Question{25, 2, 5}, Answer{Diverging: &EpochEnd{2, 20}}},
		{"an epoch that is not here", other, Question{18, 3, 5}, Answer{Diverging: &EpochEnd{2, 20}}},
		{"older than all", other, Question{18, 1, 5}, Answer{Diverging: &EpochEnd{-1, 10}}},
		{"longer and diverging is not out of range", other, Question{99, 3, 5}, Answer{Diverging: &EpochEnd{2, 20}}},
		{"below the start", other, Question{5, -1, 5}, Answer{Failure: OutOfRange, LogStart: 10, LeaderEnd: 30}},
		{"above the end without an epoch", other, Question{31, -1, 5}, Answer{Failure: OutOfRange, LogStart: 10, LeaderEnd: 30}},
		{"an older leadership", other, Question{30, 5, 4}, Answer{Failure: Elsewhere}},
		{"a newer leadership", other, Question{30, 5, 6}, Answer{Failure: Elsewhere}},
		{"an earlier start of the broker", Member{Broker: 2, Incarnation: [16]byte{9}}, Question{30, 5, 5}, Answer{Failure: Elsewhere}},
		{"not a replica", Member{Broker: 3, Incarnation: [16]byte{3}}, Question{30, 5, 5}, Answer{Failure: Elsewhere}},
	} {
		c.want.To = c.q
		if d := cmp.Diff(c.want, l.Serve(c.from, c.q, log)); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}
