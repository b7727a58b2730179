// Package forming is how a broker whose data belongs to no cluster finds one or makes one. Exactly one cluster comes out of
// it, whatever the order of starts and however often brokers crash on the way: who forms it first gets a promise from each
// of its members, each promises once, and writes it down before it says so.
package forming

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/karstlog/karst/cluster/gossip"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/internal/uuid"
	"github.com/karstlog/karst/internal/vfs"
)

const (
	// lookInterval is how often the members are looked at while nothing changes.
	lookInterval = 50 * time.Millisecond
	// dialInterval is how often the addresses of --join are tried until somebody has answered, redialInterval how often after
	// that: those who were not there may have come, and know each other only.
	dialInterval   = 250 * time.Millisecond
	redialInterval = 2 * time.Second
	callTimeout    = 2 * time.Second
	// patience is how long a reason to wait is kept to oneself.
	patience = 5 * time.Second
)

// Gossip is what forming needs of *gossip.Gossip.
type Gossip interface {
	Members() []gossip.Member
	Join(ctx context.Context, addrs []string) (int, error)
}

// Peers are calls to other brokers' cluster ports.
type Peers interface {
	// Form asks a broker to promise. *RefusedError and *PromisedError are its answers; others mean that there was none.
	Form(ctx context.Context, addr string, p Promise) error
	// Join asks any member of a cluster to take this broker in.
	Join(ctx context.Context, addr string, q JoinRequest) (JoinAnswer, error)
}

// JoinRequest is from a broker that wants to become a member.
type JoinRequest struct {
	Directory uuid.UUID
	Node      metadata.BrokerID // NoBroker: one is to be allotted
	Addr      string            // of its cluster port
	// Admit: its part of the metadata log is open, the leader may send to it. Before that it only gets its id.
	Admit bool
}

// JoinAnswer is what a member says. Refused is final, Wait is not.
type JoinAnswer struct {
	Directory uuid.UUID         // of who answers
	ClusterID uuid.UUID         // that it belongs to; zero: none
	Promise   uuid.UUID         // the cluster that it has promised to form; zero: none
	Node      metadata.BrokerID // of who asked
	Leader    string            // cluster port of who decides, when it is another
	Wait      string
	Refused   string
}

// RefusedError is another broker's sentence that says why not.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// PromisedError refuses a promise since another cluster has it.
type PromisedError struct {
	Addr      string
	ClusterID uuid.UUID
}

func (e *PromisedError) Error() string {
	return fmt.Sprintf("the broker at %s has promised to form cluster %s", e.Addr, e.ClusterID)
}

// Options are what Forming works with.
type Options struct {
	FS     vfs.FS
	Dir    string // the data directory
	Wish   Wish
	Seeds  []string // gossip addresses of --join
	Gossip Gossip
	Peers  Peers
	Logger *slog.Logger
	// Waiting is told why there is no cluster yet, for /readyz; may be nil.
	Waiting func(reason string)
	// ClusterID is the id of a cluster that begins here; zero: a random one.
	ClusterID uuid.UUID
}

// Outcome says which cluster this broker belongs to.
type Outcome struct {
	ClusterID uuid.UUID
	Node      metadata.BrokerID
	Directory uuid.UUID
	// Bootstrap is the first configuration of the metadata log, which this broker is to write unless the log has entries;
	// nil: another one does. The first Voters(len(Bootstrap)) are the voters.
	Bootstrap []Candidate
	// Admit: the leader has to be asked to send the log here, see Forming.Admit.
	Admit bool
	// Addrs are cluster ports of members, for the time before the log says more.
	Addrs map[metadata.BrokerID]string
}

// Forming is one broker that looks for its cluster.
type Forming struct {
	o  Options
	mu struct {
		sync.Mutex
		record Record
	}
}

// Open reads what a data directory remembers; at the first start it draws the directory's id.
func Open(files vfs.FS, dir string) (Record, error) {
	r, found, err := Load(files, dir)
	if err != nil || found {
		return r, err
	}
	if r.Directory, err = uuid.New(rand.Reader); err != nil {
		return Record{}, err
	}
	return r, Save(files, dir, r)
}

// New makes a Forming for a data directory. It starts nothing.
func New(o Options) (*Forming, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Waiting == nil {
		o.Waiting = func(string) {}
	}
	f := &Forming{o: o}
	r, err := Open(o.FS, o.Dir)
	if err != nil {
		return nil, err
	}
	f.mu.record = r
	return f, f.checkID(r)
}

func (f *Forming) checkID(r Record) error {
	w := f.o.Wish.Node
	if w != metadata.NoBroker && (!r.ClusterID.IsZero() || r.Promise != nil) && w != r.Node {
		return fmt.Errorf("%s belongs to broker %d, not to --id %d: give the id it has, or another --data", f.o.Dir, r.Node, w)
	}
	return nil
}

// Record is what the data directory remembers.
func (f *Forming) Record() Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.record
}

// Answer is what this broker says of itself to one that asks to join.
func (f *Forming) Answer() JoinAnswer {
	r := f.Record()
	a := JoinAnswer{Directory: r.Directory, ClusterID: r.ClusterID, Node: metadata.NoBroker, Wait: "the broker at " + f.o.Wish.Addr + " does not take part in a cluster yet"}
	if r.Promise != nil {
		a.Promise = r.Promise.ClusterID
	}
	return a
}

// Known tells that this broker already belongs to a cluster, as found in its metadata log.
func (f *Forming) Known(cluster uuid.UUID, node metadata.BrokerID) error {
	return f.change(func(r *Record) error {
		if !r.ClusterID.IsZero() && r.ClusterID != cluster {
			return fmt.Errorf("%s belongs to cluster %s, the metadata log in it to cluster %s", f.o.Dir, r.ClusterID, cluster)
		}
		r.ClusterID, r.Node, r.Promise, r.Settled = cluster, node, nil, true
		return nil
	})
}

// change decides on the record and writes it, one at a time: the mutex covers the write, so that no two promises are
// given in the same moment.
func (f *Forming) change(decide func(*Record) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.mu.record
	if err := decide(&r); err != nil {
		return err
	}
	if err := Save(f.o.FS, f.o.Dir, r); err != nil {
		return err
	}
	f.mu.record = r
	return nil
}

// Promise answers another broker's Form: nil is a promise. Errors: *RefusedError, *PromisedError, and those of the disk.
func (f *Forming) Promise(p Promise) error {
	return f.change(func(r *Record) error {
		me, ok := p.find(r.Directory)
		switch {
		case !ok:
			return &RefusedError{"the broker at " + f.o.Wish.Addr + " is not the one that was seen there: it has other data"}
		case !r.ClusterID.IsZero() && r.ClusterID != p.ClusterID:
			return &RefusedError{fmt.Sprintf("the broker at %s belongs to cluster %s already", f.o.Wish.Addr, r.ClusterID)}
		case r.Promise != nil && !r.Promise.same(&p):
			return &PromisedError{f.o.Wish.Addr, r.Promise.ClusterID}
		case r.Promise == nil && int(f.o.Wish.Expect) != len(p.Members):
			return &RefusedError{fmt.Sprintf("the broker at %s was not started with --bootstrap-expect %d", f.o.Wish.Addr, len(p.Members))}
		case f.o.Wish.Node != metadata.NoBroker && f.o.Wish.Node != me.Node:
			return &RefusedError{fmt.Sprintf("the broker at %s has the id %d", f.o.Wish.Addr, f.o.Wish.Node)}
		}
		if r.Promise == nil {
			r.Promise, r.Node = &p, me.Node
		}
		return nil
	})
}

// Find returns when this broker knows its cluster. An error is a sentence about what the operator has to change, or ctx's.
func (f *Forming) Find(ctx context.Context) (Outcome, error) {
	var said waiting
	var lastDial time.Time
	dialled := len(f.o.Seeds) == 0
	for {
		r := f.Record()
		if !r.ClusterID.IsZero() {
			return f.member(r), nil
		}
		members := f.o.Gossip.Members()
		pause := dialInterval
		if len(members) > 0 {
			pause = redialInterval
		}
		if len(f.o.Seeds) > 0 && time.Since(lastDial) >= pause {
			lastDial = time.Now()
			if err := f.dial(ctx); err != nil {
				return Outcome{}, err
			}
			dialled, members = true, f.o.Gossip.Members()
		}
		out, reason, err := f.take(ctx, decide(r, f.o.Wish, members, dialled))
		if err != nil || out != nil {
			return *cmpOr(out, &Outcome{}), err
		}
		said.say(f.o, reason)
		select {
		case <-time.After(lookInterval):
		case <-ctx.Done():
			return Outcome{}, ctx.Err()
		}
	}
}

func cmpOr(a, b *Outcome) *Outcome {
	if a != nil {
		return a
	}
	return b
}

// dial tries the addresses of --join. Only that they belong to another cluster is an error.
func (f *Forming) dial(ctx context.Context) error {
	_, err := f.o.Gossip.Join(ctx, f.o.Seeds)
	if errors.As(err, new(*gossip.ForeignClusterError)) {
		return err
	}
	return nil
}

// take does one step. Nil: look again; reason says what is missing.
func (f *Forming) take(ctx context.Context, s step) (*Outcome, string, error) {
	switch s.kind {
	case refuse:
		return nil, "", errors.New(s.reason)
	case begin:
		return f.begin()
	case ask:
		return f.ask(ctx, s.members)
	case join:
		return f.join(ctx, s.addrs)
	case follow:
		return f.follow(ctx, s)
	}
	return nil, s.reason, nil
}

// follow asks the one who was given a promise. That cluster has begun: this broker is its member. It will not begin: the
// promise is void.
func (f *Forming) follow(ctx context.Context, s step) (*Outcome, string, error) {
	p := f.Record().Promise
	a, err := f.one(ctx, s.addrs[0], JoinRequest{Directory: f.Record().Directory, Node: f.o.Wish.Node, Addr: f.o.Wish.Addr})
	switch {
	case err != nil || p == nil || a.Directory != p.From:
		return nil, s.reason, nil
	case a.ClusterID == p.ClusterID:
		return nil, "", f.change(func(r *Record) error {
			r.ClusterID = p.ClusterID
			return nil
		})
	case a.Promise == p.ClusterID:
		return nil, "the broker at " + s.addrs[0] + " forms the cluster", nil
	}
	return nil, "", f.change(func(r *Record) error {
		if r.Promise == p {
			r.Promise, r.Node = nil, metadata.NoBroker
		}
		return nil
	})
}

// member is the outcome for a broker that knows its cluster.
func (f *Forming) member(r Record) Outcome {
	out := Outcome{ClusterID: r.ClusterID, Node: r.Node, Directory: r.Directory, Addrs: map[metadata.BrokerID]string{}}
	if p := r.Promise; p != nil {
		for _, c := range p.Members {
			out.Addrs[c.Node] = c.Addr
		}
		if r.mine() && !r.Settled {
			out.Bootstrap = p.Members
		}
		return out
	}
	out.Admit = !r.Settled
	return out
}

func (f *Forming) begin() (*Outcome, string, error) {
	id, err := f.newID()
	if err != nil {
		return nil, "", err
	}
	node := f.o.Wish.Node
	if node == metadata.NoBroker {
		node = 1
	}
	err = f.change(func(r *Record) error {
		me := Candidate{Directory: r.Directory, Node: node, Addr: f.o.Wish.Addr}
		r.Promise = &Promise{ClusterID: id, Members: []Candidate{me}, From: r.Directory}
		r.ClusterID, r.Node = id, node
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	out := f.member(f.Record())
	return &out, "", nil
}

func (f *Forming) newID() (uuid.UUID, error) {
	if !f.o.ClusterID.IsZero() {
		return f.o.ClusterID, nil
	}
	return uuid.New(rand.Reader)
}

// ask collects the promises. This broker's own comes first, so that after a crash it asks for the same cluster again.
func (f *Forming) ask(ctx context.Context, members []Candidate) (*Outcome, string, error) {
	id, err := f.newID()
	if err != nil {
		return nil, "", err
	}
	var p Promise
	err = f.change(func(r *Record) error {
		if r.Promise == nil {
			r.Promise = &Promise{ClusterID: id, Members: members, From: r.Directory}
			me, _ := r.Promise.find(r.Directory)
			r.Node = me.Node
		}
		p = *r.Promise
		return nil
	})
	if err != nil || p.From != f.Record().Directory {
		return nil, "", err // a promise to another came first
	}
	if err := f.collect(ctx, p); err != nil {
		return nil, err.Error(), f.yield(p, err)
	}
	err = f.change(func(r *Record) error {
		r.ClusterID = p.ClusterID
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	f.o.Logger.Info("cluster formed", "cluster", p.ClusterID.String(), "brokers", len(p.Members))
	out := f.member(f.Record())
	return &out, "", nil
}

// collect asks all at once; the error says what is missing.
func (f *Forming) collect(ctx context.Context, p Promise) error {
	self := f.Record().Directory
	now := map[uuid.UUID]string{} // addresses change; directories do not
	for _, m := range f.o.Gossip.Members() {
		now[m.Directory] = m.ClusterAddr
	}
	errs := make([]error, len(p.Members))
	var wg sync.WaitGroup
	for i, c := range p.Members {
		if c.Directory == self {
			continue
		}
		if addr, ok := now[c.Directory]; ok {
			c.Addr = addr
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			if err := f.o.Peers.Form(ctx, c.Addr, p); err != nil {
				errs[i] = fmt.Errorf("broker %d at %s has not agreed yet: %w", c.Node, c.Addr, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// yield gives a cluster up that has not begun when a member has promised another one, so that two who ask do not wait for
// each other for ever. Of any two one yields: the one with the larger id. Those who promised are told when they ask.
func (f *Forming) yield(p Promise, reason error) error {
	var other *PromisedError
	if !errors.As(reason, &other) || other.ClusterID.Compare(p.ClusterID) > 0 {
		return nil
	}
	return f.change(func(r *Record) error {
		if r.Promise != nil && r.Promise.ClusterID == p.ClusterID && r.ClusterID.IsZero() {
			r.Promise, r.Node = nil, metadata.NoBroker
		}
		return nil
	})
}

// join asks for an id.
func (f *Forming) join(ctx context.Context, addrs []string) (*Outcome, string, error) {
	r := f.Record()
	a, err := f.request(ctx, addrs, JoinRequest{Directory: r.Directory, Node: f.o.Wish.Node, Addr: f.o.Wish.Addr})
	if err != nil || a.Wait != "" {
		return nil, a.Wait, err
	}
	err = f.change(func(r *Record) error {
		if r.Promise != nil && !r.mine() {
			return nil // given meanwhile; the next look decides
		}
		// A cluster that this broker itself wanted to form has not begun, and now never will.
		r.ClusterID, r.Node, r.Promise = a.ClusterID, a.Node, nil
		return nil
	})
	return nil, "", err
}

// request asks members in turn, following them to the leader. A refusal is an error.
func (f *Forming) request(ctx context.Context, addrs []string, q JoinRequest) (JoinAnswer, error) {
	wait := "no member of the cluster answers"
	tried := map[string]bool{}
	for len(addrs) > 0 && len(tried) < 16 {
		addr := addrs[0]
		addrs = addrs[1:]
		if tried[addr] || addr == "" {
			continue
		}
		tried[addr] = true
		a, err := f.one(ctx, addr, q)
		switch {
		case ctx.Err() != nil:
			return JoinAnswer{}, ctx.Err()
		case err != nil:
			wait = fmt.Sprintf("the member at %s does not answer: %v", addr, err)
		case a.Refused != "":
			return a, &RefusedError{a.Refused}
		case a.Leader != "":
			addrs = append([]string{a.Leader}, addrs...)
			wait = "the leader at " + a.Leader + " does not answer"
		case a.Wait != "":
			wait = a.Wait
		default:
			return a, nil
		}
	}
	return JoinAnswer{Wait: wait}, nil
}

func (f *Forming) one(ctx context.Context, addr string, q JoinRequest) (JoinAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return f.o.Peers.Join(ctx, addr, q)
}

// Admit asks the leader to send the metadata log to this broker, until done says that it comes.
func (f *Forming) Admit(ctx context.Context, done func() bool) error {
	var said waiting
	for !done() {
		r := f.Record()
		var addrs []string
		for _, m := range f.o.Gossip.Members() {
			if m.ClusterID == r.ClusterID {
				addrs = append(addrs, m.ClusterAddr)
			}
		}
		a, err := f.request(ctx, addrs, JoinRequest{Directory: r.Directory, Node: r.Node, Addr: f.o.Wish.Addr, Admit: true})
		if err != nil {
			return err
		}
		if a.Wait != "" {
			said.say(f.o, a.Wait)
		}
		if len(addrs) == 0 {
			if err := f.dial(ctx); err != nil {
				return err
			}
		}
		select {
		case <-time.After(lookInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// waiting says why nothing happens, once it has not for a while.
type waiting struct {
	reason string
	since  time.Time
	said   bool
}

func (w *waiting) say(o Options, reason string) {
	if reason == "" {
		return
	}
	o.Waiting(reason)
	if reason != w.reason {
		*w = waiting{reason: reason, since: time.Now()}
	}
	if !w.said && time.Since(w.since) >= patience {
		w.said = true
		o.Logger.Info("waiting for the cluster", "reason", reason)
	}
}
