package protocol

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// serverEnv makes the test's binary a server that answers Produce with a fixed answer, so that a benchmark can tell
// the server's processor time from its clients'.
const serverEnv = "KARST_TEST_NOOP_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(serverEnv) != "" {
		runNoopServer()
		return
	}
	goleak.VerifyTestMain(m)
}

// runNoopServer prints its address and serves until its input ends.
func runNoopServer() {
	answer := &ProduceResponse{Topics: []ProduceTopicResult{{Name: "topic", Partitions: []ProducePartitionResult{{LogAppendTime: -1}}}}}
	route := RouteProduce(0, 13, func(c *Call, _ *ProduceRequest) { c.ReplyProduce(answer) })
	s, err := NewServer(ServerOptions{APIs: []API{route}, Listeners: []ListenerOptions{{Name: "X", Addr: "127.0.0.1:0"}}})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	fmt.Println(s.Addr("X"))
	if err := s.Run(ctx); err != nil {
		panic(err)
	}
}
