package wire

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"offpeak"
)

func TestClientTrustsThePinnedKeyAlone(t *testing.T) {
	hub := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(`{"challenge":"sign me"}`))
	}))
	hub.Config.ErrorLog = nil
	hub.StartTLS()
	defer hub.Close()
	pin := Fingerprint(hub.Certificate())

	ask := func(fingerprint string) error {
		c := Client(fingerprint)
		defer c.CloseIdleConnections()
		_, err := (&Direct{Client: c, Base: hub.URL}).Challenge(context.Background())
		return err
	}
	if err := ask(pin); err != nil {
		t.Errorf("the pinned key: %v", err)
	}
	other := strings.Repeat("0", 64)
	if err := ask(other); !errors.Is(err, offpeak.ErrUnavailable) || !strings.Contains(err.Error(), "another hub") {
		t.Errorf("another key: %v, want a refusal that says so", err)
	}
	if key, ok := errors.AsType[*KeyError](ask(other)); !ok || key.Got != pin || key.Want != other {
		t.Errorf("another key: %v", key)
	}
	if _, ok := errors.AsType[*UntrustedError](ask("")); !ok {
		t.Error("a certificate that nobody vouches for was trusted without a pin")
	}
}

func TestClientSpeaksPlainHTTPOnLoopbackOnly(t *testing.T) {
	c := Client("")
	for _, base := range []string{"http://192.0.2.7:7070", "http://hub.example.org", "http://127.0.0.1.example.org"} {
		d := &Direct{Client: c, Base: base, Token: "secret"}
		_, err := d.Challenge(context.Background())
		if !errors.Is(err, offpeak.ErrInvalid) || !strings.Contains(err.Error(), "use https") {
			t.Errorf("%s: %v, want a refusal", base, err)
		}
	}
	for host, want := range map[string]bool{"localhost": true, "127.0.0.1": true, "127.8.9.1": true, "::1": true, "::ffff:127.0.0.1": true, "0.0.0.0": false, "10.0.0.1": false, "localhost.example.org": false, "": false} {
		if Loopback(host) != want {
			t.Errorf("Loopback(%q) is %v", host, !want)
		}
	}
}

func TestClientDoesNotCarryTheTokenElsewhere(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Error("the redirect was followed")
	}))
	defer elsewhere.Close()
	hub := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer hub.Close()
	d := &Direct{Client: Client(""), Base: hub.URL, Token: "secret"}
	if _, err := d.Whoami(context.Background()); err == nil {
		t.Error("a redirect was taken for an answer")
	}
}
