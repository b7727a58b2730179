package broker

import (
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/cluster/controller"
	"github.com/karstlog/karst/cluster/metadata"
	"github.com/karstlog/karst/config"
	"github.com/karstlog/karst/protocol"
)

// DescribeConfigs, key 32, versions 0-4.
// v1 source and synonyms (KIP-226) · v3 type and documentation (KIP-569)
func (a *adminAPI) describeConfigs(c *protocol.Call, req *kmsg.DescribeConfigsRequest) {
	resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
	for _, r := range req.Resources {
		out := kmsg.NewDescribeConfigsResponseResource()
		out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
		configs, err := a.configs(&r, req)
		out.ErrorCode, out.ErrorMessage, out.Configs = codeOf(err), message(err), configs
		resp.Resources = append(resp.Resources, out)
	}
	c.Reply(resp)
}

type configEntry = kmsg.DescribeConfigsResponseResourceConfig

func (a *adminAPI) configs(r *kmsg.DescribeConfigsRequestResource, req *kmsg.DescribeConfigsRequest) ([]configEntry, error) {
	view := a.admin.View()
	layers := view.Layers()
	resource := metadata.Resource{Type: metadata.ResourceType(r.ResourceType), Name: r.ResourceName}
	own := view.Image.Configs(resource)
	switch int8(r.ResourceType) {
	case resourceTopic:
		if err := metadata.CheckTopicName(r.ResourceName); err != nil {
			return nil, err
		}
		if _, ok := view.Image.Topic(r.ResourceName); !ok {
			return nil, &metadata.UnknownTopicError{Name: r.ResourceName}
		}
		layers.Topic = own
		return entries(config.Options(config.ScopeTopic), r.ConfigNames, req, layers.TopicValue), nil
	case resourceBroker:
		if r.ResourceName == "" {
			return clusterDefaults(own, r.ConfigNames, req), nil
		}
		if err := a.thisBroker(r.ResourceName); err != nil {
			return nil, err
		}
		layers.Static = a.withListeners(layers.Static, view.Image)
		return entries(config.Options(config.ScopeBroker), r.ConfigNames, req, layers.BrokerValue), nil
	case resourceBrokerLogger:
		return a.describeLoggers(r.ConfigNames), a.thisBroker(r.ResourceName)
	case resourceGroup:
		if r.ResourceName == "" {
			return nil, &controller.RequestError{Reason: "The name of a group must not be empty."}
		}
		layers.Group = own
		return entries(config.Options(config.ScopeGroup), r.ConfigNames, req, layers.GroupValue), nil
	case resourceClientMetrics:
		if r.ResourceName == "" {
			return nil, &controller.RequestError{Reason: "The name of a client metrics subscription must not be empty."}
		}
		layers.ClientMetrics = own
		return entries(config.Options(config.ScopeClientMetrics), r.ConfigNames, req, layers.ClientMetricsValue), nil
	}
	return nil, &controller.RequestError{Reason: "Unsupported resource type " + strconv.Itoa(int(r.ResourceType)) + "."}
}

var errOtherBroker = errors.New("the settings of a broker are answered by that broker")

// thisBroker refuses names that are not this broker's id.
func (a *adminAPI) thisBroker(name string) error {
	if name != strconv.Itoa(int(a.id)) {
		return errOtherBroker
	}
	return nil
}

// withListeners adds the listeners as clients reach them when nobody set advertised.listeners: they follow from listeners,
// and a port of 0 is known only now. Clients ask for them (kafka-python holds them to be static).
func (a *adminAPI) withListeners(static map[string]string, im *metadata.Image) map[string]string {
	const name = "advertised.listeners"
	self, ok := im.Broker(a.id)
	if _, set := static[name]; set || !ok {
		return static
	}
	var list []string
	for _, e := range self.Endpoints {
		list = append(list, e.Name+"://"+net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port))))
	}
	out := maps.Clone(static)
	if out == nil {
		out = map[string]string{}
	}
	out[name] = strings.Join(list, ",")
	return out
}

// entries answers for the options whose names are asked for; nil names ask for all.
func entries(options []config.Option, names []string, req *kmsg.DescribeConfigsRequest, value func(string) (config.Value, bool)) []configEntry {
	out := []configEntry{}
	for _, o := range options {
		if names != nil && !slices.Contains(names, o.Name) {
			continue
		}
		v, ok := value(o.Name)
		if !ok {
			continue
		}
		e := entry(o, req)
		e.Value, e.Source, e.IsDefault = shown(o, v), kmsg.ConfigSource(v.Source), v.Source == config.SourceDefault
		e.ReadOnly = o.Update == config.ReadOnly
		if req.IncludeSynonyms {
			for _, s := range v.Synonyms {
				e.ConfigSynonyms = append(e.ConfigSynonyms, synonym(o, s))
			}
		}
		out = append(out, e)
	}
	return out
}

// clusterDefaults lists what is set for all brokers; an option that nobody set has no cluster-wide value.
func clusterDefaults(own map[string]string, names []string, req *kmsg.DescribeConfigsRequest) []configEntry {
	layers := config.Layers{ClusterDefault: own}
	var set []config.Option
	for _, o := range config.Options(config.ScopeBroker) {
		if _, ok := own[o.Name]; ok {
			set = append(set, o)
		}
	}
	return entries(set, names, req, layers.BrokerValue)
}

func entry(o config.Option, req *kmsg.DescribeConfigsRequest) configEntry {
	e := kmsg.NewDescribeConfigsResponseResourceConfig()
	e.Name, e.IsSensitive, e.ConfigType = o.Name, o.Sensitive, kmsg.ConfigType(o.Type)
	if req.IncludeDocumentation {
		e.Documentation = optional(o.Doc)
	}
	return e
}

func synonym(o config.Option, s config.Synonym) kmsg.DescribeConfigsResponseResourceConfigConfigSynonym {
	out := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
	out.Name, out.Source = s.Name, kmsg.ConfigSource(s.Source)
	if !s.Null && !o.Sensitive {
		out.Value = &s.Value
	}
	return out
}

// shown is the value for the answer: null when there is none and when it is a secret.
func shown(o config.Option, v config.Value) *string {
	if v.Null || o.Sensitive {
		return nil
	}
	return &v.Value
}
