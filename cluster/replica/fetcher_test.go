package replica

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
	"github.com/karstlog/karst/protocol"
)

// fakeLeader is the other end of a fetcher's connection.
type fakeLeader struct {
	t    *testing.T
	conn net.Conn
}

// next reads a request.
func (l fakeLeader) next() (*kmsg.FetchRequest, uint32) {
	l.t.Helper()
	var size [4]byte
	if _, err := io.ReadFull(l.conn, size[:]); err != nil {
		l.t.Fatal(err)
	}
	frame := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(l.conn, frame); err != nil {
		l.t.Fatal(err)
	}
	// key, version, correlation, client id, and no tagged fields
	correlation, client := binary.BigEndian.Uint32(frame[4:]), max(0, int16(binary.BigEndian.Uint16(frame[8:])))
	req := kmsg.NewPtrFetchRequest()
	req.SetVersion(protocol.FollowerFetchVersion)
	if err := req.ReadFrom(frame[10+int(client)+1:]); err != nil {
		l.t.Fatal(err)
	}
	return req, correlation
}

// begin answers without records, and gives the session an id.
func (l fakeLeader) begin(correlation uint32, session int32) {
	l.t.Helper()
	resp := kmsg.NewPtrFetchResponse()
	resp.SetVersion(protocol.FollowerFetchVersion)
	resp.SessionID = session
	frame := append(binary.BigEndian.AppendUint32(make([]byte, 4), correlation), 0)
	frame = resp.AppendTo(frame)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	if _, err := l.conn.Write(frame); err != nil {
		l.t.Fatal(err)
	}
}

// follows runs a set whose only partition follows broker 2.
func follows(t *testing.T, settings FetchSettings, dial func(context.Context) (net.Conn, error)) {
	t.Helper()
	s := newSite(t, vfs.NewMem(1))
	incarnation := newID()
	s.Set = NewSet(Options{
		BrokerID: 1, Dirs: s.dirs, Logger: slog.New(slog.DiscardHandler), Fetch: settings,
		Incarnation: func() uuid.UUID { return incarnation },
		Subscribe:   func() Subscription { return &images{} },
		Dial:        func(ctx context.Context, _ metadata.BrokerID) (net.Conn, error) { return dial(ctx) },
	})
	s.apply(metadata.RegisterBroker{Broker: metadata.Broker{ID: 1, Incarnation: incarnation}},
		metadata.RegisterBroker{Broker: metadata.Broker{ID: 2, Incarnation: newID()}},
		metadata.CreateTopic{ID: newID(), Name: "t", Partitions: [][]metadata.BrokerID{{2, 1}}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// hand gives the test v unless it is over.
func hand[T any](ctx context.Context, to chan<- T, v T) error {
	select {
	case to <- v:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// The sizes and the wait of a follower's requests are those that are set, and so is how long it waits for a leader that
// says nothing.
func TestFollowersFetchAsTheyAreSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := make(chan fakeLeader)
		follows(t, FetchSettings{MaxWait: 123 * time.Millisecond, MinBytes: 7, MaxBytes: 4321, MaxResponseBytes: 8765, Timeout: 20 * time.Second}, func(ctx context.Context) (net.Conn, error) {
			here, there := net.Pipe()
			return here, hand(ctx, dials, fakeLeader{t, there})
		})
		leader := <-dials
		first, correlation := leader.next()
		if len(first.Topics) != 1 || len(first.Topics[0].Partitions) != 1 {
			t.Fatalf("%+v", first)
		}
		got := [3]int32{first.MinBytes, first.MaxBytes, first.Topics[0].Partitions[0].PartitionMaxBytes}
		if want := [3]int32{7, 8765, 4321}; got != want {
			t.Errorf("least bytes, bytes of an answer and of a partition: %d, want %d", got, want)
		}
		leader.begin(correlation, 9)
		asked := time.Now()
		second, _ := leader.next()
		if second.SessionID != 9 || second.MaxWaitMillis != 123 {
			t.Errorf("session %d waits for %d ms, want 9 and 123", second.SessionID, second.MaxWaitMillis)
		}
		<-dials
		if waited := time.Since(asked).Round(time.Second / 10); waited != 20_100*time.Millisecond {
			t.Errorf("a leader that says nothing was given up after %s", waited)
		}
	})
}

func TestPausesAfterAFailedFetchGrowToTheirBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := make(chan time.Time)
		follows(t, FetchSettings{MaxBackoff: 37 * time.Millisecond}, func(ctx context.Context) (net.Conn, error) {
			return nil, errors.Join(hand(ctx, dials, time.Now()), errors.New("refused"))
		})
		var pauses []time.Duration
		last := <-dials
		for range 6 {
			next := <-dials
			pauses = append(pauses, next.Sub(last)/time.Millisecond)
			last = next
		}
		if d := cmp.Diff([]time.Duration{5, 10, 20, 37, 37, 37}, pauses); d != "" {
			t.Errorf("milliseconds: -want +got\n%s", d)
		}
	})
}
