package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/protocol"
)

// AlterConfigs, key 33, versions 0-2: replaces the whole set, what is not given goes back to its default.
func (a *adminAPI) alterConfigs(c *protocol.Call, req *kmsg.AlterConfigsRequest) {
	ctx, cancel := within(c, 0)
	defer cancel()
	resp := req.ResponseKind().(*kmsg.AlterConfigsResponse)
	changes := make([]controller.ConfigChange, len(req.Resources))
	for i, r := range req.Resources {
		changes[i] = controller.ConfigChange{Resource: resourceOf(r.ResourceType, r.ResourceName), Replace: true}
		for _, s := range r.Configs {
			changes[i].Ops = append(changes[i].Ops, controller.ConfigOp{Name: s.Name, Op: controller.OpSet, Value: s.Value})
		}
	}
	for i, err := range a.alter(ctx, changes, req.ValidateOnly) {
		r := kmsg.NewAlterConfigsResponseResource()
		r.ResourceType, r.ResourceName = req.Resources[i].ResourceType, req.Resources[i].ResourceName
		r.ErrorCode, r.ErrorMessage = codeOf(err), message(err)
		resp.Resources = append(resp.Resources, r)
	}
	c.Reply(resp)
}

func resourceOf(kind kmsg.ConfigResourceType, name string) metadata.Resource {
	return metadata.Resource{Type: metadata.ResourceType(kind), Name: name}
}

// alter changes settings and waits until they are in force here. A resource that the request names twice is not changed.
func (a *adminAPI) alter(ctx context.Context, changes []controller.ConfigChange, validateOnly bool) []error {
	errs := make([]error, len(changes))
	times := make(map[metadata.Resource]int, len(changes))
	for _, c := range changes {
		times[c.Resource]++
	}
	var once []controller.ConfigChange
	var rows []int
	for i, c := range changes {
		if times[c.Resource] > 1 {
			errs[i] = &controller.RequestError{Reason: "Each resource must appear at most once."}
			continue
		}
		if c.Resource.Type == metadata.ResourceType(resourceBrokerLogger) {
			errs[i] = a.alterLoggers(c, validateOnly)
			continue
		}
		once, rows = append(once, c), append(rows, i)
	}
	if len(once) == 0 {
		return errs
	}
	for i, err := range a.admin.AlterConfigs(ctx, once, validateOnly) {
		errs[rows[i]] = err
	}
	if !validateOnly {
		a.settled(ctx)
	}
	return errs
}
