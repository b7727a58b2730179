package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestSecurityPropertiesBecomeOptions(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "pw")
	if err := os.WriteFile(secret, []byte("geheim\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		values map[string]string
		fails  bool
	}{
		{name: "none", values: nil},
		{name: "plain", values: map[string]string{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "@" + secret}},
		{name: "scram over tls", values: map[string]string{"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "u", "sasl.password": "env:PW"}},
		{name: "jaas", values: map[string]string{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": `x required username="a" password="b\"c";`}},
		{name: "token", values: map[string]string{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token": "t"}},
		{name: "no user", values: map[string]string{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, fails: true},
		{name: "no mechanism", values: map[string]string{"security.protocol": "SASL_PLAINTEXT", "sasl.username": "u"}, fails: true},
		{name: "kerberos", values: map[string]string{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI", "sasl.username": "u"}, fails: true},
		{name: "unknown protocol", values: map[string]string{"security.protocol": "TLS"}, fails: true},
		{name: "missing file", values: map[string]string{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "@" + secret + "x"}, fails: true},
		{name: "java key store", values: map[string]string{"security.protocol": "SSL", "ssl.truststore.type": "JKS"}, fails: true},
		{name: "not pem", values: map[string]string{"security.protocol": "SSL", "ssl.ca.location": secret}, fails: true},
		{name: "bad size", values: map[string]string{"fetch.max.bytes": "many"}, fails: true},
	} {
		p := &properties{values: tt.values, getenv: func(string) string { return "secret" }}
		if _, _, err := p.options(time.Second); (err != nil) != tt.fails {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	p := &properties{values: map[string]string{"sasl.password": "@" + secret}, getenv: os.Getenv}
	if got, err := p.secret("sasl.password"); err != nil || got != "geheim" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestHostNamesMayBeLeftUnchecked: an empty ssl.endpoint.identification.algorithm drops the host's name and keeps the chain.
func TestHostNamesMayBeLeftUnchecked(t *testing.T) {
	for _, tt := range []struct {
		values       map[string]string
		skip, custom bool
	}{
		{map[string]string{}, false, false},
		{map[string]string{"ssl.endpoint.identification.algorithm": "https"}, false, false},
		{map[string]string{"ssl.endpoint.identification.algorithm": ""}, true, true},
		{map[string]string{"enable.ssl.certificate.verification": "false"}, true, false},
	} {
		p := &properties{values: tt.values, getenv: os.Getenv}
		c, err := p.tlsConfig()
		if err != nil {
			t.Fatal(err)
		}
		if c.InsecureSkipVerify != tt.skip || (c.VerifyConnection != nil) != tt.custom {
			t.Errorf("%v: skip %v, own check %v", tt.values, c.InsecureSkipVerify, c.VerifyConnection != nil)
		}
	}
}

func TestEveryPropertyMakesAClient(t *testing.T) {
	for name, f := range clientProperties {
		if f == nil {
			continue
		}
		opts, err := f("5000")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers("127.0.0.1:1"))...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		cl.Close()
	}
}
