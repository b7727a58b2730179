package uuid

import (
	"bytes"
	"crypto/rand"
	"testing"
)

func TestTextFormIsKafkas(t *testing.T) {
	const text = "MkU3OEVBNTcwNTJENDM2Qg" // what Kafka's storage tool prints for these bytes
	u, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(u[:]); got != "2E78EA57052D436B" {
		t.Errorf("bytes = %q", got)
	}
	if u.String() != text {
		t.Errorf("String = %q", u.String())
	}
}

func TestParseRefuses(t *testing.T) {
	for _, s := range []string{"", "abc", "MkU3OEVBNTcwNTJENDM2QgA", "MkU3OEVBNTcwNTJENDM2+g"} {
		if _, err := Parse(s); err == nil {
			t.Errorf("Parse(%q) succeeded", s)
		}
	}
}

func TestNewSkipsIdsThatStartWithDash(t *testing.T) {
	dash := append([]byte{0xfb}, make([]byte, 15)...) // 0xfb -> '-'
	good := bytes.Repeat([]byte{1}, 16)
	u, err := New(bytes.NewReader(append(dash, good...)))
	if err != nil {
		t.Fatal(err)
	}
	if u[0] != 1 {
		t.Errorf("took %v", u)
	}
	if v, err := New(rand.Reader); err != nil || v.IsZero() || v == u {
		t.Errorf("New(rand) = %v, %v", v, err)
	}
}

func TestCompareOrdersBytes(t *testing.T) {
	a, b := UUID{0: 1}, UUID{8: 1}
	if a.Compare(b) != 1 || b.Compare(a) != -1 || a.Compare(a) != 0 {
		t.Error("order of ids is not the order of their bytes")
	}
}
