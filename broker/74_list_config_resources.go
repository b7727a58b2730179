package broker

import (
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/protocol"
)

// Types of config resources as the protocol numbers them.
const (
	resourceTopic         = int8(metadata.ResourceTopic)
	resourceBroker        = int8(metadata.ResourceBroker)
	resourceBrokerLogger  = int8(8)
	resourceClientMetrics = int8(metadata.ResourceClientMetrics)
	resourceGroup         = int8(metadata.ResourceGroup)
)

// ListConfigResources, key 74, versions 0-1 (KIP-1142).
// v0 lists client metrics only · v1 any types, none given means all
func (a *adminAPI) listConfigResources(c *protocol.Call, req *kmsg.ListConfigResourcesRequest) {
	resp := req.ResponseKind().(*kmsg.ListConfigResourcesResponse)
	types := req.ResourceTypes
	switch {
	case req.Version == 0:
		types = []int8{resourceClientMetrics}
	case len(types) == 0:
		types = []int8{resourceTopic, resourceBroker, resourceBrokerLogger, resourceClientMetrics, resourceGroup}
	}
	im := a.set.Image()
	add := func(kind int8, name string) {
		r := kmsg.NewListConfigResourcesResponseConfigResource()
		r.Type, r.Name = kind, name
		resp.ConfigResources = append(resp.ConfigResources, r)
	}
	for i, kind := range types {
		if slices.Contains(types[:i], kind) {
			continue
		}
		switch kind {
		case resourceTopic:
			for t := range im.Topics() {
				add(kind, t.Name)
			}
		case resourceBroker, resourceBrokerLogger:
			for _, b := range im.Brokers() {
				add(kind, strconv.Itoa(int(b.ID)))
			}
		case resourceClientMetrics, resourceGroup:
			for r := range im.ConfigResources() {
				if int8(r.Type) == kind {
					add(kind, r.Name)
				}
			}
		default:
			resp.ErrorCode = codeUnsupportedVersion
			resp.ConfigResources = nil
			c.Reply(resp)
			return
		}
	}
	c.Reply(resp)
}
