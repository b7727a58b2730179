package config

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
)

// checker says what is wrong with a canonical value; empty: nothing.
type checker func(value string) string

// parseValid makes the checker for a description in the form of Kafka's documentation: "[0,...]", "[1,...,9] or -1",
// "[compact, delete]", "non-empty string".
func parseValid(t Type, valid string) (checker, error) {
	switch valid {
	case "":
		return nil, nil
	case "non-empty string", "non-empty list":
		return nonEmpty, nil
	case "[partitionId]:[brokerId],[partitionId]:[brokerId],...":
		return checkThrottled, nil
	case "[latest, earliest, by_duration:PnDTnHnMn.nS]":
		return checkOffsetReset, nil
	case "semicolon-separated Type:name":
		return checkPrincipals, nil
	case "client selectors":
		return checkSelectors, nil
	case "percentage or bytes":
		return checkReserve, nil
	case "bytes":
		return checkBytes, nil
	case "HOST:PORT":
		return checkAddress, nil
	}
	set, anyCase := strings.CutPrefix(valid, "(case insensitive) ")
	list, alternative, _ := strings.Cut(set, " or ")
	inner, ok := strings.CutPrefix(list, "[")
	if inner, ok2 := strings.CutSuffix(inner, "]"); ok && ok2 {
		parts := SplitList(inner)
		if slices.Contains(parts, "...") {
			return checkRange(parts, alternative)
		}
		if t == TypeList {
			return checkElements(parts), nil
		}
		return checkOneOf(parts, anyCase), nil
	}
	return nil, fmt.Errorf("cannot read %q", valid)
}

func nonEmpty(v string) string {
	if v == "" {
		return "String must be non-empty"
	}
	return ""
}

// checkRange reads "[lo,...]" and "[lo,...,hi]".
func checkRange(parts []string, alternative string) (checker, error) {
	lo, err := strconv.ParseFloat(parts[0], 64)
	if err != nil {
		return nil, err
	}
	hi, bounded := 0.0, len(parts) == 3
	if bounded {
		if hi, err = strconv.ParseFloat(parts[2], 64); err != nil {
			return nil, err
		}
	}
	return func(v string) string {
		n, err := strconv.ParseFloat(v, 64)
		switch {
		case err != nil:
			return "Not a number"
		case alternative != "" && v == alternative:
			return ""
		case alternative != "" && (n < lo || n > hi):
			return "Value must be between " + parts[0] + " and " + parts[2] + " or equal to " + alternative
		case n < lo:
			return "Value must be at least " + parts[0]
		case bounded && n > hi:
			return "Value must be no more than " + parts[2]
		}
		return ""
	}, nil
}

func checkOneOf(allowed []string, anyCase bool) checker {
	return func(v string) string {
		for _, a := range allowed {
			if v == a || anyCase && strings.EqualFold(v, a) {
				return ""
			}
		}
		if anyCase {
			return "String must be one of (case insensitive): " + strings.Join(allowed, ", ")
		}
		return "String must be one of: " + strings.Join(allowed, ", ")
	}
}

func checkElements(allowed []string) checker {
	return func(v string) string {
		for _, e := range SplitList(v) {
			if !slices.Contains(allowed, e) {
				return "String must be one of: " + strings.Join(allowed, ", ")
			}
		}
		return ""
	}
}

// checkThrottled reads the replicas that a reassignment throttles: all of them, or partition:broker pairs.
func checkThrottled(v string) string {
	const reason = "Value must be the literal '*' or replicas in the form [partition]:[broker],[partition]:[broker],..."
	if v == "*" {
		return ""
	}
	for _, e := range SplitList(v) {
		partition, broker, ok := strings.Cut(e, ":")
		if !ok || !isID(partition) || !isID(broker) {
			return reason
		}
	}
	return ""
}

func isID(s string) bool {
	n, err := strconv.ParseInt(s, 10, 32)
	return err == nil && n >= 0
}

// checkOffsetReset reads share.auto.offset.reset, whose third form is an ISO 8601 duration (KIP-1106).
func checkOffsetReset(v string) string {
	const reason = "Value must be latest, earliest or by_duration:PnDTnHnMn.nS"
	if v == "latest" || v == "earliest" {
		return ""
	}
	d, ok := strings.CutPrefix(v, "by_duration:P")
	if !ok || d == "" {
		return reason
	}
	date, clock, hasTime := strings.Cut(d, "T")
	if hasTime && clock == "" || !durationParts(date, "D") || !durationParts(clock, "HMS") {
		return reason
	}
	return ""
}

// durationParts reads numbers each followed by one of units, which must come in that order.
func durationParts(s, units string) bool {
	for s != "" {
		i := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' })
		if i <= 0 {
			return false
		}
		if s[i] == '.' {
			frac := strings.IndexByte(s, 'S')
			if frac < i+2 || !isDigits(s[i+1:frac]) {
				return false
			}
			i = frac
		}
		at := strings.IndexByte(units, s[i])
		if at < 0 {
			return false
		}
		s, units = s[i+1:], units[at+1:]
	}
	return true
}

func isDigits(s string) bool {
	return strings.Trim(s, "0123456789") == ""
}

func checkPrincipals(v string) string {
	for _, p := range strings.Split(v, ";") {
		kind, name, ok := strings.Cut(strings.TrimSpace(p), ":")
		if strings.TrimSpace(p) != "" && (!ok || kind == "" || name == "") {
			return "Expected principals of the form Type:name, separated by semicolons"
		}
	}
	return ""
}

// clientSelectors are what a client can be chosen by (KIP-714).
var clientSelectors = []string{
	"client_instance_id", "client_id", "client_software_name", "client_software_version", "client_source_address", "client_source_port",
}

// checkSelectors reads the clients that a subscription is for: selector=regular expression, several joined by commas.
func checkSelectors(v string) string {
	for _, e := range SplitList(v) {
		selector, pattern, ok := strings.Cut(e, "=")
		pattern = strings.TrimSpace(pattern)
		if !ok || pattern == "" || strings.Contains(pattern, "=") || !slices.Contains(clientSelectors, strings.TrimSpace(selector)) || !closed(pattern) {
			return "Illegal client matching pattern: " + e
		}
	}
	return ""
}

// closed tells whether a regular expression of Java's is one: those of Go are fewer, so only what no dialect takes counts.
func closed(pattern string) bool {
	_, err := syntax.Parse(pattern, syntax.Perl)
	var e *syntax.Error
	if !errors.As(err, &e) {
		return true
	}
	switch e.Code {
	case syntax.ErrMissingBracket, syntax.ErrMissingParen, syntax.ErrUnexpectedParen, syntax.ErrTrailingBackslash, syntax.ErrMissingRepeatArgument:
		return false
	}
	return true
}

// Reserve is how much of a volume stays free (karst.disk.reserve): a percentage, at most 10 GiB, or a number of bytes.
type Reserve struct {
	Percent float64
	Bytes   int64 // used when Percent is 0
}

// maxReserveBytes bounds a reserve given as a percentage: 5 % of a large volume is more than a broker needs to stop.
const maxReserveBytes = 10 << 30

// Of returns the bytes to keep free on a volume of total bytes.
func (r Reserve) Of(total int64) int64 {
	if r.Percent == 0 {
		return r.Bytes
	}
	return min(int64(float64(total)*r.Percent/100), maxReserveBytes)
}

// ParseReserve reads "5%", "1073741824" or "1GiB".
func ParseReserve(v string) (Reserve, error) {
	if p, ok := strings.CutSuffix(v, "%"); ok {
		f, err := strconv.ParseFloat(strings.TrimSpace(p), 64)
		if err != nil || !(f >= 0 && f < 100) {
			return Reserve{}, errUnit
		}
		return Reserve{Percent: f}, nil
	}
	n, err := ParseBytes(v)
	return Reserve{Bytes: n}, err
}

// ParseBytes reads a number of bytes, bare or with a unit: "512MiB".
func ParseBytes(v string) (int64, error) {
	if n, err := strconv.ParseInt(v, 10, 64); err == nil && n >= 0 {
		return n, nil
	}
	return parseUnit(v, Bytes)
}

func checkReserve(v string) string {
	if _, err := ParseReserve(v); err != nil {
		return "Expected a percentage of the volume such as 5%, or a number of bytes such as 10GiB"
	}
	return ""
}

// checkAddress reads where a port of the broker's own is opened; empty: not at all.
func checkAddress(v string) string {
	if v == "" {
		return ""
	}
	if strings.Contains(v, "://") {
		return "Expected HOST:PORT"
	}
	var bad *ValueError
	if _, err := ParseListener(v); errors.As(err, &bad) {
		return bad.Reason
	}
	return ""
}

func checkBytes(v string) string {
	if _, err := ParseBytes(v); err != nil && v != "" && v != "auto" {
		return "Expected a number of bytes such as 512MiB, or auto"
	}
	return ""
}
