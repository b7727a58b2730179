package group

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/karstlog/karst/internal/uuid"
)

// TestScripts runs the specification in testdata/scripts. A script is about one group. Members have names; their ids are
// the name (or the instance id) and a number. Writes are committed at once unless held.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := newScript(t)
		datadriven.RunTest(t, path, func(_ *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				s = newScript(t)
			}
			for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
				s.line(line)
			}
			out := s.out.String()
			s.out.Reset()
			return out
		})
	})
}

type script struct {
	*shell
	out    strings.Builder
	who    map[Ticket]string // the call that a ticket names
	ids    map[string]string // member name -> its id
	gens   map[string]int32
	fresh  int
	start  time.Duration
	inPass bool
}

func newScript(t *testing.T) *script {
	s := &script{shell: newShell(t), who: map[Ticket]string{}, ids: map[string]string{}, gens: map[string]int32{}}
	s.shell.answer, s.shell.wrote = s.replied, s.written
	return s
}

func (s *script) say(format string, args ...any) {
	if s.inPass {
		fmt.Fprintf(&s.out, "[+%s] ", s.now.Mono-s.start)
	}
	fmt.Fprintf(&s.out, format+"\n", args...)
}

// args are the words of a line: key=value, and the others.
type args struct {
	words  []string
	fields map[string]string
}

func (a args) str(name, otherwise string) string {
	if v, ok := a.fields[name]; ok {
		return v
	}
	return otherwise
}

func (a args) num(name string, otherwise int64) int64 {
	n, err := strconv.ParseInt(a.str(name, strconv.FormatInt(otherwise, 10)), 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func (a args) dur(name, otherwise string) time.Duration {
	d, err := time.ParseDuration(a.str(name, otherwise))
	if err != nil {
		panic(err)
	}
	return d
}

func (a args) has(word string) bool { return slices.Contains(a.words, word) }

func (s *script) line(line string) {
	words := strings.Fields(line)
	if len(words) == 0 {
		return
	}
	a := args{fields: map[string]string{}}
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok && !strings.Contains(k, "/") {
			a.fields[k] = v
		} else {
			a.words = append(a.words, w)
		}
	}
	switch words[0] {
	case "conf":
		s.conf.MaxSize = int(a.num("max-size", int64(s.conf.MaxSize)))
		s.conf.InitialDelay = a.dur("delay", s.conf.InitialDelay.String())
		s.conf.Retention = a.dur("retention", s.conf.Retention.String())
	case "pass":
		d, err := time.ParseDuration(a.words[0])
		if err != nil {
			s.t.Fatal(err)
		}
		s.start, s.inPass = s.now.Mono, true
		s.pass(d)
		s.inPass = false
	case "wall":
		d, err := time.ParseDuration(a.words[0])
		if err != nil {
			s.t.Fatal(err)
		}
		s.now.Wall += d.Milliseconds()
	case "hold":
		s.hold = true
	case "land":
		if a.has("one") {
			s.land()
			break
		}
		for s.hold = false; len(s.open) > 0; {
			s.land()
		}
	case "refuse", "overdue":
		s.fail(words[0])
	case "failover":
		s.failover()
	case "close":
		for _, r := range s.g.Close(errors.New("not the coordinator")) {
			s.replied(r)
		}
	case "tick":
		s.handle(s.g.Tick(s.now))
	case "expire":
		s.handle(s.g.Expire(s.now))
	default:
		if !s.look(words[0], a) {
			s.call(words[0], a)
		}
	}
}

// fail is for the oldest write.
func (s *script) fail(how string) {
	if len(s.open) == 0 {
		s.t.Fatal("nothing to fail")
	}
	if how == "overdue" {
		s.handle(s.g.Overdue(s.now, s.open[0].w, errors.New("not committed in time")))
		return
	}
	w := s.open[0].w
	s.open = s.open[1:]
	s.handle(s.g.Refused(s.now, w, errors.New("not enough replicas")))
}

// look answers questions about the group.
func (s *script) look(cmd string, a args) bool {
	switch cmd {
	case "state":
		s.say("%s generation=%d type=%q%s", s.g.State(), s.g.class.generation, s.g.ProtocolType(), map[bool]string{true: " vacant"}[s.g.Vacant()])
	case "describe":
		d := s.g.Describe()
		s.say("%s type=%q protocol=%q", d.State, d.ProtocolType, d.Protocol)
		for _, m := range d.Members {
			s.say("  %s instance=%q client=%s host=%s metadata=%d bytes assignment=%q", m.MemberID, m.InstanceID, m.ClientID, m.ClientHost, len(m.Metadata), m.Assignment)
		}
	case "history":
		for _, r := range s.g.History() {
			s.say("generation %d: %s: %s %q, took %s, %d members, %d removed", r.Generation, r.Cause, r.Member, r.Reason, r.Took, r.Members, r.Removed)
		}
	case "fetch":
		for _, w := range a.words {
			tp := partition(w)
			o, ok := s.g.Offset(tp.Topic, tp.Partition)
			if !ok {
				s.say("%s none", w)
				continue
			}
			s.say("%s offset=%d epoch=%d metadata=%q", w, o.Offset, o.LeaderEpoch, o.Metadata)
		}
	case "offsets":
		for _, o := range s.g.Offsets() {
			s.say("%s/%d offset=%d", o.Topic, o.Partition, o.Offset.Offset)
		}
	default:
		return false
	}
	return true
}

func partition(w string) TopicPartition {
	topic, p, _ := strings.Cut(w, "/")
	n, err := strconv.Atoi(p)
	if err != nil {
		panic(err)
	}
	return TopicPartition{topic, int32(n)}
}

// call makes one of the requests. The first word is the member.
func (s *script) call(cmd string, a args) {
	name := ""
	if len(a.words) > 0 {
		name = a.words[0]
	}
	id, gen := a.str("id", s.ids[name]), int32(a.num("gen", int64(s.gens[name])))
	var r Request
	switch cmd {
	case "join":
		r = s.joinRequest(name, id, a)
	case "sync":
		q := &Sync{MemberID: id, InstanceID: a.str("instance", ""), Generation: gen, ProtocolType: a.str("type", ""), Protocol: a.str("protocol", "")}
		for _, w := range strings.FieldsFunc(a.str("assign", ""), func(r rune) bool { return r == ',' }) {
			who, what, _ := strings.Cut(w, ":")
			q.Assignments = append(q.Assignments, Assignment{s.idOf(who), []byte(what)})
		}
		r = q
	case "heartbeat":
		r = &Heartbeat{MemberID: id, InstanceID: a.str("instance", ""), Generation: gen}
	case "leave":
		q := &Leave{}
		for _, w := range a.words {
			q.Members = append(q.Members, Leaver{MemberID: s.idOf(w), Reason: a.str("reason", "")})
		}
		if i := a.str("instance", ""); i != "" {
			q.Members = append(q.Members, Leaver{MemberID: a.str("id", ""), InstanceID: i})
		}
		r = q
	case "commit":
		r = s.commitRequest(name, id, gen, a)
	case "delete-offsets":
		q := &DeleteOffsets{Gone: a.has("gone")}
		for _, w := range a.words {
			if w != "gone" {
				q.Partitions = append(q.Partitions, partition(w))
			}
		}
		r, name = q, ""
	case "delete":
		r = &Delete{}
	default:
		s.t.Fatalf("what is %q?", cmd)
	}
	if name != "" && cmd != "leave" {
		cmd = name + " " + cmd
	}
	s.who[s.tickets+1] = cmd
	s.decide(r)
}

func (s *script) idOf(name string) string {
	if id, ok := s.ids[name]; ok {
		return id
	}
	return name
}

func (s *script) joinRequest(name, id string, a args) *Join {
	s.fresh++
	r := &Join{
		MemberID: id, InstanceID: a.str("instance", ""), ClientID: name, ClientHost: "/10.0.0.1",
		ProtocolType: a.str("type", "consumer"), Session: a.dur("session", "10s"), Rebalance: a.dur("rebalance", "30s"),
		Fresh: strconv.Itoa(s.fresh), TwoStep: a.has("two-step"), SkipAssignment: a.has("skip"), Reason: a.str("reason", ""),
	}
	for _, p := range strings.FieldsFunc(a.str("protocols", "range"), func(r rune) bool { return r == ',' }) {
		metadata := subscription(strings.Split(a.str("topics", "t"), ",")...)
		r.Protocols = append(r.Protocols, Protocol{p, append(metadata, a.str("data", "")...)})
	}
	if m, ok := a.fields["metadata"]; ok {
		r.Protocols[0].Metadata = []byte(m)
	}
	return r
}

// subscription is a consumer's metadata, version 0, without user data.
func subscription(topics ...string) []byte {
	b := appendInt32(appendInt16(nil, 0), int32(len(topics)))
	for _, t := range topics {
		b = appendString(b, t)
	}
	return appendInt32(b, -1)
}

// commitRequest is by a member, or by nobody when the name is "-".
func (s *script) commitRequest(name, id string, gen int32, a args) *Commit {
	r := &Commit{MemberID: id, InstanceID: a.str("instance", ""), Generation: gen, Retention: a.dur("retention", "-1ns")}
	if name == "-" {
		r.MemberID, r.Generation = a.str("id", ""), int32(a.num("gen", -1))
	}
	for _, w := range a.words[1:] {
		tp, v, _ := strings.Cut(w, "=")
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		r.Offsets = append(r.Offsets, CommitOffset{
			Topic: partition(tp).Topic, TopicID: uuid.UUID{15: 9}, Partition: partition(tp).Partition, Offset: n, LeaderEpoch: 4,
			Metadata: strings.Repeat("é", int(a.num("metadata", 0))),
		})
	}
	return r
}

// replied prints an answer.
func (s *script) replied(r Reply) {
	call := s.who[r.Ticket]
	if call == "" {
		s.t.Fatalf("ticket %d is answered twice, or was never given", r.Ticket)
	}
	delete(s.who, r.Ticket)
	name, _, _ := strings.Cut(call, " ")
	if r.Err != nil {
		if e, ok := errors.AsType[*MemberIDRequiredError](r.Err); ok {
			s.ids[name] = e.MemberID
		}
		s.say("%s: %v", call, r.Err)
		return
	}
	switch a := r.Answer.(type) {
	case *JoinAnswer:
		s.ids[name], s.gens[name] = a.MemberID, a.Generation
		line := fmt.Sprintf("%s: member=%s generation=%d leader=%s protocol=%s", call, a.MemberID, a.Generation, a.Leader, a.Protocol)
		if a.SkipAssignment {
			line += " skip-assignment"
		}
		for _, m := range a.Members {
			line += " " + m.MemberID
		}
		s.say("%s", line)
	case *SyncAnswer:
		s.say("%s: %s %s assignment=%q", call, a.ProtocolType, a.Protocol, a.Assignment)
	case *LeaveAnswer:
		s.say("%s: %s", call, errorList(len(a.Results), func(i int) error { return a.Results[i].Err }))
	case *CommitAnswer:
		s.say("%s: %s", call, errorList(len(a.Errs), func(i int) error { return a.Errs[i] }))
	case *DeleteOffsetsAnswer:
		s.say("%s: %s", call, errorList(len(a.Errs), func(i int) error { return a.Errs[i] }))
	default:
		s.say("%s: ok", call)
	}
}

func errorList(n int, err func(int) error) string {
	var out []string
	for i := range n {
		if err(i) == nil {
			out = append(out, "ok")
		} else {
			out = append(out, err(i).Error())
		}
	}
	return strings.Join(out, ", ")
}

// written prints what a decision writes.
func (s *script) written(rs []Record) {
	var out []string
	for _, r := range rs {
		switch r := r.(type) {
		case *OffsetRecord:
			if r.Offset == nil {
				out = append(out, fmt.Sprintf("%s/%d gone", r.Topic, r.Partition))
			} else {
				out = append(out, fmt.Sprintf("%s/%d=%d", r.Topic, r.Partition, r.Offset.Offset))
			}
		case *MetadataRecord:
			if r.Metadata == nil {
				out = append(out, "group gone")
				continue
			}
			line := fmt.Sprintf("group generation=%d leader=%s", r.Metadata.Generation, r.Metadata.Leader)
			for _, m := range r.Metadata.Members {
				line += fmt.Sprintf(" %s:%s", m.ID, m.Assignment)
			}
			out = append(out, line)
		}
	}
	s.say("write %s", strings.Join(out, "; "))
}
