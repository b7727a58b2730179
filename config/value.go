package config

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Check says whether a value is right for the option; the error is a *ValueError in the words of Kafka's ConfigDef.
// Numbers may carry a unit where the option has one ("7d", "512MiB").
func (o Option) Check(value string) error {
	_, err := o.Canonical(value)
	return err
}

// Canonical checks a value and returns it as DescribeConfigs shows it: trimmed, numbers bare and in the option's unit,
// lists joined by a comma alone. Whoever stores a value stores this form.
func (o Option) Canonical(value string) (string, error) {
	v := strings.TrimSpace(value)
	out, reason := o.parse(v)
	if reason == "" && o.check != nil {
		reason = o.check(out)
	}
	if reason != "" {
		return "", &ValueError{Name: o.Name, Value: value, Reason: reason, Sensitive: o.Sensitive}
	}
	return out, nil
}

// parse brings v to its canonical form by type alone; reason says what is wrong with it.
func (o Option) parse(v string) (out, reason string) {
	switch o.Type {
	case TypeBoolean:
		switch strings.ToLower(v) {
		case "true", "false":
			return strings.ToLower(v), ""
		}
		return "", "Expected value to be either true or false"
	case TypeShort:
		return o.parseInt(v, 16)
	case TypeInt:
		return o.parseInt(v, 32)
	case TypeLong:
		return o.parseInt(v, 64)
	case TypeDouble:
		return o.parseDouble(v)
	case TypeList:
		return parseList(v)
	}
	return v, ""
}

// parseList drops what is there twice, as Kafka does.
func parseList(v string) (out, reason string) {
	list := SplitList(v)
	for _, e := range list {
		if e == "" {
			return "", "Values must not be empty"
		}
	}
	return AppendList("", strings.Join(list, ",")), ""
}

func (o Option) parseInt(v string, bits int) (out, reason string) {
	n, err := strconv.ParseInt(v, 10, bits)
	if err != nil && o.Unit != NoUnit {
		n, err = parseUnit(v, o.Unit)
		if limit := int64(1)<<(bits-1) - 1; n > limit || n < -limit-1 {
			err = strconv.ErrRange
		}
	}
	if err != nil {
		return "", "Not a number of type " + o.Type.String() + o.unitHint()
	}
	return strconv.FormatInt(n, 10), ""
}

func (o Option) parseDouble(v string) (out, reason string) {
	f, err := strconv.ParseFloat(v, 64)
	if err != nil && o.Unit != NoUnit {
		var n int64
		n, err = parseUnit(v, o.Unit)
		f = float64(n)
	}
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return "", "Not a number of type DOUBLE" + o.unitHint()
	}
	return formatDouble(f), ""
}

// formatDouble writes f as Java's Double.toString does, which is what admin clients have always seen.
func formatDouble(f float64) string {
	abs := math.Abs(f)
	if abs == 0 || abs >= 1e-3 && abs < 1e7 {
		s := strconv.FormatFloat(f, 'f', -1, 64)
		if !strings.Contains(s, ".") {
			s += ".0"
		}
		return s
	}
	s := strconv.FormatFloat(f, 'E', -1, 64)
	mantissa, exp, _ := strings.Cut(s, "E")
	if !strings.Contains(mantissa, ".") {
		mantissa += ".0"
	}
	sign := ""
	if strings.HasPrefix(exp, "-") {
		sign = "-"
	}
	return mantissa + "E" + sign + strings.TrimLeft(strings.TrimLeft(exp, "+-"), "0")
}

// unitHint ends the message about a number that has a unit.
func (o Option) unitHint() string {
	switch o.Unit {
	case NoUnit:
		return ""
	case Bytes:
		return " (a number of bytes, or one with KiB, MiB, GiB, TiB)"
	}
	return " (a number of " + unitNames[o.Unit] + ", or one with ms, s, m, h, d)"
}

var unitNames = [...]string{"", "bytes", "milliseconds", "seconds", "minutes", "hours"}

// unitSize is what one of the unit is in bytes, or in milliseconds.
var unitSize = [...]int64{NoUnit: 1, Bytes: 1, Milliseconds: 1, Seconds: 1000, Minutes: 60_000, Hours: 3_600_000}

// sizeSuffixes are understood without regard to case; "K" and "KB" mean 1024 as they do in Kafka's and Java's tools.
var sizeSuffixes = map[string]int64{
	"b": 1, "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20,
	"g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30, "t": 1 << 40, "tb": 1 << 40, "tib": 1 << 40,
}

var timeSuffixes = map[string]int64{
	"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000,
}

var errUnit = errors.New("not a number with a unit")

// parseUnit reads "512MiB", "1.5h" or "7d" as a whole number of units u. What is not whole ("1500ms" in seconds) is an
// error: nothing is rounded in silence.
func parseUnit(v string, u Unit) (int64, error) {
	i := strings.IndexFunc(v, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	if i <= 0 {
		return 0, errUnit
	}
	suffixes := timeSuffixes
	if u == Bytes {
		suffixes = sizeSuffixes
	}
	factor, ok := suffixes[strings.ToLower(strings.TrimSpace(v[i:]))]
	if !ok {
		return 0, errUnit
	}
	n, err := strconv.ParseInt(v[:i], 10, 64)
	if err != nil {
		return parseFraction(v[:i], factor, unitSize[u])
	}
	if n > math.MaxInt64/factor || n*factor%unitSize[u] != 0 {
		return 0, errUnit
	}
	return n * factor / unitSize[u], nil
}

func parseFraction(v string, factor, size int64) (int64, error) {
	f, err := strconv.ParseFloat(v, 64)
	if err != nil {
		return 0, errUnit
	}
	f *= float64(factor) / float64(size)
	if f != math.Trunc(f) || f >= 1<<53 {
		return 0, errUnit
	}
	return int64(f), nil
}

// SplitList splits the value of a LIST option: by commas, blanks around them dropped; the empty value has no elements.
func SplitList(v string) []string {
	v = strings.TrimSpace(v)
	if v == "" {
		return nil
	}
	parts := strings.Split(v, ",")
	for i, p := range parts {
		parts[i] = strings.TrimSpace(p)
	}
	return parts
}

// AppendList is IncrementalAlterConfigs' APPEND: what is there already is not added again.
func AppendList(current, add string) string {
	list := SplitList(current)
	for _, a := range SplitList(add) {
		if !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return strings.Join(list, ",")
}

// SubtractList is IncrementalAlterConfigs' SUBTRACT: what is not there is no error, and taking away all leaves the empty
// value, not the default.
func SubtractList(current, remove string) string {
	gone := SplitList(remove)
	var left []string
	for _, c := range SplitList(current) {
		if !slices.Contains(gone, c) {
			left = append(left, c)
		}
	}
	return strings.Join(left, ",")
}

// millis turns a number of milliseconds into a duration: -1 stays -1 ("no limit"), what does not fit is the longest.
func millis(n int64) time.Duration {
	switch {
	case n < 0:
		return -1
	case n > math.MaxInt64/int64(time.Millisecond):
		return math.MaxInt64
	}
	return time.Duration(n) * time.Millisecond
}
