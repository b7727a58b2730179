package vfs

// Faulty passes operations to another filesystem, numbers and records them, and fails those it is told to.
type Faulty struct{ FS }

// NewFaulty wraps inner.
func NewFaulty(inner FS) *Faulty { return &Faulty{FS: inner} }
