package vfs

import (
	"fmt"
	"runtime/debug"
)

// FaultError says that loading mapped bytes failed: the file was cut under the mapping, or the disk could not read
// them. It is damage; the replica goes offline.
type FaultError struct{ Addr uintptr }

func (e *FaultError) Error() string {
	return fmt.Sprintf("memory fault at %#x in a mapped file", e.Addr)
}

// Guard runs f, which loads mapped bytes, on this goroutine. A fault (SIGBUS) in it becomes a *FaultError where it would
// end the process otherwise. Other panics pass through.
func Guard(f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }: // what the runtime panics with on a fault; nothing else has this method
			err = &FaultError{r.Addr()}
		default:
			panic(r)
		}
	}()
	f()
	return nil
}
