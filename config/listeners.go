package config

import (
	"slices"
	"strconv"
	"strings"
)

// SecurityProtocols are the names that listener.security.protocol.map maps to.
func SecurityProtocols() []string { return []string{"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"} }

// ParseListener reads [NAME://]HOST:PORT. Without a name it is PLAINTEXT; without a host it is every interface; an IPv6
// address stands in brackets. The security protocol is not known here.
func ParseListener(s string) (Listener, error) {
	bad := func(reason string) (Listener, error) {
		return Listener{}, &ValueError{Name: "listeners", Value: s, Reason: reason}
	}
	l := Listener{Name: "PLAINTEXT"}
	addr := strings.TrimSpace(s)
	if name, rest, ok := strings.Cut(addr, "://"); ok {
		if !isListenerName(name) {
			return bad("A listener's name consists of letters, digits, '_', '-' and '.'")
		}
		l.Name, addr = strings.ToUpper(name), rest
	}
	i := strings.LastIndexByte(addr, ':')
	if i < 0 {
		return bad("Expected [NAME://]HOST:PORT")
	}
	port, err := strconv.ParseUint(addr[i+1:], 10, 16)
	if err != nil {
		return bad("The port must be a number from 0 to 65535")
	}
	l.Port = int32(port)
	l.Host = addr[:i]
	if inner, ok := strings.CutPrefix(l.Host, "["); ok {
		if l.Host, ok = strings.CutSuffix(inner, "]"); !ok || !strings.Contains(l.Host, ":") {
			return bad("An IPv6 address stands in brackets: [::1]:9092")
		}
		return l, nil
	}
	if strings.ContainsAny(l.Host, ":[]/ \t@?#,") {
		return bad("The host must be a name or an address; an IPv6 address stands in brackets: [::1]:9092")
	}
	return l, nil
}

func isListenerName(s string) bool {
	for _, r := range s {
		ok := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.'
		if !ok {
			return false
		}
	}
	return s != ""
}

func joinHostPort(host string, port int32) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(int(port))
}

// listeners reads listeners, advertised.listeners and listener.security.protocol.map into b.
func (p *brokerParser) listeners(b *Broker) {
	protocols := p.protocolMap()
	controllers := p.controllerNames()
	advertised := p.addresses("advertised.listeners", controllers)
	b.Listeners = p.addresses("listeners", controllers)
	if !p.isSet("listeners") && len(advertised) > 0 {
		b.Listeners = everywhere(advertised) // as the images of Kafka do
	}
	if len(b.Listeners) == 0 {
		p.conflict("listeners: there is no listener for clients", "listeners")
	}
	for i := range b.Listeners {
		l := &b.Listeners[i]
		l.Protocol = p.protocol(l.Name, protocols)
		if l.Protocol != "" && l.Protocol != "PLAINTEXT" {
			p.conflict("listeners: "+l.Name+" asks for "+l.Protocol+", which this build does not serve yet; it is not"+
				" opened as PLAINTEXT instead", "listeners", "listener.security.protocol.map")
		}
	}
	p.advertise(b, advertised)
}

// controllerNames are the listeners of Kafka's own quorum, which have no counterpart.
func (p *brokerParser) controllerNames() []string {
	static := p.layers.Static
	roles := SplitList(static["process.roles"])
	if len(roles) > 0 && !slices.Contains(roles, "broker") {
		p.conflict("process.roles: a controller alone has no counterpart; every Karst broker takes part in the metadata"+
			" quorum", "process.roles")
	}
	var names []string
	for _, n := range SplitList(static["controller.listener.names"]) {
		names = append(names, strings.ToUpper(n))
	}
	return names
}

// addresses reads a list of listeners without those of skip.
func (p *brokerParser) addresses(option string, skip []string) []Listener {
	var out []Listener
	for _, s := range p.list(option) {
		l, err := ParseListener(s)
		if err != nil {
			if bad, ok := err.(*ValueError); ok {
				bad.Name = option
			}
			p.fail(err)
			return nil
		}
		for _, o := range out {
			if o.Name == l.Name {
				p.conflict(option+": each listener needs a name of its own, and "+l.Name+" is there twice", option)
			}
			if option == "listeners" && o.Port == l.Port && o.Port != 0 && o.Host == l.Host {
				p.conflict(option+": two listeners want "+l.Addr(), option)
			}
		}
		if !slices.Contains(skip, l.Name) {
			out = append(out, l)
		}
	}
	return out
}

func everywhere(advertised []Listener) []Listener {
	var out []Listener
	for _, a := range advertised {
		a.Host = ""
		out = append(out, a)
	}
	return out
}

// protocolMap reads listener.security.protocol.map; nil: it was not set.
func (p *brokerParser) protocolMap() map[string]string {
	const option = "listener.security.protocol.map"
	if !p.isSet(option) {
		return nil
	}
	m := map[string]string{}
	for _, e := range p.list(option) {
		name, protocol, ok := strings.Cut(e, ":")
		name, protocol = strings.ToUpper(strings.TrimSpace(name)), strings.ToUpper(strings.TrimSpace(protocol))
		if !ok || !slices.Contains(SecurityProtocols(), protocol) {
			p.fail(&ValueError{Name: option, Value: e, Reason: "Expected NAME:PROTOCOL with a protocol of " +
				strings.Join(SecurityProtocols(), ", ")})
			return nil
		}
		m[name] = protocol
	}
	return m
}

// protocol tells a listener's security protocol. Without a map a name that is no protocol means PLAINTEXT, with a
// warning, unless it hints at something safer.
func (p *brokerParser) protocol(name string, m map[string]string) string {
	if proto, ok := m[name]; ok {
		return proto
	}
	if m == nil && slices.Contains(SecurityProtocols(), name) {
		return name
	}
	safer := strings.Contains(name, "SSL") || strings.Contains(name, "TLS") || strings.Contains(name, "SASL") ||
		strings.Contains(name, "SECURE")
	if m != nil || safer {
		p.conflict("listener.security.protocol.map says nothing of the listener "+name, "listener.security.protocol.map")
		return ""
	}
	p.warn("no protocol is given for the listener "+name+"; it is PLAINTEXT", "listener.security.protocol.map")
	return "PLAINTEXT"
}

// advertise decides what clients are told for each listener.
func (p *brokerParser) advertise(b *Broker, given []Listener) {
	for _, l := range b.Listeners {
		told := l
		if told.Host == "0.0.0.0" || told.Host == "::" {
			told.Host = ""
		}
		for _, a := range given {
			if a.Name == l.Name {
				told = Listener{Name: a.Name, Host: a.Host, Port: a.Port, Protocol: l.Protocol}
			}
		}
		if told.Host == "0.0.0.0" || told.Host == "::" {
			p.conflict("advertised.listeners: clients cannot connect to "+told.Host+"; name a host they can reach",
				"advertised.listeners")
		}
		b.Advertised = append(b.Advertised, told)
	}
	for _, a := range given {
		if !hasListener(b.Listeners, a.Name) {
			p.conflict("advertised.listeners: there is no listener "+a.Name, "advertised.listeners", "listeners")
		}
	}
}

func hasListener(list []Listener, name string) bool {
	for _, l := range list {
		if l.Name == name {
			return true
		}
	}
	return false
}
