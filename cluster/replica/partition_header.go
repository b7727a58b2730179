package replica

import (
	"github.com/karstlog/karst/protocol/batch"
	"github.com/karstlog/karst/storage"
)

// Header returns the header of the batch that holds an offset below the high watermark, without its records; false when
// there is none. Only the leader answers.
func (p *Partition) Header(offset int64) (batch.Batch, bool) {
	if p.role.Load().leading() != nil {
		return nil, false
	}
	s, err := p.log.Read(storage.ReadOptions{From: offset, Before: p.log.HighWatermark(), MaxBytes: batch.HeaderSize})
	if err != nil {
		return nil, false
	}
	defer s.Release()
	head, err := s.Append(make([]byte, 0, batch.HeaderSize))
	return head, err == nil && len(head) == batch.HeaderSize
}
