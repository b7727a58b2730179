package broker

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/protocol"
)

// Features are the features of Kafka that are served, and the levels in force (KIP-584). A level here follows from the
// release; nothing else would change if it were stored. One that is not served is not listed.
func Features() protocol.Features {
	return protocol.Features{
		Supported: []protocol.Feature{
			{Name: "metadata.version", Min: 7, Max: 33},
			{Name: "kraft.version", Min: 0, Max: 1},
			{Name: "eligible.leader.replicas.version", Min: 0, Max: 1},
			{Name: "transaction.version", Min: 0, Max: 2},
		},
		Finalized: []protocol.Feature{
			{Name: "metadata.version", Min: 33, Max: 33},
			{Name: "eligible.leader.replicas.version", Min: 1, Max: 1},
			// Producers go on with the next epoch after each transaction, and add partitions by writing to them (KIP-890).
			{Name: "transaction.version", Min: 2, Max: 2},
		},
	}
}

// UpdateFeatures, key 57, versions 0-2 (KIP-584). Levels are those of the release: the one in force is accepted, any other
// refused.
// v1 kinds of upgrades, and validation only · v2 no results by feature
func (a *adminAPI) updateFeatures(c *protocol.Call, req *kmsg.UpdateFeaturesRequest) {
	resp := req.ResponseKind().(*kmsg.UpdateFeaturesResponse)
	for _, u := range req.FeatureUpdates {
		err := checkFeature(u.Feature, u.MaxVersionLevel)
		if err != nil && resp.ErrorCode == codeNone {
			resp.ErrorCode, resp.ErrorMessage = codeOf(err), message(err)
		}
		if req.Version <= 1 {
			r := kmsg.NewUpdateFeaturesResponseResult()
			r.Feature, r.ErrorCode, r.ErrorMessage = u.Feature, codeOf(err), message(err)
			resp.Results = append(resp.Results, r)
		}
	}
	c.Reply(resp)
}

func checkFeature(name string, level int16) error {
	all := Features()
	for _, f := range all.Finalized {
		if f.Name == name && f.Max == level {
			return nil
		}
	}
	for _, f := range all.Supported {
		if f.Name == name && level >= f.Min && level <= f.Max {
			return fmt.Errorf("feature %s follows the release and cannot be set to %d: %w", name, level, errFeatureLevel)
		}
	}
	return fmt.Errorf("feature %s is not known at level %d: %w", name, level, errFeatureLevel)
}
