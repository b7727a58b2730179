package process

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/karstlog/karst/test/internal/proc"
)

// TestBrokersAmongThemselvesAreProtected: with keys and certificates, strangers on the network neither hear nor join.
func TestBrokersAmongThemselvesAreProtected(t *testing.T) {
	c := proc.NewCluster(t, 3)
	dir := t.TempDir()
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	write(t, dir, "gossip.key", []byte(base64.StdEncoding.EncodeToString(key)))
	var hosts []net.IP
	for _, b := range c.Brokers {
		host, _, _ := net.SplitHostPort(b.Cluster)
		hosts = append(hosts, net.ParseIP(host))
	}
	certificates(t, dir, hosts)
	file := func(name string) string { return filepath.Join(dir, name) }
	protection := []string{"--gossip-key", file("gossip.key"), "--cluster-tls-cert", file("b.pem"), "--cluster-tls-key", file("b.key"), "--cluster-tls-ca", file("ca.pem")}
	flags := append([]string{"--bootstrap-expect", "3", "--join", c.Seeds()}, protection...)
	for _, b := range c.Brokers {
		b.SetFlags(flags...)
	}
	c.Start()
	c.AwaitHealth()
	c.MustKctl("topic", "create", "t")
	produce(t, client(t, c.Bootstrap()[0]), "t", 0, 50, 10)

	// With the gossip key and no certificate it finds them, and gets no further.
	stranger := proc.New(t, proc.Options{Together: true, Flags: []string{"--join", c.Seeds(), "--gossip-key", file("gossip.key")}})
	stranger.Launch()
	stranger.Await("say what it waits for", func() bool {
		_, said := stranger.Ready()
		return strings.Contains(said, "does not answer")
	})
	// Without the key it hears nothing.
	deaf := proc.New(t, proc.Options{Together: true, Flags: []string{"--join", c.Seeds()}})
	deaf.Launch()
	deaf.Await("say what it waits for", func() bool {
		_, said := deaf.Ready()
		return strings.Contains(said, "no broker of a cluster answers")
	})
	demandText(t, c.MustKctl("cluster", "status"), "brokers 3/3 alive")
}

func write(t *testing.T, dir, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// certificates makes an authority, ca.pem, and one certificate for all hosts, b.pem with b.key.
func certificates(t *testing.T, dir string, hosts []net.IP) {
	t.Helper()
	issue := func(name string, template, parent *x509.Certificate, signer *ecdsa.PrivateKey) *ecdsa.PrivateKey {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if signer == nil {
			signer = own
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &own.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		secret, err := x509.MarshalECPrivateKey(own)
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir, name+".pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
		write(t, dir, name+".key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}))
		return own
	}
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	signer := issue("ca", ca, ca, nil)
	issue("b", &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "broker"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IPAddresses: hosts, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, ca, signer)
}
