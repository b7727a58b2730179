package group

// ProtocolType is what kind of members the group has or had last: "consumer" for consumers, empty if it never had any.
func (g *Group) ProtocolType() string { return g.class.protocolType }

// Description is what DescribeGroups tells.
type Description struct {
	State        State
	ProtocolType string
	Protocol     string // empty unless Stable, like the metadata of the members
	Generation   int32
	Leader       string
	Members      []MemberDescription // by member id
}

// MemberDescription is a member as DescribeGroups tells of it.
type MemberDescription struct {
	MemberID   string
	InstanceID string
	ClientID   string
	ClientHost string
	Metadata   []byte
	Assignment []byte
}

// Describe describes the group as it stands.
func (g *Group) Describe() Description {
	c := &g.class
	d := Description{State: g.State(), ProtocolType: c.protocolType, Generation: c.generation, Leader: c.leader}
	if c.state == Stable {
		d.Protocol = c.protocol
	}
	for _, m := range c.inOrder() {
		md := MemberDescription{
			MemberID: m.id, InstanceID: m.instanceID, ClientID: m.client.id, ClientHost: m.client.host, Assignment: m.assignment,
		}
		if c.state == Stable {
			md.Metadata = m.metadata(c.protocol)
		}
		d.Members = append(d.Members, md)
	}
	return d
}
