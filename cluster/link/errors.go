package link

import (
	"fmt"

	"github.com/karstlog/karst/cluster/metadata"
)

// RefusedError says that nobody listens where a broker should: its process has ended, or it was never there.
type RefusedError struct {
	Broker metadata.BrokerID
	Addr   string
	Err    error
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("broker %d at %s refuses connections: %v", e.Broker, e.Addr, e.Err)
}

func (e *RefusedError) Unwrap() error { return e.Err }

// UnreachableError says that no connection to a broker could be made. Nothing was sent.
type UnreachableError struct {
	Broker metadata.BrokerID // NoBroker: only the address is known
	Addr   string            // "": not known
	Err    error
}

func (e *UnreachableError) Error() string {
	switch {
	case e.Addr == "":
		return fmt.Sprintf("the address of broker %d is not known", e.Broker)
	case e.Broker == metadata.NoBroker:
		return fmt.Sprintf("%s cannot be reached: %v", e.Addr, e.Err)
	}
	return fmt.Sprintf("broker %d at %s cannot be reached: %v", e.Broker, e.Addr, e.Err)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// IdentityError says that the process which answered is not the one that was meant, or that it refused this one.
type IdentityError struct {
	Want, Have Hello
	Reason     string // in a sentence that says what to do
}

func (e *IdentityError) Error() string { return e.Reason }

// BrokenError says that a connection broke after a request was sent: it may have been received.
type BrokenError struct {
	Broker metadata.BrokerID
	Err    error
}

func (e *BrokenError) Error() string {
	return fmt.Sprintf("the connection to broker %d broke: %v", e.Broker, e.Err)
}

func (e *BrokenError) Unwrap() error { return e.Err }

// BusyError refuses a request while too many on the same connection wait for an answer.
type BusyError struct {
	Broker  metadata.BrokerID
	Waiting int
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("%d requests to broker %d wait already", e.Waiting, e.Broker)
}
