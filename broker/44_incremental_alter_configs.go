package broker

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/protocol"
)

// IncrementalAlterConfigs, key 44, versions 0-1 (KIP-339): set, delete, append to and subtract from lists.
func (a *adminAPI) incrementalAlterConfigs(c *protocol.Call, req *kmsg.IncrementalAlterConfigsRequest) {
	ctx, cancel := within(c, 0)
	defer cancel()
	resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	changes := make([]controller.ConfigChange, len(req.Resources))
	for i, r := range req.Resources {
		changes[i] = controller.ConfigChange{Resource: resourceOf(r.ResourceType, r.ResourceName)}
		for _, s := range r.Configs {
			changes[i].Ops = append(changes[i].Ops, controller.ConfigOp{Name: s.Name, Op: controller.Op(s.Op), Value: s.Value})
		}
	}
	for i, err := range a.alter(ctx, changes, req.ValidateOnly) {
		r := kmsg.NewIncrementalAlterConfigsResponseResource()
		r.ResourceType, r.ResourceName = req.Resources[i].ResourceType, req.Resources[i].ResourceName
		r.ErrorCode, r.ErrorMessage = codeOf(err), message(err)
		resp.Resources = append(resp.Resources, r)
	}
	c.Reply(resp)
}
