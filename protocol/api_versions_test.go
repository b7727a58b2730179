package protocol

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func apiVersions(version int16, name, software string) *kmsg.ApiVersionsRequest {
	r := kmsg.NewPtrApiVersionsRequest()
	r.Version, r.ClientSoftwareName, r.ClientSoftwareVersion = version, name, software
	r.NodeID = -1
	return r
}

// ask sends ApiVersions and reads the answer in the version it is in. The header never has tags.
func ask(c *peer, req *kmsg.ApiVersionsRequest, answerVersion int16) *kmsg.ApiVersionsResponse {
	c.t.Helper()
	c.send(request(1, req))
	_, body := c.answer()
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.Version = answerVersion
	if err := resp.ReadFrom(body); err != nil {
		c.t.Fatal(err)
	}
	if again := resp.AppendTo(nil); !bytes.Equal(again, body) {
		c.t.Fatalf("version %d: answer %x, reads as %x", answerVersion, body, again)
	}
	return resp
}

type keyRange struct{ Key, Min, Max int16 }

func ranges(r *kmsg.ApiVersionsResponse) (out []keyRange) {
	for _, k := range r.ApiKeys {
		out = append(out, keyRange{k.ApiKey, k.MinVersion, k.MaxVersion})
	}
	return out
}

func TestApiVersionsListsTheTable(t *testing.T) {
	private := metadataRoute()
	private.Key, private.Min, private.Max = 10001, 0, 0
	_, addr := serve(t, ServerOptions{APIs: []API{metadataRoute(), private, RouteProduce(0, 13, nil)}})
	c := dial(t, addr)
	public := []keyRange{{0, 0, 13}, {3, 0, 13}, {18, 0, 5}}
	for v := int16(0); v <= 5; v++ {
		resp := ask(c, apiVersions(v, "librdkafka", "2.3.0"), v)
		if diff := cmp.Diff(public, ranges(resp)); diff != "" || resp.ErrorCode != 0 {
			t.Errorf("version %d: error %d %s", v, resp.ErrorCode, diff)
		}
	}
	if diff := cmp.Diff(append(public, keyRange{10001, 0, 0}), ranges(ask(c, apiVersions(3, "kctl", "1.0"), 3))); diff != "" {
		t.Errorf("kctl: %s", diff)
	}
}

// The answer to a version from the future is in version 0 and names the range of this API; the connection stays open.
func TestApiVersionsTooNewIsAnsweredInVersionZero(t *testing.T) {
	_, addr := serve(t, ServerOptions{APIs: []API{metadataRoute()}})
	c := dial(t, addr)
	for _, rest := range [][]byte{{0}, {0, 2, 'x', 2, '1', 0}, {}} {
		c.send(rawFrame(append([][]byte{be16(18), be16(99), be32(5), be16(1), []byte("x")}, rest)...))
		corr, body := c.answer()
		want := []byte{0, 35, 0, 0, 0, 1, 0, 18, 0, 0, 0, 5}
		if diff := cmp.Diff(want, body); diff != "" || corr != 5 {
			t.Errorf("correlation %d: %s", corr, diff)
		}
	}
	for _, v := range []int16{3, 4} {
		if resp := ask(c, apiVersions(v, "x", "1"), v); resp.ErrorCode != 0 || len(resp.ApiKeys) != 2 {
			t.Errorf("version %d after it: %+v", v, resp)
		}
	}
}

func TestApiVersionsChecksTheClientSoftware(t *testing.T) {
	infos := make(chan ConnInfo, 1)
	route := Route(0, 13, func(c *Call, _ *kmsg.MetadataRequest) {
		infos <- *c.Conn()
		c.Reply(kmsg.NewPtrMetadataResponse())
	})
	_, addr := serve(t, ServerOptions{APIs: []API{route}})
	c := dial(t, addr)
	for _, bad := range [][2]string{{"", ""}, {"a", ""}, {"", "1"}, {"bad name", "1"}, {"-a", "1"}, {"a.", "1"}, {"a", "1\n"}, {"ä", "1"}} {
		if resp := ask(c, apiVersions(3, bad[0], bad[1]), 3); resp.ErrorCode != codeInvalidRequest || len(resp.ApiKeys) != 0 {
			t.Errorf("%q: error %d, %d keys", bad, resp.ErrorCode, len(resp.ApiKeys))
		}
	}
	c.send(request(2, metadata()))
	c.answer()
	if info := <-infos; info.ClientName != "" {
		t.Errorf("refused name is kept: %+v", info)
	}
	if resp := ask(c, apiVersions(4, "apache-kafka-java", "4.1.0"), 4); resp.ErrorCode != 0 {
		t.Errorf("error %d", resp.ErrorCode)
	}
	c.send(request(3, metadata()))
	c.answer()
	info := <-infos
	if info.ClientName != "apache-kafka-java" || info.ClientVersion != "4.1.0" || info.Listener != "PLAINTEXT" {
		t.Errorf("info %+v", info)
	}
	if got := c.LocalAddr().String(); info.Remote.String() != got {
		t.Errorf("remote %v, want %v", info.Remote, got)
	}
}

func TestApiVersionsChecksClusterAndNode(t *testing.T) {
	id, other := "4L6g3nShT-eMCtK--X86sw", "AAAAAAAAAAAAAAAAAAAAAw"
	_, addr := serve(t, ServerOptions{APIs: []API{metadataRoute()}, NodeID: 7, ClusterID: func() string { return id }})
	c := dial(t, addr)
	tests := []struct {
		cluster *string
		node    int32
		want    int16
	}{
		{nil, -1, 0},
		{&id, 7, 0},
		{&other, 7, codeRebootstrap},
		{&id, 8, codeRebootstrap},
		{nil, 7, codeInvalidRequest},
		{&id, -1, codeInvalidRequest},
	}
	for _, tt := range tests {
		req := apiVersions(5, "x", "1")
		req.ClusterID, req.NodeID = tt.cluster, tt.node
		resp := ask(c, req, 5)
		if resp.ErrorCode != tt.want || (len(resp.ApiKeys) == 0) != (tt.want != 0) {
			t.Errorf("node %d: error %d, want %d; %d keys", tt.node, resp.ErrorCode, tt.want, len(resp.ApiKeys))
		}
	}
}

func TestApiVersionsListsFeatures(t *testing.T) {
	features := func() Features {
		return Features{
			Supported:      []Feature{{"z.version", 1, 2}, {"group.version", 0, 1}},
			Finalized:      []Feature{{"z.version", 0, 2}},
			FinalizedEpoch: 42,
		}
	}
	_, addr := serve(t, ServerOptions{APIs: []API{metadataRoute()}, Features: features})
	c := dial(t, addr)
	old, now := ask(c, apiVersions(3, "x", "1"), 3), ask(c, apiVersions(4, "x", "1"), 4)
	if len(old.SupportedFeatures) != 1 || old.SupportedFeatures[0].Name != "z.version" {
		t.Errorf("v3 supported: %+v", old.SupportedFeatures)
	}
	if len(now.SupportedFeatures) != 2 || now.SupportedFeatures[0].Name != "group.version" {
		t.Errorf("v4 supported: %+v", now.SupportedFeatures)
	}
	if f := now.FinalizedFeatures; now.FinalizedFeaturesEpoch != 42 || len(f) != 1 || f[0].MinVersionLevel != 2 || f[0].MaxVersionLevel != 2 {
		t.Errorf("finalized: %d %+v", now.FinalizedFeaturesEpoch, f)
	}
}
