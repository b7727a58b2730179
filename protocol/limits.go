package protocol

import "net/netip"

// ConnectionLimits bound the connections of the listeners that are not Unlimited; 0 is no bound.
type ConnectionLimits struct {
	Max      int                // of the server (max.connections)
	MaxPerIP int                // from one address (max.connections.per.ip)
	PerIP    map[netip.Addr]int // instead of MaxPerIP, for these (max.connections.per.ip.overrides)
}

// SetConnectionLimits changes the limits while the server runs. Connections that are open stay, also above a limit.
func (s *Server) SetConnectionLimits(l ConnectionLimits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opts.MaxConnections, s.opts.MaxConnectionsPerIP, s.opts.ConnectionsPerIP = l.Max, l.MaxPerIP, l.PerIP
}
