package node

import "golang.org/x/sys/unix"

// mostLogFiles bounds the half of the descriptors that the logs may hold, as in package storage.
const mostLogFiles = 10_000

// connectionLimit is how many clients may be connected: max.connections, but never so many that their sockets take the
// descriptors of the logs, and of whatever has to be opened for a moment: checkpoints, snapshots, new segments. Without
// a descriptor a sync cannot be done and a segment cannot be rolled; a client can connect again.
func connectionLimit(configured int, descriptors uint64) int {
	logs := min(descriptors/2, mostLogFiles)
	reserve := max(descriptors/8, 32)
	if descriptors < logs+reserve {
		return min(configured, 1)
	}
	return min(configured, int(min(descriptors-logs-reserve, 1<<30)))
}

// descriptors is the limit on open files; the runtime has raised it as far as it may.
func descriptors() uint64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 1 << 20
	}
	return l.Cur
}
