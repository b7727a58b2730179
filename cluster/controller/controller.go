// Package controller decides what should change: given the image of the cluster and what somebody asks for, it checks
// the wish, places replicas, merges settings, and answers with the command to put into the Raft log. It changes
// nothing, and has no clock and no dice: ids and random numbers are handed in. A command it made can still lose against
// another that was applied before it; the command's own precondition sees to that.
package controller

import (
	"strconv"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/internal/uuid"
)

// MaxPartitionsPerRequest bounds what one request may create. Kafka's controller has the same bound.
const MaxPartitionsPerRequest = 10_000

// View is what decisions are made on.
type View struct {
	Image *metadata.Image
	// Self is the broker that decides; settings of another broker are refused.
	Self metadata.BrokerID
	// Static are this broker's settings from file, environment and flags.
	Static map[string]string
	// Defaults are for topics whose creator does not say.
	Defaults config.Topics

	minimum *minimumOf // of the topic that was asked about last; nil: nothing is remembered
}

// minimumOf is min.insync.replicas of a topic.
type minimumOf struct {
	topic string
	value int
}

// Draw is what a decision needs of chance.
type Draw struct {
	ID    uuid.UUID // of the new topic
	Start uint64    // which broker comes first
}

// Layers are the settings in force around a resource; the resource's own are to be filled in by the caller.
func (v View) Layers() config.Layers {
	return config.Layers{
		Broker:         v.Image.Configs(metadata.Resource{Type: metadata.ResourceBroker, Name: strconv.Itoa(int(v.Self))}),
		ClusterDefault: v.Image.Configs(metadata.Resource{Type: metadata.ResourceBroker}),
		Static:         v.Static,
		Brokers:        len(v.Image.Brokers()),
	}
}
