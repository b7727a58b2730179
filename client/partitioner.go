package client

import "github.com/twmb/franz-go/pkg/kgo"

// Partitioner chooses the partition of a record. Any partitioner of franz-go is one.
type Partitioner = kgo.Partitioner

// ByKey sends records with equal keys to the same partition, by the same hash as Kafka's Java client (murmur2), so that
// writers in both languages agree. Records without a key fill a batch of one partition after another.
func ByKey() Partitioner { return kgo.StickyKeyPartitioner(nil) }

// RoundRobin goes through the partitions one record after another, whatever the keys.
func RoundRobin() Partitioner { return kgo.RoundRobinPartitioner() }

// Explicit sends each record to the partition that it names in Partition.
func Explicit() Partitioner { return kgo.ManualPartitioner() }

// Custom chooses by a function of the record and the number of partitions, which returns 0 to partitions-1 (what is outside
// makes the record fail). It is called from one goroutine at a time for each topic.
func Custom(choose func(r *Record, partitions int) int) Partitioner {
	return kgo.BasicConsistentPartitioner(func(string) func(*Record, int) int { return choose })
}
