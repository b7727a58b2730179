package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

var sizeUnits = map[string]int64{
	"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20,
	"g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30, "t": 1 << 40, "tb": 1 << 40, "tib": 1 << 40,
}

// parseSize reads "512MiB", "1.5k" or "100" as bytes. K is 1024, with or without the i, as in Kafka's tools.
func parseSize(s string) (int64, error) {
	number, unit := splitNumber(strings.TrimSpace(s))
	factor, ok := sizeUnits[strings.ToLower(strings.TrimSpace(unit))]
	f, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || f*float64(factor) > math.MaxInt64/2 {
		return 0, usage("%q is not a size such as 100, 64KiB or 1.5GiB", s)
	}
	return int64(f * float64(factor)), nil
}

// splitNumber cuts off the digits and the point at the beginning.
func splitNumber(s string) (number, rest string) {
	i := 0
	for i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == '.') {
		i++
	}
	return s[:i], s[i:]
}

// parseDuration reads what Go reads, and days and weeks: "90s", "1h30m", "7d", "1w2d". A bare number is milliseconds, as
// in Kafka's settings.
func parseDuration(s string) (time.Duration, error) {
	bad := usage("%q is not a duration such as 500ms, 90s, 1h30m or 7d", s)
	if s == "" {
		return 0, bad
	}
	var total time.Duration
	for rest := strings.TrimSpace(s); rest != ""; {
		number, after := splitNumber(rest)
		unit := after
		if i := strings.IndexAny(after, "0123456789."); i >= 0 {
			unit = after[:i]
		}
		rest = after[len(unit):]
		f, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return 0, bad
		}
		switch unit {
		case "d":
			total += time.Duration(f * float64(24*time.Hour))
		case "w":
			total += time.Duration(f * float64(7*24*time.Hour))
		case "":
			if number != s {
				return 0, bad
			}
			total = time.Duration(f * float64(time.Millisecond))
		default:
			d, err := time.ParseDuration(number + unit)
			if err != nil {
				return 0, bad
			}
			total += d
		}
	}
	if total < 0 {
		return 0, bad
	}
	return total, nil
}

// parseTime reads a point in time: RFC 3339 with or without seconds, a date, milliseconds since 1970, "now", or a
// duration before now ("-2h").
func parseTime(s string, now time.Time) (time.Time, error) {
	if s == "now" {
		return now, nil
	}
	if ago, ok := strings.CutPrefix(s, "-"); ok {
		d, err := parseDuration(ago)
		if err != nil {
			return time.Time{}, err
		}
		return now.Add(-d), nil
	}
	if ms, err := strconv.ParseInt(s, 10, 64); err == nil {
		return time.UnixMilli(ms), nil
	}
	for _, layout := range []string{
		time.RFC3339Nano, "2006-01-02T15:04Z07:00", "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05",
		"2006-01-02 15:04", time.DateOnly,
	} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usage("%q is not a time such as 2026-01-31T14:00Z, 2026-01-31, -2h or milliseconds since 1970 (UTC unless it says otherwise)", s)
}

// rate is a limit in records or in bytes; zero is none.
type rate struct{ recordsPerSecond, bytesPerSecond float64 }

// parseRate reads "100/s", "600/m", "10MiB/s" or "max".
func parseRate(s string) (rate, error) {
	if s == "" || s == "max" {
		return rate{}, nil
	}
	amount, per, ok := strings.Cut(s, "/")
	seconds := map[string]float64{"s": 1, "m": 60, "h": 3600}[per]
	number, unit := splitNumber(amount)
	n, err := strconv.ParseFloat(number, 64)
	if !ok || seconds == 0 || err != nil || n <= 0 {
		return rate{}, usage("%q is not a rate such as 100/s, 10MiB/s or max", s)
	}
	if unit == "" {
		return rate{recordsPerSecond: n / seconds}, nil
	}
	size, err := parseSize(amount)
	if err != nil {
		return rate{}, usage("%q is not a rate such as 100/s, 10MiB/s or max", s)
	}
	return rate{bytesPerSecond: float64(size) / seconds}, nil
}

// formatSize writes bytes for people: "18 B", "1.2 GiB".
func formatSize(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, units := float64(n), []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	i := -1
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	if f >= 99.95 {
		return fmt.Sprintf("%.0f %s", f, units[i])
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}

// formatCount groups the digits of a number: 18,231.
func formatCount(n int64) string {
	s := strconv.FormatInt(n, 10)
	start := 0
	if n < 0 {
		start = 1
	}
	for i := len(s) - 3; i > start; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// formatAgo writes how long ago something was: "3m ago".
func formatAgo(t, now time.Time) string {
	d := now.Sub(t)
	switch {
	case d < 0:
		return "in " + shortDuration(-d)
	case d < time.Second:
		return "now"
	}
	return shortDuration(d) + " ago"
}

func shortDuration(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	case d >= 2*time.Minute:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d >= time.Second:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	}
	return fmt.Sprintf("%dms", d.Milliseconds())
}

// formatMillis is a timestamp of a record or file in json: RFC 3339 in UTC with milliseconds.
func formatMillis(ms int64) string {
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z07:00")
}
