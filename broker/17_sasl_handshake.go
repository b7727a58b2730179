package broker

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/karstlog/karst/protocol"
)

// SaslHandshake, key 17, versions 0-1, and SaslAuthenticate, key 36, versions 0-2, on listeners without SASL: both are
// out of place there, and a client that expects SASL is told so instead of being cut off (KIP-43, KIP-152).

// errNoSASL is their answer.
var errNoSASL = errors.New("SASL is not enabled on this listener")

type saslAPI struct{}

func (saslAPI) apis() []protocol.API {
	return []protocol.API{protocol.Route(0, 1, saslHandshake), protocol.Route(0, 2, saslAuthenticate)}
}

func saslHandshake(c *protocol.Call, _ *kmsg.SASLHandshakeRequest) {
	resp := kmsg.NewPtrSASLHandshakeResponse()
	resp.ErrorCode = codeOf(errNoSASL)
	c.Reply(resp)
}

func saslAuthenticate(c *protocol.Call, _ *kmsg.SASLAuthenticateRequest) {
	resp := kmsg.NewPtrSASLAuthenticateResponse()
	text := errNoSASL.Error()
	resp.ErrorCode, resp.ErrorMessage = codeOf(errNoSASL), &text
	c.Reply(resp)
}
