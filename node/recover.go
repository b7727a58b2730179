package node

import (
	"fmt"
	"path/filepath"

	"github.com/karstlog/karst/cluster/forming"
	"github.com/karstlog/karst/cluster/quorum"
	"github.com/karstlog/karst/internal/vfs"
)

// Recover makes the broker whose data this is the only voter of its cluster; see quorum.Recover. The broker must not run.
func Recover(data string, dry bool) (quorum.Recovery, error) {
	lock, err := lockOffline(data)
	if err != nil {
		return quorum.Recovery{}, err
	}
	defer lock()
	return quorum.Recover(filepath.Join(data, "raft"), dry)
}

// ForgetPromise takes back the promise to form a cluster that will never be: its proposer's data is lost. It returns that
// cluster's id. The broker must not run.
func ForgetPromise(data string, dry bool) (string, error) {
	lock, err := lockOffline(data)
	if err != nil {
		return "", err
	}
	defer lock()
	r, found, err := forming.Load(vfs.OS(), data)
	switch {
	case err != nil:
		return "", err
	case !found || r.Promise == nil:
		return "", fmt.Errorf("%s has made no promise", data)
	case !r.ClusterID.IsZero():
		return "", fmt.Errorf("%s belongs to cluster %s, which has begun", data, r.ClusterID)
	}
	cluster := r.Promise.ClusterID.String()
	r.Promise = nil
	if dry {
		return cluster, nil
	}
	return cluster, forming.Save(vfs.OS(), data, r)
}

func lockOffline(data string) (unlock func(), err error) {
	if _, err := vfs.OS().Stat(data); err != nil {
		return nil, err
	}
	lock, err := lockDirectory(vfs.OS(), data)
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.Close() }, nil
}
