//go:build !hold

// Package hold stops the protocol of transactions between two steps, so that a test may kill processes exactly there. In
// an ordinary build nothing is ever held, and the compiler removes the calls.
//
// A build with tag "hold" looks into the directory that KARST_TEST_HOLD names: a file STEP.ID holds the transactional id at
// the step until it is removed. Each time that the step is come to, one byte is appended to STEP.ID.held.
package hold

// The steps. Before a marker there is one for each partition: before-marker.TOPIC-PARTITION.
const (
	BeforePrepare  = "before-prepare"  // EndTxn is there, nothing is decided
	AfterPrepare   = "after-prepare"   // decided, not answered
	BeforeMarkers  = "before-markers"  // decided; no marker was sent
	BeforeComplete = "before-complete" // all markers are written
)

// At waits for as long as the id is held at the step.
func At(step, id string) {}

// Here tells whether the id is held at the step.
func Here(step, id string) bool { return false }

// Marker tells whether the marker to a partition is held.
func Marker(id, topic string, partition int32) bool { return false }
