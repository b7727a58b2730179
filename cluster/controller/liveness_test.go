package controller

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

// bench has brokers 1 (this one) to 4 and a clock.
type bench struct {
	*Liveness
	now     time.Time
	brokers []*metadata.Broker
}

func newBench() *bench {
	b := &bench{now: time.Unix(1000, 0)}
	b.Liveness = NewLiveness(b.now)
	for id := metadata.BrokerID(1); id <= 4; id++ {
		b.brokers = append(b.brokers, &metadata.Broker{ID: id, Incarnation: uuid.UUID{byte(id)}})
	}
	return b
}

func (b *bench) member(id metadata.BrokerID) metadata.Member {
	return metadata.Member{Broker: id, Incarnation: b.brokers[id-1].Incarnation}
}

// run lets time pass while the named brokers are heard, and returns the first verdicts and when they came.
func (b *bench) run(d time.Duration, heard ...metadata.BrokerID) ([]Verdict, time.Duration) {
	for passed := time.Duration(0); passed < d; {
		b.now, passed = b.now.Add(25*time.Millisecond), passed+25*time.Millisecond
		for _, id := range heard {
			b.Heard(b.member(id), b.now)
		}
		if v := b.Tick(b.now, b.brokers, b.member(1)); len(v) > 0 {
			return v, passed
		}
	}
	return nil, 0
}

func TestEndOfAProcessCountsAtOnce(t *testing.T) {
	b := newBench()
	b.run(time.Second, 2, 3, 4)
	b.Gone(metadata.Member{Broker: 3, Incarnation: uuid.UUID{99}}, b.now) // an earlier start of it
	if v, _ := b.run(time.Second, 2, 3, 4); v != nil {
		t.Errorf("the end of an earlier start: %v", v)
	}
	b.Gone(b.member(3), b.now)
	v, after := b.run(time.Second, 2, 4)
	if len(v) != 1 || v[0] != (Verdict{b.member(3), ReasonGone}) || after != 25*time.Millisecond {
		t.Errorf("%v after %s", v, after)
	}
}

func TestEvidenceFromBeforeTheTermCounts(t *testing.T) {
	b := newBench()
	b.Gone(b.member(2), b.now)
	b.now = b.now.Add(time.Second)
	b.Begin(b.now)
	if v, after := b.run(time.Second, 3, 4); len(v) != 1 || v[0].Member.Broker != 2 || after > 25*time.Millisecond {
		t.Errorf("%v after %s", v, after)
	}
}

func TestSilenceCountsAfterAWhile(t *testing.T) {
	b := newBench()
	v, after := b.run(5*time.Second, 2, 4)
	if len(v) != 1 || v[0] != (Verdict{b.member(3), ReasonSilent}) || after < silence || after > silence+100*time.Millisecond {
		t.Errorf("%v after %s", v, after)
	}
}

// TestGossipAloneProvesNothing: who answers lives; gossip only makes silence count sooner.
func TestGossipAloneProvesNothing(t *testing.T) {
	b := newBench()
	b.run(time.Second, 2, 3, 4)
	for id := metadata.BrokerID(2); id <= 4; id++ {
		b.Gossip(b.member(id), false, b.now)
	}
	if v, _ := b.run(time.Minute, 2, 3, 4); v != nil {
		t.Errorf("brokers that answer are dead: %v", v)
	}
	v, after := b.run(5*time.Second, 2, 4)
	if len(v) != 1 || v[0] != (Verdict{b.member(3), ReasonGossip}) || after < suspected || after > suspected+100*time.Millisecond {
		t.Errorf("%v after %s", v, after)
	}
	b.Gossip(b.member(3), true, b.now)
	b.Heard(b.member(3), b.now)
	if _, after := b.run(5*time.Second, 2, 4); after < silence {
		t.Errorf("gossip has taken it back, and it was dead after %s", after)
	}
}

// TestSeveralAtOnceAreDoubted: then it may be the controller itself that is cut off.
func TestSeveralAtOnceAreDoubted(t *testing.T) {
	b := newBench()
	b.run(time.Second, 2, 3, 4)
	v, after := b.run(10*time.Second, 4)
	if len(v) != 2 || after < silence+doubt || after > silence+doubt+100*time.Millisecond {
		t.Errorf("%v after %s", v, after)
	}
}

// TestOwnStandstillIsNoSilenceOfOthers: a controller that was stopped for half a minute suspects nobody for it.
func TestOwnStandstillIsNoSilenceOfOthers(t *testing.T) {
	b := newBench()
	b.Answered(b.member(4), b.now)
	b.run(time.Second, 2, 3, 4)
	b.now = b.now.Add(30 * time.Second)
	if v, _ := b.run(silence - 100*time.Millisecond); v != nil {
		t.Errorf("dead after this process slept: %v", v)
	}
}

// TestHangingControllerIsFoundByItsSuccessor: the one after it has asked it all the time.
func TestHangingControllerIsFoundByItsSuccessor(t *testing.T) {
	b := newBench()
	b.Answered(b.member(4), b.now)
	b.now = b.now.Add(time.Second)
	b.Begin(b.now)
	v, after := b.run(5*time.Second, 2, 3)
	if len(v) != 1 || v[0] != (Verdict{b.member(4), ReasonSilent}) || after > silence-time.Second+100*time.Millisecond {
		t.Errorf("%v after %s", v, after)
	}
}

// TestFencedBrokerBeginsAnew: what was known of it does not fence it once more when it is back.
func TestFencedBrokerBeginsAnew(t *testing.T) {
	b := newBench()
	b.run(silence+time.Second, 2, 4)
	b.Gone(b.member(3), b.now)
	fenced := *b.brokers[2]
	fenced.Fenced = true
	back := b.brokers[2]
	b.brokers[2] = &fenced
	b.run(10*time.Second, 2, 4)
	b.brokers[2] = back
	if v, after := b.run(silence-100*time.Millisecond, 2, 4); v != nil {
		t.Errorf("fenced again %s after it was back: %v", after, v)
	}
}

func TestForgetsWhoIsNotRegistered(t *testing.T) {
	b := newBench()
	for i := range 1000 {
		b.Heard(metadata.Member{Broker: 9, Incarnation: uuid.UUID{1, byte(i >> 8), byte(i)}}, b.now)
	}
	b.run(2*forget, 2, 3, 4)
	if len(b.of) > len(b.brokers) {
		t.Errorf("%d processes are remembered", len(b.of))
	}
}

// TestStarvationBelowTheLimitsFencesNobody: ten minutes on processors that others use up. What brokers say comes up to just
// below the limit late, gossip changes its mind, and the controller itself runs rarely and stands still at times.
func TestStarvationBelowTheLimitsFencesNobody(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
	b := newBench()
	due := map[metadata.BrokerID]time.Time{2: b.now, 3: b.now, 4: b.now}
	given := map[metadata.BrokerID]bool{}
	for end := b.now.Add(10 * time.Minute); b.now.Before(end); {
		pause := upTo(standstill - 50*time.Millisecond)
		if rng.IntN(50) == 0 {
			pause = standstill + upTo(time.Minute)
		}
		next := b.now.Add(pause)
		for id := metadata.BrokerID(2); id <= 4; id++ {
			limit := silence
			if given[id] {
				limit = suspected
			}
			if pause > standstill { // what was said meanwhile lies in the sockets
				due[id] = next.Add(upTo(limit - standstill))
			}
			for !due[id].After(next) {
				at := due[id]
				b.Heard(b.member(id), at)
				given[id] = rng.IntN(3) == 0
				b.Gossip(b.member(id), !given[id], at)
				limit = silence
				if given[id] {
					limit = suspected
				}
				due[id] = at.Add(100*time.Millisecond + upTo(limit-100*time.Millisecond))
			}
		}
		b.now = next
		if v := b.Tick(b.now, b.brokers, b.member(1)); len(v) > 0 {
			t.Fatalf("%s before the end: %v", end.Sub(b.now), v)
		}
	}
}
