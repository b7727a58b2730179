package protocol

import (
	"cmp"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	keyProduce     = 0
	keyFetch       = 1
	keyAPIVersions = 18
)

// Codes that ApiVersions answers with. It is the one API that this package serves itself.
const (
	codeUnsupportedVersion = 35
	codeInvalidRequest     = 42
	codeRebootstrap        = 129
)

// privateClient is the client software that the private APIs are listed to.
const privateClient = "kctl"

// apiVersions serves ApiVersions, key 18, versions 0-5, from the table.
// v3 flexible, client software (KIP-511), features (KIP-584) · v4 features with a minimum of 0 · v5 cluster and node
// that the client thinks it talks to (KIP-1242)
func (s *Server) apiVersions() API {
	a := Route(0, 5, s.serveAPIVersions)
	a.burst = true
	return a
}

func (s *Server) serveAPIVersions(c *Call, req *kmsg.ApiVersionsRequest) {
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.ErrorCode = s.checkClient(c, req)
	if resp.ErrorCode == 0 {
		if req.Version >= 3 {
			c.introduce(req.ClientSoftwareName, req.ClientSoftwareVersion)
		}
		s.listAPIs(resp, req)
		s.listFeatures(resp, req.Version)
	}
	c.Reply(resp)
}

// checkClient returns the code of what is wrong with the request, 0 for nothing.
func (s *Server) checkClient(c *Call, req *kmsg.ApiVersionsRequest) int16 {
	if req.Version >= 3 && !(softwareName(req.ClientSoftwareName) && softwareName(req.ClientSoftwareVersion)) {
		return codeInvalidRequest
	}
	if req.Version < 5 || (req.ClusterID == nil && req.NodeID == -1) {
		return 0
	}
	if req.ClusterID == nil || req.NodeID == -1 {
		return codeInvalidRequest
	}
	if id := s.clusterID(); (id != "" && *req.ClusterID != id) || req.NodeID != s.opts.NodeID {
		return codeRebootstrap
	}
	return 0
}

func (s *Server) clusterID() string {
	if s.opts.ClusterID == nil {
		return ""
	}
	return s.opts.ClusterID()
}

// softwareName tells whether a client's name or version is one by KIP-511: letters, digits, dots and dashes, the last
// two not at the ends.
func softwareName(name string) bool {
	for i := range len(name) {
		switch ch := name[i]; {
		case ch >= 'a' && ch <= 'z', ch >= 'A' && ch <= 'Z', ch >= '0' && ch <= '9':
		case (ch == '.' || ch == '-') && i > 0 && i < len(name)-1:
		default:
			return false
		}
	}
	return name != ""
}

// introduce remembers what client software this is.
func (c *Call) introduce(name, version string) {
	info := *c.conn.info.Load()
	info.ClientName, info.ClientVersion = name, version
	c.conn.info.Store(&info)
}

func (s *Server) listAPIs(resp *kmsg.ApiVersionsResponse, req *kmsg.ApiVersionsRequest) {
	private := req.Version >= 3 && req.ClientSoftwareName == privateClient
	for _, e := range s.table.sorted {
		if e.Key >= firstPrivateKey && !private {
			continue
		}
		resp.ApiKeys = append(resp.ApiKeys, listed(e))
	}
}

func listed(e *entry) kmsg.ApiVersionsResponseApiKey {
	k := kmsg.NewApiVersionsResponseApiKey()
	k.ApiKey, k.MinVersion, k.MaxVersion = e.Key, e.Min, e.Max
	return k
}

// listFeatures leaves out what a v3 client would misread: features that may be off (KIP-584 as amended by KIP-1022).
func (s *Server) listFeatures(resp *kmsg.ApiVersionsResponse, version int16) {
	if version < 3 || s.opts.Features == nil {
		return
	}
	all := s.opts.Features()
	byName := func(a, b Feature) int { return cmp.Compare(a.Name, b.Name) }
	for _, f := range slices.SortedFunc(slices.Values(all.Supported), byName) {
		if f.Min == 0 && version == 3 {
			continue
		}
		k := kmsg.NewApiVersionsResponseSupportedFeature()
		k.Name, k.MinVersion, k.MaxVersion = f.Name, f.Min, f.Max
		resp.SupportedFeatures = append(resp.SupportedFeatures, k)
	}
	for _, f := range slices.SortedFunc(slices.Values(all.Finalized), byName) {
		k := kmsg.NewApiVersionsResponseFinalizedFeature()
		k.Name, k.MinVersionLevel, k.MaxVersionLevel = f.Name, f.Max, f.Max
		resp.FinalizedFeatures = append(resp.FinalizedFeatures, k)
	}
	resp.FinalizedFeaturesEpoch = all.FinalizedEpoch
}

// newAskedTooNew makes what answers a version of ApiVersions that is yet to be: in version 0, naming the range of this
// one API, so that the client asks again with what it finds there (KIP-511).
func (s *Server) newAskedTooNew() *entry {
	e := *s.table.find(keyAPIVersions)
	own := listed(&e)
	e.Serve = func(c *Call) {
		c.ReleaseBody()
		resp := kmsg.NewPtrApiVersionsResponse()
		resp.ErrorCode = codeUnsupportedVersion
		resp.ApiKeys = append(resp.ApiKeys, own)
		c.Reply(resp)
	}
	return &e
}
