package controller

import (
	"testing"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
)

func TestNewBrokerIsNotTakenForSilentFromBeforeItWasThere(t *testing.T) {
	for name, before := range map[string]func(*Liveness, metadata.Member, time.Time){
		"nothing was heard":  func(*Liveness, metadata.Member, time.Time) {},
		"gossip was earlier": func(l *Liveness, m metadata.Member, now time.Time) { l.Gossip(m, true, now) },
	} {
		now := time.Unix(1000, 0)
		l := NewLiveness(now)
		me, other := metadata.Member{Broker: 1, Incarnation: uuid.UUID{1}}, metadata.Member{Broker: 2, Incarnation: uuid.UUID{2}}
		brokers := []*metadata.Broker{{ID: 1, Incarnation: me.Incarnation}}
		for range 100 { // a long term as controller
			now = now.Add(100 * time.Millisecond)
			l.Tick(now, brokers, me)
		}
		before(l, other, now)
		brokers = append(brokers, &metadata.Broker{ID: 2, Incarnation: other.Incarnation})
		since := now
		for {
			now = now.Add(100 * time.Millisecond)
			if verdicts := l.Tick(now, brokers, me); len(verdicts) > 0 {
				break
			}
		}
		if waited := now.Sub(since); waited < silence {
			t.Errorf("%s: taken for dead after %s", name, waited)
		}
	}
}
