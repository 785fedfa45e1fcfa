package wire

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"offpeak"
)

// Client makes the HTTP client for a Direct. With a fingerprint it trusts the
// hub that holds exactly that key and nobody else; without one it trusts the
// system's certificate authorities. Plain HTTP is refused unless the hub is on
// loopback, so that no token crosses a network in the clear. Connecting, the
// TLS handshake and the wait for an answer's header are bounded; whole requests
// are not, since streams have no end: callers bound them with their context.
func Client(fingerprint string) *http.Client {
	dialer := &net.Dialer{
		Timeout: 5 * time.Second,
		// A hub whose machine vanished is noticed in about 20 s.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	return &http.Client{
		Transport: guarded{&http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           dialer.DialContext,
			TLSClientConfig:       pinned(fingerprint),
			TLSHandshakeTimeout:   5 * time.Second,
			ResponseHeaderTimeout: 90 * time.Second,
			ExpectContinueTimeout: time.Second,
			IdleConnTimeout:       90 * time.Second,
			MaxIdleConns:          256,
			MaxIdleConnsPerHost:   256,
			// HTTP/1.1 only: one connection a stream, so that one slow stream
			// never holds up the heartbeats behind it.
			TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
		}},
		// A redirect would carry the token to wherever the answer says.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Fingerprint is how a hub's key is pinned: the SHA-256 of the certificate's
// public key in lower-case hex. It outlives the certificate around the key.
func Fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// KeyError is a hub that holds another key than the pinned one.
type KeyError struct{ Got, Want string }

func (e *KeyError) Error() string {
	return fmt.Sprintf("the hub's key has fingerprint %s, expected %s: this is another hub, or somebody is in between", e.Got, e.Want)
}

// UntrustedError is a hub that could not prove who it is: its key is not the
// pinned one (*KeyError), or no pin was given and no authority vouches for it.
// Nothing was sent to it. Trying again helps only where the address may lead
// elsewhere.
type UntrustedError struct {
	Base string
	Err  error
}

func (e *UntrustedError) Error() string { return e.Base + ": " + e.Err.Error() }

// Unwrap returns what was wrong, and ErrUnavailable: the hub itself may be well.
func (e *UntrustedError) Unwrap() []error { return []error{e.Err, offpeak.ErrUnavailable} }

// untrusted returns an *UntrustedError if that is why a request failed.
func untrusted(base string, err error) error {
	if key, ok := errors.AsType[*KeyError](err); ok {
		return &UntrustedError{base, key}
	}
	if cert, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return &UntrustedError{base, cert}
	}
	return nil
}

// pinned returns the TLS settings that accept the key with the fingerprint.
// The usual verification is off because a hub signs its own certificate, and
// VerifyConnection, which runs on resumed connections too, takes its place.
func pinned(fingerprint string) *tls.Config {
	if fingerprint == "" {
		return &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errors.New("the hub showed no certificate")
			}
			got := Fingerprint(s.PeerCertificates[0])
			if subtle.ConstantTimeCompare([]byte(got), []byte(fingerprint)) != 1 {
				return &KeyError{Got: got, Want: fingerprint}
			}
			return nil
		},
	}
}

// guarded refuses plain HTTP to anywhere but loopback.
type guarded struct{ *http.Transport }

func (g guarded) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !Loopback(req.URL.Hostname()) {
		return nil, fmt.Errorf("%s is not on this machine, and plain HTTP shows tokens to the network: use https: %w", req.URL.Host, offpeak.ErrInvalid)
	}
	return g.Transport.RoundTrip(req)
}

// Loopback says whether host, a name or an address, is this machine only.
func Loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
