package storage

import (
	"errors"
	"io/fs"
	"syscall"
	"testing"
)

func TestErrorsSayEachThingOnce(t *testing.T) {
	eio := func(path string) error { return &fs.PathError{Op: "fdatasync", Path: path, Err: syscall.EIO} }
	for _, x := range []struct {
		err  error
		want string
	}{
		{&OfflineError{Dir: "/d", Err: eio("/d/t-0/00000000000000000000.log")}, "/d is offline: fdatasync t-0/00000000000000000000.log: input/output error"},
		{&OfflineError{Dir: "/d", Err: eio("/d")}, "/d is offline: fdatasync the directory: input/output error"},
		{&OfflineError{Dir: "/d", Err: eio("/e/x")}, "/d is offline: fdatasync /e/x: input/output error"},
		{&OfflineError{Dir: "/d/t-0", Err: errClosed}, "/d/t-0 is offline: log is closed"},
		{&CorruptError{Path: "f", Pos: 7, Reason: "no"}, "damaged file f at 7: no"},
		{&CorruptError{Path: "f", Pos: -1, Reason: "no", Want: 1}, "damaged file f: no (want 1, got 0)"},
	} {
		if got := x.err.Error(); got != x.want {
			t.Errorf("%q, want %q", got, x.want)
		}
	}
	if !errors.Is(&OfflineError{Dir: "/d", Err: eio("/d/x")}, syscall.EIO) {
		t.Error("the cause is lost")
	}
}
