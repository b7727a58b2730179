package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kerr"
)

// The exit statuses. Scripts depend on them; they never change their meaning.
const (
	exitOK        = 0
	exitFailed    = 1
	exitUsage     = 2
	exitNotFound  = 3
	exitConflict  = 4 // exists already, or changed by somebody else meanwhile
	exitDenied    = 5
	exitTimeout   = 6 // too slow or unreachable
	exitCondition = 7 // something else has to be done first
	exitUnhealthy = 10
	exitInterrupt = 130
)

// failure is an error with its exit status and one line of what to do about it.
type failure struct {
	status int
	text   string
	advice string
	err    error
}

func (f *failure) Error() string {
	switch {
	case f.err == nil:
		return f.text
	case f.text == "":
		return f.err.Error()
	}
	return f.text + ": " + f.err.Error()
}

func (f *failure) Unwrap() error { return f.err }

// usage is an error in the command line.
func usage(format string, args ...any) error {
	return &failure{status: exitUsage, text: fmt.Sprintf(format, args...)}
}

// about says which thing an error is about; status and advice come from the error.
func about(thing string, err error) error {
	if err == nil {
		return nil
	}
	return &failure{text: thing, err: err}
}

// exit prints an error and returns the status of the process.
func (s *session) exit(err error) int {
	s.out.Flush()
	if err == nil || errors.Is(err, syscall.EPIPE) {
		return exitOK
	}
	status, advice := judge(err)
	if status == exitInterrupt {
		return status
	}
	s.say("%s %s", s.paint("31", "error:"), errorText(err))
	if advice != "" {
		s.say("%s %s", s.paint("36", "try:"), advice)
	}
	return status
}

// judge finds the exit status of an error and what to do about it: the outermost failure that knows, else Kafka's code,
// else the kind of network trouble.
func judge(err error) (status int, advice string) {
	for e := err; e != nil; e = cause(e) {
		if f, ok := e.(*failure); ok {
			if advice == "" {
				advice = f.advice
			}
			if status == 0 {
				status = f.status
			}
		}
	}
	s, a := judgeCause(err)
	if status == 0 {
		status = s
	}
	if advice == "" {
		advice = a
	}
	if status == exitUsage && advice == "" {
		advice = "add --help for the flags and examples"
	}
	return status, advice
}

// cause is errors.Unwrap, for errors that were joined their first.
func cause(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok && len(joined.Unwrap()) > 0 {
		return joined.Unwrap()[0]
	}
	return errors.Unwrap(err)
}

func judgeCause(err error) (status int, advice string) {
	var k *kerr.Error
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &k):
		c := codes[k.Code]
		if c.status == 0 {
			c.status = exitFailed
		}
		return c.status, c.advice
	case errors.Is(err, context.Canceled):
		return exitInterrupt, ""
	case errors.Is(err, context.DeadlineExceeded):
		return exitTimeout, "raise --timeout, or look at the broker's log"
	case errors.Is(err, syscall.EADDRINUSE):
		return exitCondition, "another process has that port: `ss -ltnp` names it; --listen, --http-addr, --cluster-addr and --gossip-addr choose others"
	case errors.As(err, &dns):
		return exitTimeout, "the name does not resolve here; check -b, and advertised.listeners of the broker"
	case errors.As(err, &op):
		return exitTimeout, "check -b and that the broker runs; it may advertise an address that cannot be reached from here"
	}
	return exitFailed, ""
}

// errorText is the error with Kafka's name and number in it: UNKNOWN_TOPIC_OR_PARTITION (3).
func errorText(err error) string {
	text := err.Error()
	var k *kerr.Error
	if !errors.As(err, &k) {
		return text
	}
	named := fmt.Sprintf("%s (%d)", k.Message, k.Code)
	if strings.Contains(text, named) {
		return text
	}
	return strings.Replace(text, k.Message, named, 1)
}

// code is what this program knows about an error code beyond Kafka's own sentence.
type code struct {
	status int
	advice string
}

// codes gives the exit status (failed when absent) and advice for Kafka's error codes.
var codes = map[int16]code{
	1:   {exitFailed, "the offset is not in the log any more or not yet; `kctl topic describe TOPIC --partitions` shows start and end"},
	2:   {exitFailed, "the batch was damaged on the way or on disk; `kctl storage verify --data DIR` checks the files of a stopped broker"},
	3:   {exitNotFound, "`kctl topic list` shows what exists; `kctl topic create NAME` makes a topic"},
	5:   {exitTimeout, "the partition has no leader now; `kctl topic describe TOPIC --partitions` shows which"},
	6:   {exitTimeout, "leadership moved; run the command again"},
	7:   {exitTimeout, "raise --timeout; the change may still happen, look before repeating it"},
	10:  {exitFailed, "raise max.message.bytes of the topic, or send smaller records"},
	15:  {exitTimeout, "the coordinator is not up yet or not served by this broker"},
	16:  {exitTimeout, "run the command again"},
	17:  {exitUsage, "topic names have 1 to 249 of the characters a-z A-Z 0-9 . _ - and do not collide in . and _"},
	18:  {exitFailed, "send smaller batches"},
	19:  {exitCondition, "fewer in-sync replicas than min.insync.replicas; bring brokers back or lower it"},
	20:  {exitCondition, "fewer in-sync replicas than min.insync.replicas; the record is in the log and may be there twice after a retry"},
	29:  {exitDenied, "this user has no right to the topic"},
	30:  {exitDenied, "this user has no right to the group"},
	31:  {exitDenied, "this user has no right to the cluster resource"},
	33:  {exitDenied, "the broker does not offer this sasl.mechanism"},
	34:  {exitDenied, "this broker wants authentication: -X security.protocol=... -X sasl.mechanism=..."},
	35:  {exitFailed, "the broker is too old or too new for this request"},
	36:  {exitConflict, "choose another name, or add --if-not-exists"},
	37:  {exitUsage, "partitions can only be added: give a number larger than now"},
	38:  {exitUsage, "the replication factor is at least 1 and at most the number of live brokers"},
	39:  {exitUsage, "an assignment names for each partition, from 0 on, different brokers that exist"},
	40:  {exitUsage, "`kctl explain config NAME` says what a setting accepts"},
	41:  {exitTimeout, "the controller moved; run the command again"},
	42:  {exitUsage, ""},
	44:  {exitFailed, "a policy of the cluster forbids this"},
	45:  {exitFailed, "producers with gaps in their sequence cannot continue; start a new producer"},
	48:  {exitCondition, ""},
	53:  {exitDenied, "this user has no right to the transactional id"},
	58:  {exitDenied, "check user name, password and sasl.mechanism"},
	60:  {exitConflict, "wait until the running reassignment is done"},
	65:  {exitDenied, "this user has no right to delegation tokens"},
	68:  {exitCondition, "stop the members of the group first"},
	69:  {exitNotFound, ""},
	72:  {exitFailed, "the listener does not lead there; check advertised.listeners"},
	73:  {exitFailed, "the topic may not be deleted (delete.topic.enable)"},
	84:  {exitCondition, "the preferred leader is not there"},
	85:  {exitNotFound, ""},
	86:  {exitCondition, "a consumer is still subscribed to the topic"},
	87:  {exitUsage, "the records break a rule of the topic: a null key in a compacted topic, a bad header, a timestamp out of range"},
	89:  {exitTimeout, "too many changes at once; try again later"},
	94:  {exitDenied, ""},
	100: {exitNotFound, "the topic was deleted, and perhaps made anew under the same name"},
	117: {exitUsage, ""},
}

// answered is an error code with the broker's own words, which say more than the code's general sentence.
type answered struct {
	code    *kerr.Error
	message string
}

func (a *answered) Error() string { return a.code.Message + ": " + a.message }
func (a *answered) Unwrap() error { return a.code }

// kafkaError is the error of a response's code and message, nil for code 0.
func kafkaError(code int16, message *string) error {
	err := kerr.ErrorForCode(code)
	var k *kerr.Error
	if err == nil || message == nil || *message == "" || !errors.As(err, &k) {
		return err
	}
	return &answered{k, *message}
}
