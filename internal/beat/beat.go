// Package beat gives the moments at which a process does what it does again and again, so that all of it is done together:
// an idle process is woken as rarely as can be, which is what it costs. The wall clock gives them, so that processes on one
// machine share them.
package beat

import "time"

// Until is how long to wait at now for the next multiple of interval, or for the one after it when the next is less than
// an eighth of interval away: timers fire a little early by another clock, and what was just done would be done again. When
// the wall clock steps, one wait is shorter or longer, by less than interval.
func Until(now time.Time, interval time.Duration) time.Duration {
	left := interval - time.Duration(now.UnixNano())%interval
	if left < interval/8 {
		left += interval
	}
	return left
}
