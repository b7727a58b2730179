package group

import "errors"

// consumerType is the protocol type of consumers: their metadata is a subscription.
const consumerType = "consumer"

// errSubscription is metadata that is not a subscription.
var errSubscription = errors.New("metadata is not a consumer's subscription")

// SubscribedTopics reads the topics out of a subscription of the consumer protocol (ConsumerProtocolSubscription, any
// version: later ones only add fields at the end). What follows the topics is not looked at.
func SubscribedTopics(metadata []byte) ([]string, error) {
	r := reader{rest: metadata}
	if version := r.int16(); version < 0 {
		return nil, errSubscription
	}
	n := r.count(2)
	topics := make([]string, 0, n)
	for range n {
		topics = append(topics, r.string())
	}
	if r.err != nil {
		return nil, errSubscription
	}
	return topics, nil
}
