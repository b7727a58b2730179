package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/protocol"
)

// UnregisterBroker, key 64, version 0: forgets a broker that is dead, and takes its server out of the quorum.
func (a *adminAPI) unregisterBroker(c *protocol.Call, req *kmsg.UnregisterBrokerRequest) {
	ctx, cancel := within(c, 0)
	defer cancel()
	resp := req.ResponseKind().(*kmsg.UnregisterBrokerResponse)
	err := a.admin.RemoveBroker(ctx, metadata.BrokerID(req.BrokerID))
	resp.ErrorCode, resp.ErrorMessage = codeOf(err), message(err)
	a.settled(ctx)
	c.Reply(resp)
}
