package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// unsynchronised says that nobody keeps this machine's clock right.
func unsynchronised() (finding, bool) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil || state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0 {
		return finding{}, false
	}
	return finding{severity: "info", subject: "this host", evidence: "the kernel says that the clock is not synchronised", fix: "run chrony or ntpd"}, true
}

// leastDescriptors and leastMaps are what a broker with thousands of partitions needs.
const (
	leastDescriptors = 100_000
	leastMaps        = 262_144
)

func checkDescriptors(*examination) []finding {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return nil
	}
	return judgeDescriptors(limit.Max)
}

func judgeDescriptors(most uint64) []finding {
	if most >= leastDescriptors {
		return nil
	}
	return []finding{{severity: "warning", subject: "this host", evidence: fmt.Sprintf("%d open files at most for a process of this user", most), fix: "LimitNOFILE=1048576 in the unit, or ulimit -n 1048576"}}
}

func readNumber(path string) (int64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

func checkMapCount(*examination) []finding {
	n, ok := readNumber("/proc/sys/vm/max_map_count")
	if !ok {
		return nil
	}
	return judgeMaps(n)
}

func judgeMaps(n int64) []finding {
	if n >= leastMaps {
		return nil
	}
	return []finding{{severity: "info", subject: "this host", evidence: fmt.Sprintf("vm.max_map_count is %d; every closed segment's indexes are two mappings", n), fix: fmt.Sprintf("sysctl -w vm.max_map_count=%d", leastMaps)}}
}

func checkSwap(*examination) []finding {
	b, err := os.ReadFile("/proc/swaps")
	swappiness, ok := readNumber("/proc/sys/vm/swappiness")
	if err != nil || !ok {
		return nil
	}
	return judgeSwap(string(b), swappiness)
}

// judgeSwap looks at the text of /proc/swaps, whose first line has the headings.
func judgeSwap(swaps string, swappiness int64) []finding {
	if strings.Count(strings.TrimSpace(swaps), "\n") == 0 || swappiness <= 10 {
		return nil
	}
	return []finding{{severity: "info", subject: "this host", evidence: fmt.Sprintf("there is swap, and vm.swappiness is %d", swappiness), fix: "sysctl -w vm.swappiness=1, or swapoff -a: a broker that is swapped out misses its heartbeats"}}
}

// mount is a line of /proc/self/mounts.
type mount struct{ point, kind, options string }

// mountOf finds the file system that holds a path in the text of /proc/self/mounts.
func mountOf(mounts, path string) (mount, bool) {
	var best mount
	found := false
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		if len(f) < 4 {
			continue
		}
		point := strings.ReplaceAll(f[1], `\040`, " ")
		inside := point == "/" || path == point || strings.HasPrefix(path, point+"/")
		if inside && (!found || len(point) >= len(best.point)) {
			best, found = mount{point, f[2], f[3]}, true
		}
	}
	return best, found
}

func checkFileSystem(x *examination) []finding {
	b, err := os.ReadFile("/proc/self/mounts")
	path, err2 := filepath.Abs(x.dir)
	if err != nil || err2 != nil {
		return nil
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	m, ok := mountOf(string(b), path)
	if !ok {
		return nil
	}
	return judgeMount(x.dir, m)
}

func judgeMount(dir string, m mount) []finding {
	options := strings.Split(m.options, ",")
	switch {
	case m.kind == "tmpfs" || m.kind == "ramfs":
		return []finding{{severity: "warning", subject: dir, evidence: "on " + m.kind + ": gone with the next boot", fix: "put the data on a disk"}}
	case strings.HasPrefix(m.kind, "nfs") || m.kind == "cifs" || m.kind == "smb3" || strings.HasPrefix(m.kind, "fuse."):
		return []finding{{severity: "warning", subject: dir, evidence: "on " + m.kind + ": locks and syncs may not hold what they promise", fix: "put the data on a local disk"}}
	case !slices.Contains(options, "noatime") && !slices.Contains(options, "relatime"):
		return []finding{{severity: "info", subject: dir, evidence: "every read writes an access time", fix: "mount " + m.point + " with noatime"}}
	}
	return nil
}

// slowSync is a 99th percentile that makes karst.durability=fsync hurt.
const slowSync = 50 * time.Millisecond

func checkSync(x *examination) []finding {
	took, err := syncTimes(x.dir, 50)
	if err != nil {
		return []finding{{severity: "warning", subject: x.dir, evidence: err.Error(), fix: "run kctl doctor as the user of the broker"}}
	}
	return judgeSyncs(x.dir, took)
}

// judgeSyncs looks at the times that syncs took, in order.
func judgeSyncs(dir string, took []time.Duration) []finding {
	p99 := took[len(took)*99/100]
	if p99 < slowSync {
		return nil
	}
	return []finding{{severity: "warning", subject: dir, evidence: fmt.Sprintf("a sync of 4 KiB takes %s (99 of 100), %s (half)", p99.Round(time.Millisecond), took[len(took)/2].Round(time.Millisecond)), fix: "use a disk with a protected write cache; other writers on the same disk slow it too"}}
}

// syncTimes writes and syncs small blocks, and returns the times in order.
func syncTimes(dir string, n int) ([]time.Duration, error) {
	f, err := os.CreateTemp(dir, "kctl-doctor-*")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	block := make([]byte, 4096)
	var took []time.Duration
	for range n {
		if _, err := f.Write(block); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := f.Sync(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took, nil
}
