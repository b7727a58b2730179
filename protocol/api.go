package protocol

import (
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// API is one row of the table that a server is made of: it serves these versions of this key, and ApiVersions lists
// exactly that.
type API struct {
	Key, Min, Max int16

	// Allow is authorisation that does not depend on the body; an error closes the connection. Nil: the handler asks.
	Allow func(*Call) error

	// Serve runs on the connection's reading goroutine. When it returns the request is ordered; it is answered by
	// Reply, ReplyParts, ReplyProduce, ReplyFetch, NoReply or Fail, then or later. A Serve that waits holds up only the
	// requests behind it: earlier answers have been written before it is called, unless burst is set.
	Serve func(*Call)

	// MaxBodyBytes is the largest body that is decoded; 0: 4 MiB, which is plenty unless a request carries what clients
	// made of their own. A larger one closes the connection.
	MaxBodyBytes int

	// burst lets ready answers wait until Serve has returned, so that several leave with one write. For what never waits.
	burst bool
}

// Route makes the row of an API whose body kmsg decodes. The decoded request holds nothing of the frame and may
// be kept.
func Route[R kmsg.Request](minVersion, maxVersion int16, serve func(*Call, R)) API {
	var zero R
	key := zero.Key()
	return RouteNew(key, minVersion, maxVersion, func() R {
		req, ok := kmsg.RequestForKey(key).(R)
		if !ok {
			panic(fmt.Sprintf("protocol: kmsg has no request for key %d", key))
		}
		return req
	}, serve)
}

// RouteNew is Route for requests that kmsg does not know: newRequest makes an empty one.
func RouteNew[R kmsg.Request](key, minVersion, maxVersion int16, newRequest func() R, serve func(*Call, R)) API {
	return API{Key: key, Min: minVersion, Max: maxVersion, Serve: func(c *Call) {
		req := newRequest()
		if err := c.decode(req); err != nil {
			c.Fail(err)
			return
		}
		serve(c, req)
	}}
}

// entry is a row with what is worked out once.
type entry struct {
	API
	name     string
	flexible int16 // first version whose header has tags
	metrics  *apiMetrics
}

// table finds rows by key. Keys are few and below 128 but for the private ones, hence an array and a short list.
type table struct {
	low     [128]*entry
	private []*entry // keys of 10000 and more, by key
	sorted  []*entry // all, by key, with ApiVersions
}

// firstPrivateKey is where the keys begin that Apache Kafka will never use. They are listed to kctl only.
const firstPrivateKey = 10000

func newTable(apis []API) (*table, error) {
	t := &table{}
	for _, a := range apis {
		e := &entry{API: a, name: kmsg.NameForKey(a.Key), flexible: firstFlexible(a)}
		if err := t.add(e); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(t.sorted, func(a, b *entry) int { return int(a.Key) - int(b.Key) })
	return t, nil
}

func (t *table) add(e *entry) error {
	switch {
	case e.Key < 0 || e.Min < 0 || e.Max < e.Min || e.Serve == nil:
		return fmt.Errorf("protocol: api %d versions %d-%d cannot be served", e.Key, e.Min, e.Max)
	case t.find(e.Key) != nil:
		return fmt.Errorf("protocol: api %d is in the table twice", e.Key)
	case int(e.Key) < len(t.low):
		t.low[e.Key] = e
	case e.Key >= firstPrivateKey:
		t.private = append(t.private, e)
		if e.name == "" || e.name == "Unknown" {
			e.name = fmt.Sprintf("Private%d", e.Key)
		}
	default:
		return fmt.Errorf("protocol: api %d is neither Kafka's nor private", e.Key)
	}
	t.sorted = append(t.sorted, e)
	return nil
}

// find returns nil for a key that is not served.
func (t *table) find(key int16) *entry {
	if key >= 0 && int(key) < len(t.low) {
		return t.low[key]
	}
	for _, e := range t.private {
		if e.Key == key {
			return e
		}
	}
	return nil
}

// firstFlexible asks kmsg from which version on requests have tagged fields (KIP-482). Private keys always have them.
func firstFlexible(a API) int16 {
	req := kmsg.RequestForKey(a.Key)
	if req == nil {
		return 0
	}
	for v := int16(0); v <= a.Max; v++ {
		req.SetVersion(v)
		if req.IsFlexible() {
			return v
		}
	}
	return a.Max + 1
}
