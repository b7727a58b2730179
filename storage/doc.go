// Package storage keeps the logs of partitions in Apache Kafka's directory and file formats: segments with their
// indexes, producer state, leader epochs, checkpoints. A Log is one partition; Dirs is the log directories of a broker
// with everything that happens to all logs (syncs, retention, deletion, recovery after a crash, a disk that fails or
// fills up).
//
// Offsets are int64 and ends are exclusive. A Log has one writer at a time and any number of readers, who never wait
// for it. What an append has returned is in the page cache; what Sync has returned is on the disk.
package storage
