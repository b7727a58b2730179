package coordinator

import (
	"context"
	"sync"
	"time"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/group"
)

// Place is an offset in a partition: where a group reads next.
type Place struct {
	Topic     string
	Partition int32
	Offset    int64
}

// Distance is how far a place is from the end of its partition.
type Distance struct {
	Known     bool  // false: nobody could be asked, or the partition does not exist
	End       int64 // the high watermark
	Timestamp int64 // of the record at the place, milliseconds since 1970; -1: there is none, or it does not say
}

// Records is the number of records between a place and the end. It is never negative: an offset beyond the end is left over
// from a log that was cut or a topic that was made anew.
func (d Distance) Records(p Place) int64 { return max(0, d.End-p.Offset) }

// Behind is the age of the record at the place, 0 when the place is at the end; ok is false when it is not known.
func (d Distance) Behind(p Place, now time.Time) (age time.Duration, ok bool) {
	switch {
	case !d.Known || d.Records(p) > 0 && d.Timestamp < 0:
		return 0, false
	case d.Records(p) == 0:
		return 0, true
	}
	return max(0, now.Sub(time.UnixMilli(d.Timestamp))), true // timestamps of clients may lie ahead
}

// Lag is what a group has yet to read of one partition.
type Lag struct {
	Place
	Distance
	Committed time.Time // when the offset was committed
}

// lagEvery is how long the lag of all groups is shown before it is measured again.
const lagEvery = 5 * time.Second

// Lag measures a group now: a line for each partition it has an offset of, in order. Errors as of View. It may ask other
// brokers for partitions that they lead.
func (c *Coordinator) Lag(ctx context.Context, id string) ([]Lag, error) {
	var out []Lag
	if err := c.View(id, func(g *group.Group) { out = places(g) }); err != nil {
		return nil, err
	}
	c.measure(ctx, out)
	return out, nil
}

func places(g *group.Group) []Lag {
	offsets := g.Offsets()
	out := make([]Lag, len(offsets))
	for i, o := range offsets {
		out[i] = Lag{Place: Place{o.Topic, o.Partition, o.Offset.Offset}, Committed: time.UnixMilli(o.CommitTime)}
	}
	return out
}

// measure fills in distances: of partitions led here from their logs, of others by asking their leaders.
func (c *Coordinator) measure(ctx context.Context, lags []Lag) {
	elsewhere := map[metadata.BrokerID][]int{}
	im := c.set.Image()
	for i := range lags {
		l := &lags[i]
		t, ok := im.Topic(l.Topic)
		if !ok || l.Partition < 0 || int(l.Partition) >= len(t.Partitions) {
			continue
		}
		if leader := t.Partitions[l.Partition].Leader; leader == c.self {
			l.Distance = c.Measure(l.Place)
		} else if leader >= 0 && c.remote != nil {
			elsewhere[leader] = append(elsewhere[leader], i)
		}
	}
	var wg sync.WaitGroup
	for leader, at := range elsewhere {
		wg.Go(func() {
			ask := make([]Place, len(at))
			for j, i := range at {
				ask[j] = lags[i].Place
			}
			for j, d := range c.remote(ctx, leader, ask) {
				if j < len(at) {
					lags[at[j]].Distance = d
				}
			}
		})
	}
	wg.Wait()
}

// Measure is the distance of a place in a partition that this broker leads; not known otherwise.
func (c *Coordinator) Measure(p Place) Distance {
	part, err := c.set.Get(p.Topic, p.Partition)
	if err != nil {
		return Distance{}
	}
	ends, err := part.Ends(-1)
	if err != nil {
		return Distance{}
	}
	d := Distance{Known: true, End: ends.HighWatermark, Timestamp: -1}
	if d.Records(p) > 0 {
		d.Timestamp = timestampAt(part, max(p.Offset, ends.Start))
	}
	return d
}

// timestampAt is when the record at an offset was written, -1 when that cannot be read. The batch's header gives it for the
// first and the last record of the batch; in between, records are taken to have come evenly.
func timestampAt(p *replica.Partition, offset int64) int64 {
	b, ok := p.Header(offset)
	if !ok {
		return -1
	}
	first, last := b.BaseTimestamp(), b.MaxTimestamp()
	if b.LogAppendTime() {
		return last
	}
	n := int64(b.LastOffsetDelta())
	if n == 0 || last <= first {
		return first
	}
	return first + int64(float64(last-first)*(float64(min(offset-b.BaseOffset(), n))/float64(n)))
}

// topicLag is a group's lag in one topic, for metrics.
type topicLag struct {
	group, topic string
	records      int64
	behind       time.Duration // the largest of its partitions
	timed        bool          // behind is known
}

// maxLagSeries bounds the groups and topics that metrics show: clients can make any number.
const maxLagSeries = 10_000

// watchLag measures all groups again and again, so that whoever scrapes metrics does not wait for other brokers.
func (c *Coordinator) watchLag(ctx context.Context) {
	for {
		began := time.Now()
		lags := c.allLags(ctx)
		c.lags.Store(&lags)
		// No more than a tenth of the time is spent on it, however many groups there are.
		timer := time.NewTimer(max(lagEvery, 9*time.Since(began)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

func (c *Coordinator) allLags(ctx context.Context) []topicLag {
	type owner struct {
		id   string
		lags []Lag
	}
	var groups []owner
	series := 0
	_ = c.Each(func(g *group.Group) { // what is still loading comes next time
		if series >= maxLagSeries {
			return
		}
		if lags := places(g); len(lags) > 0 {
			groups = append(groups, owner{g.ID(), lags})
			for i := range lags {
				if i == 0 || lags[i].Topic != lags[i-1].Topic {
					series++
				}
			}
		}
	})
	now := c.wall()
	var out []topicLag
	for _, g := range groups {
		c.measure(ctx, g.lags)
		for i, l := range g.lags {
			if i == 0 || l.Topic != g.lags[i-1].Topic {
				out = append(out, topicLag{group: g.id, topic: l.Topic})
			}
			t := &out[len(out)-1]
			if !l.Known {
				continue
			}
			t.records += l.Records(l.Place)
			if age, ok := l.Behind(l.Place, now); ok {
				t.behind, t.timed = max(t.behind, age), true
			}
		}
	}
	return out
}
