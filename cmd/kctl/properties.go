package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// properties are client properties as Kafka's and librdkafka's clients name them.
type properties struct {
	values  map[string]string
	getenv  func(string) string
	profile profile // where some of them come from
}

// option turns a property's value into client options; nil means that somebody else reads it (options or produce).
type option func(value string) ([]kgo.Opt, error)

// clientProperties are the properties with a meaning here.
var clientProperties = map[string]option{
	"bootstrap.servers": nil,
	"security.protocol": nil,

	"sasl.mechanism": nil, "sasl.mechanisms": nil, "sasl.username": nil, "sasl.password": nil, "sasl.jaas.config": nil,
	"sasl.oauthbearer.token": nil,

	"ssl.ca.location": nil, "ssl.certificate.location": nil, "ssl.key.location": nil,
	"ssl.truststore.location": nil, "ssl.truststore.type": nil, "ssl.truststore.certificates": nil,
	"ssl.keystore.location": nil, "ssl.keystore.type": nil, "ssl.keystore.certificate.chain": nil, "ssl.keystore.key": nil,
	"ssl.endpoint.identification.algorithm": nil, "enable.ssl.certificate.verification": nil, "ssl.server.name": nil,

	"acks": nil, "compression.type": nil, "compression.codec": nil, "enable.idempotence": nil, "isolation.level": nil,

	"client.id":               textOption(kgo.ClientID),
	"client.rack":             textOption(func(v string) kgo.Opt { return kgo.Rack(v) }),
	"linger.ms":               millis(func(d time.Duration) kgo.Opt { return kgo.ProducerLinger(d) }),
	"request.timeout.ms":      millis(func(d time.Duration) kgo.Opt { return kgo.ProduceRequestTimeout(d) }),
	"metadata.max.age.ms":     millis(kgo.MetadataMaxAge),
	"connections.max.idle.ms": millis(kgo.ConnIdleTimeout),
	"fetch.min.bytes":         bytesOption(func(n int32) kgo.Opt { return kgo.FetchMinBytes(n) }),
	"fetch.max.bytes":         bytesOption(func(n int32) kgo.Opt { return kgo.FetchMaxBytes(n) }),
	"max.partition.fetch.bytes": bytesOption(func(n int32) kgo.Opt {
		return kgo.FetchMaxPartitionBytes(n)
	}),
	"fetch.max.wait.ms": millis(func(d time.Duration) kgo.Opt { return kgo.FetchMaxWait(d) }),
	setupTimeout:        nil,
}

// foreignProperty says that a property belongs to clients of other kinds (serializers, JVM, metrics) and means nothing
// to this one.
func foreignProperty(name string) bool {
	for _, p := range []string{
		"key.", "value.", "metric", "partitioner", "interceptor", "reconnect.", "retry.", "retries", "retriable", "receive.", "send.",
		"buffer.memory", "batch.size", "max.request.size", "delivery.timeout.ms", "max.in.flight", "max.block.ms", "max.poll", "group.", "auto.", "enable.auto", "session.", "heartbeat.",
		"security.providers", "ssl.protocol", "ssl.enabled", "ssl.provider", "ssl.cipher", "ssl.secure", "ssl.trustmanager",
		"ssl.keymanager", "sasl.login", "sasl.kerberos", "sasl.client", "allow.auto", "check.crcs", "exclude.internal", "default.api",
		"client.dns", "socket.", "log_level", "debug", "api.version", "broker.", "transaction", "enable.metrics", "config.providers",
	} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

func textOption(f func(string) kgo.Opt) option {
	return func(v string) ([]kgo.Opt, error) { return []kgo.Opt{f(v)}, nil }
}

func millis(f func(time.Duration) kgo.Opt) option {
	return func(v string) ([]kgo.Opt, error) {
		d, err := parseDuration(v)
		return []kgo.Opt{f(d)}, err
	}
}

func bytesOption(f func(int32) kgo.Opt) option {
	return func(v string) ([]kgo.Opt, error) {
		n, err := parseSize(v)
		if err == nil && (n < 1 || n > 1<<31-1) {
			err = usage("%s is not between 1 and 2147483647", v)
		}
		return []kgo.Opt{f(int32(n))}, err
	}
}

// options are the client options that the properties ask for, and what the client connects with: no longer than timeout
// for one connection, unless a property says so.
func (p *properties) options(timeout time.Duration) ([]kgo.Opt, *dialer, error) {
	var opts []kgo.Opt
	for _, name := range propertyNames() {
		v, set := p.values[name]
		if f := clientProperties[name]; set && f != nil {
			more, err := f(v)
			if err != nil {
				return nil, nil, usage("%s: %s", name, err)
			}
			opts = append(opts, more...)
		}
	}
	if v := p.values[setupTimeout]; v != "" {
		var err error
		if timeout, err = parseDuration(v); err != nil {
			return nil, nil, usage("%s: %s", setupTimeout, err)
		}
	}
	secure, sasl, err := p.security()
	if err != nil {
		return nil, nil, err
	}
	d := newDialer(timeout, secure)
	return append(append(opts, sasl...), kgo.Dialer(d.dial)), d, nil
}

const setupTimeout = "socket.connection.setup.timeout.ms"

// security is TLS, or nil, and how the client says who it is.
func (p *properties) security() (*tls.Config, []kgo.Opt, error) {
	protocol := strings.ToUpper(first(p.values["security.protocol"], "PLAINTEXT"))
	var secure *tls.Config
	var err error
	switch protocol {
	case "PLAINTEXT", "SASL_PLAINTEXT":
	case "SSL", "SASL_SSL":
		if secure, err = p.tlsConfig(); err != nil {
			return nil, nil, err
		}
	default:
		return nil, nil, usage("security.protocol=%s: want PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL", protocol)
	}
	if !strings.HasPrefix(protocol, "SASL_") {
		return secure, nil, nil
	}
	mechanism, err := p.sasl()
	return secure, []kgo.Opt{mechanism}, err
}

var jaasPair = regexp.MustCompile(`(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"`)

func (p *properties) sasl() (kgo.Opt, error) {
	user, err := p.secret("sasl.username")
	if err != nil {
		return nil, err
	}
	password, err := p.secret("sasl.password")
	if err != nil {
		return nil, err
	}
	for _, m := range jaasPair.FindAllStringSubmatch(p.values["sasl.jaas.config"], -1) {
		v := strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(m[2])
		if m[1] == "username" && user == "" {
			user = v
		} else if m[1] == "password" && password == "" {
			password = v
		}
	}
	mechanism := strings.ToUpper(first(p.values["sasl.mechanism"], p.values["sasl.mechanisms"]))
	if mechanism == "OAUTHBEARER" {
		token, err := p.secret("sasl.oauthbearer.token")
		if err == nil && token == "" {
			err = usage("sasl.mechanism=OAUTHBEARER needs sasl.oauthbearer.token")
		}
		return kgo.SASL(oauth.Auth{Token: token}.AsMechanism()), err
	}
	if user == "" {
		return nil, usage("security.protocol=%s needs sasl.username and sasl.password (or sasl.jaas.config)", p.values["security.protocol"])
	}
	switch mechanism {
	case "PLAIN":
		return kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()), nil
	case "SCRAM-SHA-256":
		return kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha256Mechanism()), nil
	case "SCRAM-SHA-512":
		return kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()), nil
	case "":
		return nil, usage("sasl.mechanism is missing: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER")
	}
	return nil, usage("sasl.mechanism=%s: want PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER", mechanism)
}

// isReference says that a secret stands elsewhere: @FILE or env:NAME.
func isReference(v string) bool { return strings.HasPrefix(v, "@") || strings.HasPrefix(v, "env:") }

// secret resolves @FILE and env:NAME, so that passwords need not stand on a command line.
func (p *properties) secret(name string) (string, error) {
	v := p.values[name]
	if file, ok := strings.CutPrefix(v, "@"); ok {
		b, err := os.ReadFile(file)
		if err != nil {
			return "", usage("%s: %s", name, err)
		}
		return strings.TrimRight(string(b), "\r\n"), nil
	}
	if env, ok := strings.CutPrefix(v, "env:"); ok {
		if v = p.getenv(env); v == "" {
			return "", usage("%s: the environment has no %s", name, env)
		}
	}
	return v, nil
}

func (p *properties) tlsConfig() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: p.values["ssl.server.name"]}
	for _, kind := range []string{"ssl.truststore.type", "ssl.keystore.type"} {
		if t := p.values[kind]; t != "" && !strings.EqualFold(t, "PEM") {
			return nil, usage("%s=%s: only PEM files are read here; `keytool -exportcert -rfc` or `openssl pkcs12` makes them", kind, t)
		}
	}
	ca, err := p.pem("ssl.truststore.certificates", "ssl.ca.location", "ssl.truststore.location")
	if err != nil {
		return nil, err
	}
	if ca != nil {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(ca) {
			return nil, usage("no PEM certificate in the given CA")
		}
	}
	cert, err := p.pem("ssl.keystore.certificate.chain", "ssl.certificate.location", "ssl.keystore.location")
	if err != nil {
		return nil, err
	}
	if cert != nil {
		key, err := p.pem("ssl.keystore.key", "ssl.key.location", "ssl.keystore.location")
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, usage("client certificate: %s", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	p.verification(c)
	return c, nil
}

// pem reads the first of the properties that is set: inline for the first name, files for the others.
func (p *properties) pem(inline string, files ...string) ([]byte, error) {
	if v := p.values[inline]; v != "" {
		return []byte(strings.ReplaceAll(v, `\n`, "\n")), nil
	}
	for _, name := range files {
		if file := p.values[name]; file != "" {
			b, err := os.ReadFile(file)
			if err != nil {
				return nil, usage("%s: %s", name, err)
			}
			if !bytes.Contains(b, []byte("-----BEGIN ")) {
				return nil, usage("%s: %s is not a PEM file", name, file)
			}
			return b, nil
		}
	}
	return nil, nil
}

// verification loosens the checks as far as the properties say: an empty endpoint identification algorithm drops the
// comparison of host names and keeps the chain, as in Kafka's clients.
func (p *properties) verification(c *tls.Config) {
	algorithm, set := p.values["ssl.endpoint.identification.algorithm"]
	chain := p.values["enable.ssl.certificate.verification"] != "false"
	c.InsecureSkipVerify = !chain
	if !chain || !set || algorithm != "" && algorithm != "none" {
		return
	}
	c.InsecureSkipVerify = true
	roots := c.RootCAs
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
		for _, i := range cs.PeerCertificates[1:] {
			o.Intermediates.AddCert(i)
		}
		_, err := cs.PeerCertificates[0].Verify(o)
		return err
	}
}
