package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// replicaPlace is a replica of a partition.
type replicaPlace struct {
	topicPartition
	broker int32
}

// String is the replica as Kafka's tool writes it.
func (r replicaPlace) String() string {
	return fmt.Sprintf("%s-%d-%d", r.topic, r.partition, r.broker)
}

// replicaDir is the directory that a replica lies in and, while it moves to another, that one.
type replicaDir struct{ now, next string }

// replicaDirs finds the directories of all replicas; those of a broker that does not answer are missing.
func (l *link) replicaDirs(ctx context.Context) map[replicaPlace]replicaDir {
	out := map[replicaPlace]replicaDir{}
	all, _ := l.adm.DescribeAllLogDirs(ctx, nil)
	all.Each(func(d kadm.DescribedLogDir) {
		d.Topics.Each(func(p kadm.DescribedLogDirPartition) {
			place := replicaPlace{topicPartition{p.Topic, p.Partition}, d.Broker}
			dir := out[place]
			if p.IsFuture {
				dir.next = d.Dir
			} else {
				dir.now = d.Dir
			}
			out[place] = dir
		})
	})
	return out
}

// moveDirs asks the brokers to take replicas to directories, until each has begun to. A replica that a reassignment is only
// bringing to its broker is not there yet, so it is asked for again.
func (a *aliasCall) moveDirs(ctx context.Context, l *link, to map[replicaPlace]string) error {
	millis, err := a.int("timeout", 10_000)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(millis)*time.Millisecond)
	defer cancel()
	for {
		for _, r := range sortedReplicas(to) {
			switch err := l.moveDir(ctx, r, to[r]); {
			case err == nil:
				a.print("Successfully started moving log directory to %s for replica %s-%d with broker %d ", to[r], r.topic, r.partition, r.broker)
				delete(to, r)
			case ctx.Err() == nil && !errors.Is(err, kerr.ReplicaNotAvailable):
				return says("Failed to alter dir for %s: %s", r, err)
			}
		}
		if len(to) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return says("Timed out before log directory move%s could be started for: %s", plural(len(to)), joinReplicas(to))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// moveDir asks one broker to take one replica to another of its directories.
func (l *link) moveDir(ctx context.Context, r replicaPlace, dir string) error {
	req := kmsg.NewPtrAlterReplicaLogDirsRequest()
	req.Dirs = []kmsg.AlterReplicaLogDirsRequestDir{{
		Dir:    dir,
		Topics: []kmsg.AlterReplicaLogDirsRequestDirTopic{{Topic: r.topic, Partitions: []int32{r.partition}}},
	}}
	resp, err := l.cl.Broker(int(r.broker)).RetriableRequest(ctx, req)
	if err != nil {
		return err
	}
	for _, t := range resp.(*kmsg.AlterReplicaLogDirsResponse).Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return err
			}
		}
	}
	return nil
}

// verifyDirs says how far the moves between directories are, and whether all have ended.
func (a *aliasCall) verifyDirs(ctx context.Context, l *link, wanted map[replicaPlace]string) (ended bool) {
	if len(wanted) == 0 {
		return true
	}
	have := l.replicaDirs(ctx)
	ended = true
	for _, r := range sortedReplicas(wanted) {
		switch dir := have[r]; {
		case dir.now == "":
			a.print("Partition %s-%d cannot be found in any live log directory on broker %d.", r.topic, r.partition, r.broker)
		case dir.next == wanted[r]:
			ended = false
			a.print("Reassignment of replica %s is still in progress.", r)
		case dir.next != "":
			ended = false
			a.print("Partition %s-%d on broker %d is being moved to log dir %s instead of %s.", r.topic, r.partition, r.broker, dir.next, wanted[r])
		case dir.now != wanted[r]:
			a.print("Partition %s-%d on broker %d is not being moved from log dir %s to %s.", r.topic, r.partition, r.broker, dir.now, wanted[r])
		default:
			a.print("Reassignment of replica %s completed successfully.", r)
		}
	}
	return ended
}

// cancelDirs takes the replicas that move back to where they are.
func (a *aliasCall) cancelDirs(ctx context.Context, l *link, wanted map[replicaPlace]string) error {
	back := map[replicaPlace]string{}
	if len(wanted) > 0 {
		have := l.replicaDirs(ctx)
		for r := range wanted {
			if have[r].next != "" && have[r].now != "" {
				back[r] = have[r].now
			}
		}
	}
	if len(back) == 0 {
		a.print("None of the specified partition moves are active.")
		return nil
	}
	return a.moveDirs(ctx, l, back)
}

func sortedReplicas(m map[replicaPlace]string) []replicaPlace {
	return slices.SortedFunc(maps.Keys(m), func(a, b replicaPlace) int {
		return cmp.Or(a.compare(b.topicPartition), cmp.Compare(a.broker, b.broker))
	})
}

func joinReplicas(m map[replicaPlace]string) string {
	var names []string
	for _, r := range sortedReplicas(m) {
		names = append(names, r.String())
	}
	return strings.Join(names, ",")
}
