package config

import "strings"

// Suggest returns the known option of the scope whose name is nearest to name, or "" when none is near: a slip of up to
// a fifth of the letters, or words that are right in the wrong order or with the wrong separator.
func Suggest(s Scope, name string) string {
	want := normal(name)
	best, bestDistance := "", len(want)/5+2
	for _, o := range table().all { // sorted, so that the first of equals wins
		if o.Scope != s || o.Treatment == Hidden {
			continue
		}
		d := distance(want, normal(o.Name), bestDistance)
		if s == ScopeBroker && "log."+want == o.Name || want == strings.TrimPrefix(o.Name, "karst.") {
			d = 0
		}
		if d < bestDistance {
			best, bestDistance = o.Name, d
		}
	}
	return best
}

func normal(name string) string {
	return strings.NewReplacer("_", ".", "-", ".", " ", ".").Replace(strings.ToLower(name))
}

// distance is the number of letters to insert, drop, change or swap with a neighbour, at most limit.
func distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		best := i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
			best = min(best, row[j])
		}
		if best >= limit {
			return limit
		}
		before, last, row = last, row, before
	}
	return min(last[len(b)], limit)
}
