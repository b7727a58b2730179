package link

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// authority makes certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "brokers"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

// config is mutual: both sides show a certificate of this authority.
func (a *authority) config(t testing.TB) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		RootCAs:      pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
}

// TestMutualTLS: brokers with a certificate of the same authority talk; others, with another one or none, do not get as
// far as the greeting.
func TestMutualTLS(t *testing.T) {
	w := &world{}
	ours, theirs := newAuthority(t), newAuthority(t)
	a := w.start(t, setup{id: 1, options: Options{TLS: ours.config(t)}})
	b := w.start(t, setup{id: 2, options: Options{TLS: ours.config(t)}})
	told := deaths(a)
	for i, from := range []*node{a, b} {
		resp, err := from.Call(within(t), b.hello.Broker-from.hello.Broker+1, beat(int32(i)))
		if err != nil || resp.(*kmsg.HeartbeatResponse).ErrorCode != int16(i) {
			t.Errorf("from %d: %v, %v", from.hello.Broker, resp, err)
		}
	}
	stream, err := a.Dial(within(t), 2, Raft)
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Close()
	for name, config := range map[string]*tls.Config{"another authority": theirs.config(t), "none": nil} {
		c := w.start(t, setup{id: 3, options: Options{TLS: config}})
		if _, err := c.Call(within(t), 1, beat(1)); !errors.As(err, new(*UnreachableError)) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := a.Call(within(t), 3, beat(1)); !errors.As(err, new(*UnreachableError)) {
			t.Errorf("to %s: %v", name, err)
		}
		c.end()
	}
	b.end()
	if got := <-told; got.Broker != 2 {
		t.Errorf("told of %+v", got)
	}
}
