package main

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func anything(int32) bool { return true }

func TestPlansMoveAsLittleAsTheyCan(t *testing.T) {
	brokers := []brokerPlace{{id: 1}, {id: 2}, {id: 3}, {id: 4}}
	rows := []partitionRow{
		{topicPartition: topicPartition{"t", 0}, replicas: []int32{1, 2}},
		{topicPartition: topicPartition{"t", 1}, replicas: []int32{2, 3}},
	}
	for _, c := range []struct {
		name    string
		allowed func(int32) bool
		size    int
		want    [][]int32
	}{
		{"away from 2", func(b int32) bool { return b != 2 }, 0, [][]int32{{1, 4}, {3, 4}}},
		{"more replicas", anything, 3, [][]int32{{1, 2, 4}, {2, 3, 4}}},
		{"fewer replicas: the leader stays", anything, 1, [][]int32{{1}, {2}}},
		{"only to 3 and 4", func(b int32) bool { return b > 2 }, 0, [][]int32{{4, 3}, {3, 4}}},
	} {
		p := newPlanner(brokers, rows)
		for i, r := range rows {
			if got := p.place(r, c.allowed, cmp.Or(c.size, len(r.replicas))); !slices.Equal(got, c.want[i]) {
				t.Errorf("%s: partition %d: %v, want %v", c.name, i, got, c.want[i])
			}
		}
	}
}

func TestPlansUseOtherRacks(t *testing.T) {
	brokers := []brokerPlace{{1, "a"}, {2, "a"}, {3, "b"}}
	row := partitionRow{replicas: []int32{1}}
	if got := newPlanner(brokers, []partitionRow{row}).place(row, anything, 2); !slices.Equal(got, []int32{1, 3}) {
		t.Error(got)
	}
}

// Whatever the beginning, a rebalance keeps the number of replicas, puts none twice on a broker, and ends with brokers that
// differ by one at most.
func TestRebalanceEvensOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var brokers []brokerPlace
		var ids []int32
		for i := range rapid.IntRange(1, 6).Draw(t, "brokers") {
			brokers, ids = append(brokers, brokerPlace{id: int32(i + 1)}), append(ids, int32(i+1))
		}
		var rows []partitionRow
		for i := range rapid.IntRange(1, 40).Draw(t, "partitions") {
			all := rapid.Permutation(ids).Draw(t, "replicas")
			rows = append(rows, partitionRow{topicPartition: topicPartition{"t", int32(i)}, replicas: all[:rapid.IntRange(1, len(all)).Draw(t, "rf")]})
		}
		before := slices.Clone(rows)
		p := newPlanner(brokers, rows)
		p.even(rows)
		for i, r := range rows {
			unique := slices.Compact(slices.Sorted(slices.Values(r.replicas)))
			if len(r.replicas) != len(before[i].replicas) || len(unique) != len(r.replicas) {
				t.Fatalf("%v became %v", before[i].replicas, r.replicas)
			}
		}
		spread := p.sorted(p.replicas)
		if d := p.replicas[spread[len(spread)-1]] - p.replicas[spread[0]]; d > 1 {
			t.Fatalf("replicas differ by %d: %v", d, p.replicas)
		}
	})
}
