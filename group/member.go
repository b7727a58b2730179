package group

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"time"
)

// never is the deadline of what does not end by itself.
const never = time.Duration(1<<63 - 1)

// member is one member of a classic group.
type member struct {
	id         string
	instanceID string // empty: dynamic
	client     client
	session    time.Duration
	rebalance  time.Duration
	protocols  []Protocol
	assignment []byte

	deadline time.Duration // when the session ends, unless a call is parked
	join     Ticket        // the parked JoinGroup, 0: none
	sync     Ticket        // the parked SyncGroup, 0: none
	fresh    bool          // in its first round: the session may end although a call is parked
	owes     bool          // was answered a JoinGroup and has not called SyncGroup since
}

// client is who a member says it is, for people.
type client struct {
	id, host string
}

// parked tells whether the member waits for the coordinator. It cannot send heartbeats then, so its session stands still.
func (m *member) parked() bool { return m.join != 0 || m.sync != 0 }

// expired tells whether the session is over.
func (m *member) expired(mono time.Duration) bool {
	return mono >= m.deadline && (m.fresh || !m.parked())
}

// metadata is what the member sent for a protocol.
func (m *member) metadata(protocol string) []byte {
	for _, p := range m.protocols {
		if p.Name == protocol {
			return p.Metadata
		}
	}
	return nil
}

// sameProtocols tells whether the member asks for what it has asked for before.
func (m *member) sameProtocols(ps []Protocol) bool {
	return slices.EqualFunc(m.protocols, ps, func(a, b Protocol) bool {
		return a.Name == b.Name && bytes.Equal(a.Metadata, b.Metadata)
	})
}

// classic is the membership as this coordinator knows it, ahead of what is stored.
type classic struct {
	state        State // Empty when there is nothing yet
	since        int64 // when the state began, milliseconds; -1 unknown
	protocolType string
	protocol     string
	leader       string // member id; empty: none yet
	generation   int32

	members   map[string]*member
	instances map[string]string // instance id -> member id
	supported map[string]int    // protocol -> members that support it
	joining   int               // members with a parked JoinGroup
	reserved  reserved
	topics    topics // subscribed
	round     round
	history   []Rebalance
	wake      time.Duration // nothing ends before this; may be too early
}

func newClassic() classic {
	return classic{
		since: -1, members: map[string]*member{}, instances: map[string]string{}, supported: map[string]int{},
		reserved: reserved{}, topics: topics{known: true}, wake: never,
	}
}

// due notes that something ends at d.
func (c *classic) due(d time.Duration) { c.wake = min(c.wake, d) }

// insert adds a member.
func (c *classic) insert(m *member) {
	c.members[m.id] = m
	if m.instanceID != "" {
		c.instances[m.instanceID] = m.id
	}
	if m.join != 0 {
		c.joining++
	}
	c.count(m.protocols, 1)
	c.due(m.deadline)
}

// remove takes a member out. Its parked calls are the caller's to answer.
func (c *classic) remove(m *member) {
	delete(c.members, m.id)
	if m.instanceID != "" && c.instances[m.instanceID] == m.id {
		delete(c.instances, m.instanceID)
	}
	if m.join != 0 {
		c.joining--
	}
	c.count(m.protocols, -1)
	if c.leader == m.id {
		c.leader = ""
	}
}

// count keeps how many members support a protocol.
func (c *classic) count(ps []Protocol, by int) {
	for _, p := range ps {
		if c.supported[p.Name] += by; c.supported[p.Name] == 0 {
			delete(c.supported, p.Name)
		}
	}
}

// admitsProtocols tells whether somebody with these protocols can be in the group.
func (c *classic) admitsProtocols(protocolType string, ps []Protocol) bool {
	if protocolType == "" || len(ps) == 0 {
		return false
	}
	if len(c.members) == 0 {
		return true
	}
	return protocolType == c.protocolType &&
		slices.ContainsFunc(ps, func(p Protocol) bool { return c.supported[p.Name] == len(c.members) })
}

// choose is the protocol of the next generation: each member votes for the first of its list that all support. Of equal
// ones that wins which the leader likes better.
func (c *classic) choose() string {
	votes := map[string]int{}
	for _, m := range c.members {
		for _, p := range m.protocols {
			if c.supported[p.Name] == len(c.members) {
				votes[p.Name]++
				break
			}
		}
	}
	rank := map[string]int{}
	if m := c.members[c.leader]; m != nil {
		for i, p := range m.protocols {
			rank[p.Name] = i
		}
	}
	names := slices.SortedFunc(maps.Keys(votes), func(a, b string) int {
		return cmp.Or(votes[b]-votes[a], rank[a]-rank[b], cmp.Compare(a, b))
	})
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

// inOrder lists the members by id: nothing may hang on the order of a map.
func (c *classic) inOrder() []*member {
	return slices.SortedFunc(maps.Values(c.members), func(a, b *member) int { return cmp.Compare(a.id, b.id) })
}

// slowest is the longest time any member may take for a round.
func (c *classic) slowest() time.Duration {
	var d time.Duration
	for _, m := range c.members {
		d = max(d, m.rebalance)
	}
	return d
}

// fence checks who calls. An instance id that another member has taken over fences before the member id is looked up.
func (c *classic) fence(memberID, instanceID string) (*member, error) {
	if instanceID != "" {
		id, ok := c.instances[instanceID]
		if !ok {
			return nil, ErrUnknownMember
		}
		if id != memberID {
			return nil, ErrFencedInstance
		}
	}
	m := c.members[memberID]
	if m == nil {
		return nil, ErrUnknownMember
	}
	return m, nil
}

// current checks who calls and for which generation. A member in its first round belongs to none yet.
func (c *classic) current(memberID, instanceID string, generation int32) (*member, error) {
	m, err := c.fence(memberID, instanceID)
	if err != nil {
		return nil, err
	}
	if m.fresh || generation != c.generation {
		return nil, ErrIllegalGeneration
	}
	return m, nil
}

// renew starts the member's session again.
func (c *classic) renew(m *member, now Now) {
	m.deadline = now.Mono + m.session
	c.due(m.deadline)
}

// enter changes the state.
func (c *classic) enter(s State, now Now) {
	c.state, c.since = s, now.Wall
}

// topics are the topics that the members subscribe to.
type topics struct {
	known bool // false: some member's metadata is not a subscription
	names map[string]struct{}
}

// subscribe finds out what the members of the new generation subscribe to.
func (c *classic) subscribe() {
	c.topics = topics{known: true, names: map[string]struct{}{}}
	if len(c.members) > 0 && c.protocolType != consumerType {
		c.topics.known = false
		return
	}
	for _, m := range c.members {
		names, err := SubscribedTopics(m.metadata(c.protocol))
		if err != nil {
			c.topics = topics{}
			return
		}
		for _, n := range names {
			c.topics.names[n] = struct{}{}
		}
	}
}

// Subscribed tells whether members read the topic, as far as the coordinator can tell: consumers whose subscription does
// not parse may read anything; groups that are not consumers subscribe to nothing.
func (g *Group) Subscribed(topic string) bool {
	c := &g.class
	if !c.topics.known {
		return c.protocolType == consumerType
	}
	_, ok := c.topics.names[topic]
	return ok
}

// reserved holds the ids that were handed out to new members who have not joined with them yet (KIP-394), and when each
// is dropped.
type reserved map[string]time.Duration

// maxReserved bounds the ids that callers who never come back can hold. The one that would be dropped first makes room.
const maxReserved = 10_000

// add reserves an id until a time.
func (r reserved) add(id string, until time.Duration) {
	if len(r) >= maxReserved {
		first, at := "", never
		for k, d := range r {
			if d < at || d == at && k < first {
				first, at = k, d
			}
		}
		delete(r, first)
	}
	r[id] = until
}
