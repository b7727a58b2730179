package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestCheckHealthSaysWhatTheBrokerSays(t *testing.T) {
	answers := map[string]string{
		`{"ready":true}`: "",
		`{"ready":false,"reasons":["recovering partitions"]}`: "recovering partitions",
		`{"ready":false}`: "not ready",
	}
	for body, want := range answers {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
		reasons, err := askReady(t.Context(), server.Listener.Addr().String())
		server.Close()
		if err != nil || strings.Join(reasons, ";") != want {
			t.Errorf("%s: %v, %v", body, reasons, err)
		}
	}
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	if _, err := askReady(t.Context(), server.Listener.Addr().String()); err == nil {
		t.Error("something that is no broker is healthy")
	}
}
