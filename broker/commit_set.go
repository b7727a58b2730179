package broker

import (
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/group"
)

// commitSet is the offsets of an OffsetCommit or TxnOffsetCommit that the group decides on, and where they stand in the
// answer.
type commitSet struct {
	im      *metadata.Image
	byID    bool // topics have ids instead of names
	at      []commitPlace
	offsets []group.CommitOffset
}

type commitPlace struct{ topic, partition int }

// name is what a topic of the request is called; an error: there is none with this id.
func (s *commitSet) name(topic string, id [16]byte) (string, error) {
	if s.byID {
		return nameOf(s.im, id)
	}
	return topic, nil
}

// add takes an offset whose topic and partition exist, and otherwise returns the code that says why not. missing is what
// was wrong with the topic.
func (s *commitSet) add(missing error, at commitPlace, o group.CommitOffset) int16 {
	err := missing
	if err == nil {
		o.TopicID, err = known(s.im, o.Topic, o.Partition)
	}
	if err == nil {
		s.at, s.offsets = append(s.at, at), append(s.offsets, o)
	}
	return codeOf(err)
}

// answer gives each offset its code. What the group refuses as a whole is the error of each.
func (s *commitSet) answer(a group.Answer, err error, put func(at commitPlace, code int16)) {
	for i, at := range s.at {
		each := err
		if err == nil {
			each = a.(*group.CommitAnswer).Errs[i]
		}
		put(at, codeOf(each))
	}
}

// nameOf finds the topic with an id.
func nameOf(im *metadata.Image, id [16]byte) (string, error) {
	t, ok := im.TopicByID(id)
	if !ok {
		return "", &metadata.UnknownTopicIDError{ID: id}
	}
	return t.Name, nil
}
