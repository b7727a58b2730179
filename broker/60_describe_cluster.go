package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/protocol"
)

// DescribeCluster, key 60, versions 0-2 (KIP-700).
// v1 endpoint type: controllers have none of their own here · v2 fenced brokers
func (a *adminAPI) describeCluster(c *protocol.Call, req *kmsg.DescribeClusterRequest) {
	resp := req.ResponseKind().(*kmsg.DescribeClusterResponse)
	resp.EndpointType = req.EndpointType
	resp.ClusterAuthorizedOperations = operations(req.IncludeClusterAuthorizedOperations, clusterOperations)
	resp.ControllerID = -1
	if req.Version >= 1 && req.EndpointType != 1 {
		resp.ErrorCode, resp.ErrorMessage = codeOf(errEndpointType), message(errEndpointType)
		c.Reply(resp)
		return
	}
	im := a.set.Image()
	resp.ClusterID = im.ClusterID().String()
	resp.ControllerID = a.controllerID()
	for _, b := range im.Brokers() {
		e, ok := endpoint(b, c.Conn().Listener)
		if !ok || b.Fenced && !req.IncludeFencedBrokers {
			continue
		}
		rb := kmsg.NewDescribeClusterResponseBroker()
		rb.NodeID, rb.Host, rb.Port, rb.Rack, rb.IsFenced = int32(b.ID), e.Host, e.Port, optional(b.Rack), b.Fenced
		resp.Brokers = append(resp.Brokers, rb)
	}
	c.Reply(resp)
}
