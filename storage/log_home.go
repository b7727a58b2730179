package storage

import (
	"sync/atomic"

	"github.com/karstlog/karst/internal/vfs"
)

// home is where a log lives: it may move to another directory, and then the whole of it is replaced.
type home struct {
	env       *segmentEnv
	full      *atomic.Bool
	beforeCut func(l *Log, to int64) error
	offline   func(error)
}

func (l *Log) newHome(o *Options) *home {
	h := &home{full: o.Full, beforeCut: o.BeforeCut, offline: o.Offline}
	h.env = &segmentEnv{fs: o.FS, dir: o.Dir, cache: l.o.Cache, config: &l.config, fail: func(err error) {
		if l.home.Load() == h { // a log that has moved does not care
			_ = l.fail(err)
		}
	}}
	return h
}

func (l *Log) env() *segmentEnv { return l.home.Load().env }
func (l *Log) fs() vfs.FS       { return l.home.Load().env.fs }
func (l *Log) dir() string      { return l.home.Load().env.dir }
