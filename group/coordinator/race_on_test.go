//go:build race

package coordinator

// raceEnabled makes the large tests smaller.
const raceEnabled = true
