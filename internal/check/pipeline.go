package check

// Stage reads partitions and writes one record for each it read, in transactions that commit the offsets too.
type Stage struct {
	In, Out []Partition
	Source  func(out int64) (in int64) // value of the record that an output was made from
	Offsets map[Partition]int64        // committed in the end, by input partition
}

// Pipeline judges a stage after it has come to rest: each input has one output, in order, and the offsets are the inputs'
// ends. It needs Final at read_committed of both sides.
func Pipeline(h History, s Stage) []Anomaly {
	var r report
	from := map[int64]place{}
	for _, p := range s.In {
		for _, e := range h.Final[p] {
			from[e.Value] = place{p, e.Offset}
		}
	}
	times := map[int64]int{}
	for _, p := range s.Out {
		last := map[Partition]int64{}
		for _, e := range h.Final[p] {
			in := s.Source(e.Value)
			source, known := from[in]
			if !known {
				r.add(Invented, p, "output %d at %d has no input", e.Value, e.Offset)
				continue
			}
			if times[in]++; times[in] > 1 {
				r.add(ProcessedTwice, p, "input %d of %s has output %d at %d too", in, source.partition, e.Value, e.Offset)
				continue
			}
			if prev, ok := last[source.partition]; ok && source.offset < prev {
				r.add(Reordered, p, "output %d at %d is of offset %d of %s, the one before of %d", e.Value, e.Offset, source.offset, source.partition, prev)
			}
			last[source.partition] = source.offset
		}
	}
	for _, p := range s.In {
		end := int64(0)
		for _, e := range h.Final[p] {
			end = e.Offset + 1
			if times[e.Value] == 0 {
				r.add(NotProcessed, p, "input %d at %d", e.Value, e.Offset)
			}
		}
		if at := s.Offsets[p]; at < end {
			r.add(OffsetsDiffer, p, "committed offset %d, end %d", at, end)
		}
	}
	return r
}
