package chaos

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/karstlog/karst/internal/check"
	"github.com/karstlog/karst/test/internal/proc"
)

// TestMembersComeAndGoUnderKills lets brokers join and be decommissioned while these and others are killed: changes of who
// belongs to a cluster and faults at the same time.
func TestMembersComeAndGoUnderKills(t *testing.T) {
	c, l := underLoad(t, longStep)
	random := rand.New(rand.NewPCG(schedule(t), 7))
	old := c.Brokers
	someOld := func() *proc.Broker { return old[random.IntN(len(old))] }
	briefly := func() { time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond) } // where it is at is the point
	var faults []check.Fault
	var victims []int32
	for round := range *rounds {
		from := l.now()
		id := len(old) + 1 + round
		b := c.Add(id)
		b.Launch()
		briefly()
		b.Kill()
		b.Launch()
		victim := someOld()
		briefly()
		victim.Kill()
		calm()
		victim.Launch()
		c.AwaitHealth()
		c.MustKctl("partition", "rebalance", "--yes")

		gone := make(chan error, 1)
		go func() { gone <- decommission(c, id) }()
		briefly()
		victim = someOld()
		victim.Kill()
		calm()
		victim.Launch()
		if round%2 == 1 { // the one that leaves dies, too
			b.Kill()
		}
		if err := <-gone; err != nil {
			t.Fatal(err)
		}
		if round%2 == 0 {
			<-b.Ended()
		}
		c.Brokers = old
		c.AwaitHealth()
		faults, victims = append(faults, check.Fault{What: fmt.Sprintf("broker %d comes and goes", id), From: from, To: l.now()}), append(victims, anyPartition)
	}
	l.end()
	report(t, l, "brokers that come and go", faults, victims)
	compareReplicas(t, old)
}

// decommission gives the command again until the broker is out: it ends early when the broker that it speaks to is killed.
func decommission(c *proc.Cluster, id int) error {
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		_, said, status := c.Kctl("cluster", "decommission", strconv.Itoa(id), "--yes")
		if status == 0 || !known(c, id) { // its answer may have been lost
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("broker %d is not out: %s", id, said)
		}
	}
}

// known tells whether a broker belongs to the cluster; it does unless a controller says that it does not.
func known(c *proc.Cluster, id int) bool {
	text, _, status := c.Kctl("cluster", "status", "-o", "json")
	var brokers []struct {
		ID    int    `json:"id"`
		Voter string `json:"voter"`
	}
	if status != 0 || json.Unmarshal([]byte(text), &brokers) != nil {
		return true
	}
	led := false
	for _, b := range brokers {
		if b.ID == id {
			return true
		}
		led = led || b.Voter == "leader"
	}
	return !led
}
