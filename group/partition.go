package group

import "unicode/utf16"

// PartitionFor is the partition of __consumer_offsets that keeps a group: the absolute value of the id's Java hash modulo
// the number of partitions, where the absolute value of the smallest integer is taken for 0 (kafka.utils Utils.abs).
func PartitionFor(group string, partitions int32) int32 {
	var hash int32
	for _, r := range group {
		if hi, lo := utf16.EncodeRune(r); hi != '\uFFFD' || lo != '\uFFFD' {
			hash = 31*(31*hash+hi) + lo
			continue
		}
		hash = 31*hash + r
	}
	if hash == -1<<31 || partitions <= 0 {
		return 0
	}
	return max(hash, -hash) % partitions
}
