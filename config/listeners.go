package config

import (
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
