package group

// State is where a group stands between two generations, under Kafka's names.
type State int8

// The states of a classic group. A group that does not exist is Dead.
const (
	Empty               State = iota // no members; there may be offsets
	PreparingRebalance               // members are asked to join again
	CompletingRebalance              // all have joined, the leader's assignments are awaited
	Stable                           // members have their assignments
	Dead
)

// String is the name in DescribeGroups and ListGroups.
func (s State) String() string {
	switch s {
	case Empty:
		return "Empty"
	case PreparingRebalance:
		return "PreparingRebalance"
	case CompletingRebalance:
		return "CompletingRebalance"
	case Stable:
		return "Stable"
	default:
		return "Dead"
	}
}

// State is the group's state as clients are told.
func (g *Group) State() State {
	if !g.exists() {
		return Dead
	}
	return g.class.state
}

// Members is how many members the group has.
func (g *Group) Members() int { return len(g.class.members) }
