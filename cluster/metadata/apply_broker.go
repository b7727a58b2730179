package metadata

import (
	"slices"

	"github.com/karstlog/karst/internal/uuid"
)

// maxBrokerID leaves room above it for ids that are allotted.
const maxBrokerID = 1 << 30

// What a broker keeps when it registers:
//
//   - The same incarnation is the same process: everything.
//   - A new one with proof that its logs are as they were keeps its places in ISR and ELR. Where it led it leads on with
//     the next epoch, by which clients and followers learn of the break (KIP-101).
//   - Without proof it is removed from both, unless it is the last of both together. What they were is kept in LastKnown
//     until a leader shows that it lives by proposing something. The last one stays and is Unproven, unless it is alone in
//     LastKnown: then it leads at once.
//
// In each case partitions that nobody leads get a leader if one of ISR or ELR may lead now. It need not live: when power
// failed everywhere, those that have not registered yet look as if they did. They are then removed one by one, and the
// last of them meets the LastKnown of the first.

func (im *Image) registerBroker(c RegisterBroker) (Delta, error) {
	b := c.Broker
	if b.ID < 0 || b.Incarnation.IsZero() {
		return Delta{}, refuse("broker %d needs an id of 0 or more and an incarnation", b.ID)
	}
	b.Endpoints = slices.Clone(b.Endpoints)
	b.ProducerIDs, b.Draining = ProducerIDBlock{}, false
	old, known := im.Broker(b.ID)
	r := returning{broker: &b, im: im, fsync: c.Fsync, proof: c.Proof}
	switch {
	case known && old.Incarnation == b.Incarnation:
		b.ProducerIDs, b.Draining = old.ProducerIDs, old.Draining
		r.sameLife = true
	case known && slices.Contains(c.Starts, old.Incarnation):
		r.sameDisk = true
	case known && !old.Fenced && len(c.Starts) > 0:
		return Delta{}, &BrokerInUseError{b.ID}
	}
	d := Delta{}
	if !known || old.sum() != b.sum() {
		im.putBroker(&b)
		d.Brokers = []BrokerID{b.ID}
	}
	im.forgetAllotment(b.ID)
	d.Topics = im.changeTopics(func(t *Topic) func(*Partition) bool { return r.places(t.Name) })
	return d, nil
}

// returning is a broker that registers.
type returning struct {
	broker   *Broker
	im       *Image // with the broker in it
	sameLife bool   // the incarnation is the one on record
	sameDisk bool   // its directories are those of the incarnation on record
	proof    Proof
	fsync    bool
}

// places works out what the broker has in the partitions of a topic.
func (r returning) places(topic string) func(*Partition) bool {
	proven := r.sameLife || r.sameDisk && (r.proof == ProofFull || r.proof == ProofSynced && r.im.fsync(topic, r.fsync))
	return func(p *Partition) bool {
		id := r.broker.ID
		led := p.Leader == id
		broke := led && (!r.sameLife || r.broker.Fenced)
		if broke {
			p.Leader = NoBroker
		}
		demoted := !proven && (slices.Contains(p.ISR, id) || slices.Contains(p.ELR, id))
		if demoted {
			r.demote(p)
		}
		leads := p.Leader == NoBroker && p.elect(r.im)
		if broke || leads {
			p.LeaderEpoch++
		}
		return broke || demoted || leads
	}
}

// demote removes the broker, which proved nothing, from ISR and ELR of p, unless it is the last of both.
func (r returning) demote(p *Partition) {
	id := r.broker.ID
	known := p.LastKnown
	if len(known) == 0 {
		known = inOrder(p.Replicas, append(slices.Clip(p.ISR), p.ELR...))
	}
	isr, elr := without(p.ISR, id), without(p.ELR, id)
	if len(isr)+len(elr) > 0 {
		p.ISR, p.ELR, p.LastKnown = isr, elr, known
		return
	}
	p.ISR, p.ELR = []BrokerID{id}, nil
	p.LastKnown, p.Unproven = known, true
	alone := len(known) == 1 && known[0] == id
	if alone && (r.sameDisk || len(p.Replicas) == 1) {
		p.LastKnown, p.Unproven = nil, false // there is nobody to wait for
	}
}

// fsync tells whether replicas of the topic count only what they have synced.
func (im *Image) fsync(topic string, otherwise bool) bool {
	for _, r := range []Resource{{ResourceTopic, topic}, {ResourceBroker, ""}} {
		if v, ok := im.Configs(r)["karst.durability"]; ok {
			return v == "fsync"
		}
	}
	return otherwise
}

// putBroker sets or replaces one broker.
func (im *Image) putBroker(b *Broker) {
	i, known := im.findBroker(b.ID)
	list := make([]*Broker, 0, len(im.brokers)+1)
	list = append(list, im.brokers...)
	if known {
		im.checksum ^= list[i].sum()
		list[i] = b
	} else {
		list = slices.Insert(list, i, b)
	}
	im.checksum ^= b.sum()
	im.brokers = list
	if b.ID >= im.nextBrokerID && b.ID < maxBrokerID {
		im.setNextBrokerID(b.ID + 1)
	}
}

func (im *Image) setNextBrokerID(next BrokerID) {
	im.checksum ^= sumNextBrokerID(im.nextBrokerID) ^ sumNextBrokerID(next)
	im.nextBrokerID = next
}

// incarnated finds a broker that must have this incarnation.
func (im *Image) incarnated(id BrokerID, incarnation uuid.UUID) (*Broker, error) {
	b, ok := im.Broker(id)
	if !ok {
		return nil, &UnknownBrokerError{id}
	}
	if b.Incarnation != incarnation || incarnation.IsZero() {
		return nil, &StaleIncarnationError{id, incarnation}
	}
	return b, nil
}

func (im *Image) fenceBroker(c FenceBroker) (Delta, error) {
	b, err := im.incarnated(c.ID, c.Incarnation)
	if err != nil {
		return Delta{}, err
	}
	next := *b
	next.Fenced = true
	return im.changeBroker(b, &next, c.Changes), nil
}

func (im *Image) drainBroker(c DrainBroker) (Delta, error) {
	b, err := im.incarnated(c.ID, c.Incarnation)
	if err != nil {
		return Delta{}, err
	}
	next := *b
	next.Draining = c.Draining
	return im.changeBroker(b, &next, c.Changes), nil
}

func (im *Image) changeBroker(b, next *Broker, changes []PartitionChange) Delta {
	var d Delta
	if b.sum() != next.sum() {
		im.putBroker(next)
		d.Brokers = []BrokerID{b.ID}
	}
	d.Topics, _ = im.changePartitions(NoBroker, changes)
	return d
}

func (im *Image) unregisterBroker(c UnregisterBroker) (Delta, error) {
	b, err := im.incarnated(c.ID, c.Incarnation)
	if err != nil {
		return Delta{}, err
	}
	if !b.Fenced {
		return Delta{}, &BrokerInUseError{c.ID}
	}
	i, _ := im.findBroker(c.ID)
	im.checksum ^= b.sum()
	im.brokers = slices.Delete(slices.Clone(im.brokers), i, i+1)
	return Delta{Brokers: []BrokerID{c.ID}}, nil
}

// allotment is a broker id that was given to a node which has not registered yet.
type allotment struct {
	request uuid.UUID
	id      BrokerID
}

// maxAllotments bounds those that never register. The lowest request is forgotten: it is random.
const maxAllotments = 1000

// Allotted is the id that AllotBrokerID gave to a request.
func (im *Image) Allotted(request uuid.UUID) (BrokerID, bool) {
	i, ok := im.findAllotment(request)
	if !ok {
		return NoBroker, false
	}
	return im.allotted[i].id, true
}

func (im *Image) findAllotment(request uuid.UUID) (int, bool) {
	return slices.BinarySearchFunc(im.allotted, request, func(a allotment, r uuid.UUID) int { return a.request.Compare(r) })
}

func (im *Image) allotBrokerID(c AllotBrokerID) (Delta, error) {
	if c.Request.IsZero() || c.Want >= maxBrokerID || c.Want < NoBroker {
		return Delta{}, refuse("broker id %d cannot be allotted", c.Want)
	}
	if _, ok := im.findAllotment(c.Request); ok {
		return Delta{}, nil
	}
	id := c.Want
	if id != NoBroker {
		b, known := im.Broker(id)
		if known && !b.Fenced || im.isAllotted(id) {
			return Delta{}, &BrokerInUseError{id}
		}
	} else {
		for id = max(im.nextBrokerID, 1); im.isAllotted(id); id++ {
		}
		im.setNextBrokerID(id + 1)
	}
	im.putAllotment(allotment{c.Request, id})
	return Delta{}, nil
}

func (im *Image) isAllotted(id BrokerID) bool {
	return slices.ContainsFunc(im.allotted, func(a allotment) bool { return a.id == id })
}

func (im *Image) putAllotment(a allotment) {
	list := slices.Clone(im.allotted)
	if len(list) == maxAllotments {
		im.checksum ^= list[0].sum()
		list = list[1:]
	}
	i, _ := slices.BinarySearchFunc(list, a.request, func(a allotment, r uuid.UUID) int { return a.request.Compare(r) })
	im.allotted = slices.Insert(list, i, a)
	im.checksum ^= a.sum()
}

func (im *Image) forgetAllotment(id BrokerID) {
	i := slices.IndexFunc(im.allotted, func(a allotment) bool { return a.id == id })
	if i >= 0 {
		im.checksum ^= im.allotted[i].sum()
		im.allotted = slices.Delete(slices.Clone(im.allotted), i, i+1)
	}
}
