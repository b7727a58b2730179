package broker

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A move is accepted when directory and partition are there; the log's own directory calls a move off.
func TestAlterReplicaLogDirs(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.topic("t", 1, nil)
	c := r.dial()
	for _, x := range []struct {
		dir       string
		partition int32
		want      int16
	}{
		{"/log", 0, codeNone}, {"/elsewhere", 0, codeLogDirNotFound}, {"/log", 7, codeReplicaNotHere},
	} {
		for version := range int16(3) {
			req := kmsg.NewPtrAlterReplicaLogDirsRequest()
			req.SetVersion(version)
			req.Dirs = []kmsg.AlterReplicaLogDirsRequestDir{{
				Dir: x.dir, Topics: []kmsg.AlterReplicaLogDirsRequestDirTopic{{Topic: "t", Partitions: []int32{x.partition}}},
			}}
			resp := c.ask(req).(*kmsg.AlterReplicaLogDirsResponse)
			if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 || resp.Topics[0].Partitions[0].ErrorCode != x.want {
				t.Errorf("version %d, %s, partition %d: %+v, want %d", version, x.dir, x.partition, resp.Topics, x.want)
			}
		}
	}
}
