package protocol

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// startNoopServer runs this binary as a server of its own and returns its address and a clock of its processor time.
func startNoopServer(b *testing.B) (addr string, cpuNanos func() int64) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serverEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(line), func() int64 { return processorTime(cmd.Process.Pid) }
}

// processorTime sums what the threads of a process have run.
func processorTime(pid int) (sum int64) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, name := range files {
		stat, _ := os.ReadFile(name)
		n, _ := strconv.ParseInt(strings.SplitN(string(stat), " ", 2)[0], 10, 64)
		sum += n
	}
	return sum
}

// BenchmarkNoopServer measures what the server itself costs: frames of Produce in, a fixed answer out. Its processor
// time per request is the figure; the time per operation includes the clients.
func BenchmarkNoopServer(b *testing.B) {
	for _, bm := range []struct{ conns, inFlight, size int }{
		{1, 1, 200}, {1, 5, 200}, {50, 5, 200}, {1, 5, 16 << 10}, {6, 5, 16 << 10}, {1, 5, 96 << 10}, {1, 5, 1 << 20},
	} {
		b.Run(fmt.Sprintf("conns=%d/inflight=%d/bytes=%d", bm.conns, bm.inFlight, bm.size), func(b *testing.B) {
			addr, cpu := startNoopServer(b)
			frame := request(1, produce(9, -1, "topic", make([]byte, bm.size-60)))
			var left atomic.Int64
			left.Store(int64(b.N))
			before := cpu()
			b.ResetTimer()
			var g sync.WaitGroup
			for range bm.conns {
				g.Go(func() { load(b, addr, frame, bm.inFlight, &left) })
			}
			g.Wait()
			b.StopTimer()
			b.ReportMetric(float64(cpu()-before)/float64(b.N)/1000, "server-µs/op")
			b.SetBytes(int64(len(frame)))
		})
	}
}

// load sends requests, so many in flight, each in its own write as clients do, until none are left.
func load(b *testing.B, addr string, frame []byte, inFlight int, left *atomic.Int64) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		b.Error(err)
		return
	}
	defer nc.Close()
	r := bufio.NewReader(nc)
	flying := 0
	for {
		for flying < inFlight && left.Add(-1) >= 0 {
			if _, err := nc.Write(frame); err != nil {
				b.Error(err)
				return
			}
			flying++
		}
		if flying == 0 {
			return
		}
		for {
			if _, _, err := readAnswer(r); err != nil {
				b.Error(err)
				return
			}
			if flying--; r.Buffered() == 0 {
				break
			}
		}
	}
}

func BenchmarkDecodeProduce(b *testing.B) {
	for _, partitions := range []int{1, 64} {
		b.Run(fmt.Sprintf("partitions=%d", partitions), func(b *testing.B) {
			msg := produce(9, -1, "topic", make([]byte, 1024))
			for len(msg.Topics[0].Partitions) < partitions {
				msg.Topics[0].Partitions = append(msg.Topics[0].Partitions, msg.Topics[0].Partitions[0])
			}
			body := msg.AppendTo(nil)
			var r ProduceRequest
			var names interner
			b.ReportAllocs()
			for b.Loop() {
				if err := r.decodeBody(9, body, &names); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecodeFetch(b *testing.B) {
	msg := kmsg.NewPtrFetchRequest()
	msg.Version = 12
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic = "topic"
	for range 6 {
		rt.Partitions = append(rt.Partitions, kmsg.NewFetchRequestTopicPartition())
	}
	msg.Topics = append(msg.Topics, rt)
	body := msg.AppendTo(nil)
	var r FetchRequest
	var names interner
	b.ReportAllocs()
	for b.Loop() {
		if err := r.decodeBody(12, body, &names); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeFetch(b *testing.B) {
	r := &FetchResponse{Topics: []FetchTopicResult{{Name: "topic", Partitions: make([]FetchPartitionResult, 6)}}}
	b.ReportAllocs()
	for b.Loop() {
		p := NewParts()
		EncodeFetch(12, r, p)
		p.Discard()
	}
}

func BenchmarkEncodeProduce(b *testing.B) {
	r := &ProduceResponse{Topics: []ProduceTopicResult{{Name: "topic", Partitions: make([]ProducePartitionResult, 6)}}}
	buf := make([]byte, 0, 512)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendProduceResponse(buf[:0], 9, r)
	}
}
