package offpeak_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"offpeak"
)

func TestParseDestination(t *testing.T) {
	for _, s := range []string{
		"pypi.org:443", "files.pythonhosted.org:443", "*.huggingface.co:443", "xn--bcher-kva.example:80",
		"1.1.1.1:53", "[2606:4700:4700::1111]:443", "a_b.example:65535", "3com.example:1",
	} {
		d, err := offpeak.ParseDestination(s)
		if err != nil || d.String() != s {
			t.Errorf("%s: %v, %v", s, d, err)
		}
	}
	for s, rule := range map[string]string{
		"":                                      "is host:port",
		"pypi.org":                              "is host:port",
		"pypi.org:":                             "port",
		"pypi.org:0":                            "port",
		"pypi.org:65536":                        "port",
		"pypi.org:0443":                         "port",
		"pypi.org:+443":                         "port",
		"pypi.org:https":                        "port",
		"smtp.example:25":                       "port 25",
		"PyPI.org:443":                          "lower case",
		"pypi.org.:443":                         "no dot at the end",
		"bücher.example:443":                    "ASCII form",
		"router:80":                             "whole name",
		"*:443":                                 "letters, digits",
		"*.org:443":                             "whole name",
		"a.*.org:443":                           "letters, digits",
		"*a.example.org:443":                    "letters, digits",
		"*.*.example.org:443":                   "letters, digits",
		"-a.example:443":                        "letters, digits",
		"a..example:443":                        "letters, digits",
		".example.org:443":                      "letters, digits",
		"user@pypi.org:443":                     "letters, digits",
		"http://pypi.org:443":                   "letters, digits",
		"pypi.org/simple:443":                   "letters, digits",
		"pypi.org\x00.example:443":              "letters, digits",
		"localhost:80":                          "whole name",
		"nas.local:80":                          "local network",
		"fritz.box.lan:80":                      "local network",
		"metadata.google.internal:80":           "local network",
		"host.home.arpa:80":                     "local network",
		"2130706433:80":                         "usual form",
		"0x7f000001:80":                         "usual form",
		"0x7f.1:80":                             "usual form",
		"127.1:80":                              "usual form",
		"0177.0.0.1:80":                         "usual form",
		"1.1.1.01:80":                           "usual form",
		"1.1.1.1.:80":                           "no dot at the end",
		"*.1.1:80":                              "usual form",
		"127.0.0.1:80":                          "loopback",
		"192.168.1.1:80":                        "private",
		"100.64.0.1:80":                         "provider's own network",
		"169.254.169.254:80":                    "link-local",
		"[::1]:80":                              "loopback",
		"[::ffff:10.0.0.1]:80":                  "disguise",
		"[::ffff:1.1.1.1]:80":                   "disguise",
		"[::a00:1]:80":                          "disguise",
		"[64:ff9b::a00:1]:80":                   "NAT64",
		"[2002:a00:1::]:80":                     "6to4",
		"[2001:0:a00:1::]:80":                   "Teredo",
		"[fe80::1%eth0]:80":                     "link-local",
		"[fd00::1]:80":                          "private",
		"[ff02::1]:80":                          "multicast",
		"[2606:4700:0:0::1111]:443":             "is [2606:4700::1111]:443",
		"2606:4700::1111:443":                   "in brackets",
		"[1.1.1.1]:80":                          "IPv6 address in its brackets",
		"[2606:4700::1111:443":                  "IPv6 address in its brackets",
		strings.Repeat("a.", 130) + "example:1": "at most 253",
	} {
		_, err := offpeak.ParseDestination(s)
		if bad, ok := errors.AsType[*offpeak.ValueError](err); !ok || !strings.Contains(bad.Rule, rule) {
			t.Errorf("%q: %v, want a rule with %q", s, err, rule)
		}
	}
}

func TestClosedAddr(t *testing.T) {
	for _, open := range []string{"1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "192.169.0.1", "223.255.255.255", "2606:4700::1", "2a00:1450::1", "2001:4860:4860::8888"} {
		if why := offpeak.ClosedAddr(netip.MustParseAddr(open)); why != "" {
			t.Errorf("%s is %s", open, why)
		}
	}
	for _, closed := range []string{
		"0.0.0.0", "0.1.2.3", "10.255.255.255", "100.64.0.0", "100.127.255.255", "127.255.255.255", "169.254.0.1", "172.16.0.1", "172.31.255.255",
		"192.0.0.170", "192.0.2.1", "192.88.99.1", "192.168.255.255", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::7f00:1", "64:ff9b::7f00:1", "64:ff9b:1::1", "100::1", "2001::1", "2001:2::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::", "3fff::1",
		"4000::1", "fc00::1", "fdff::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "2606:4700::1%eth0",
	} {
		if offpeak.ClosedAddr(netip.MustParseAddr(closed)) == "" {
			t.Errorf("%s is open", closed)
		}
	}
	if offpeak.ClosedAddr(netip.Addr{}) == "" {
		t.Error("no address is open")
	}
}

func TestEgressTakes(t *testing.T) {
	list := &offpeak.Egress{Hosts: []string{"pypi.org:443", "*.lab.example:80"}, Drivers: []string{"bwrap"}}
	all := &offpeak.Egress{Hosts: []string{offpeak.EgressAny}, Drivers: []string{"bwrap"}}
	for _, c := range []struct {
		e      *offpeak.Egress
		driver string
		want   []string
		ok     bool
	}{
		{nil, "process", nil, true},
		{nil, "process", []string{"pypi.org:443"}, false},
		{list, "bwrap", []string{"pypi.org:443", "a.lab.example:80", "*.b.lab.example:80", "*.lab.example:80"}, true},
		{list, "process", []string{"pypi.org:443"}, false},
		{list, "bwrap", []string{"pypi.org:80"}, false},
		{list, "bwrap", []string{"lab.example:80"}, false},
		{list, "bwrap", []string{"evillab.example:80"}, false},
		{list, "bwrap", []string{"*.example:80"}, false},
		{list, "bwrap", []string{"pypi.org:443", "other.example:443"}, false},
		{all, "bwrap", []string{"*.example.com:80", "1.1.1.1:53"}, true},
		{all, "wasm", []string{"pypi.org:443"}, false},
	} {
		if got := c.e.Takes(c.driver, c.want); got != c.ok {
			t.Errorf("%+v takes %v of %s: %v", c.e, c.want, c.driver, got)
		}
	}
}

func TestEgressIsValidated(t *testing.T) {
	fields := func(change func(*offpeak.Spec)) (out []string) {
		s := offpeak.Spec{Task: offpeak.Task{Driver: "process", Command: []string{"true"}}}.WithDefaults()
		change(&s)
		for _, err := range unjoin(s.Validate()) {
			if bad, ok := errors.AsType[*offpeak.FieldError](err); ok {
				out = append(out, bad.Field)
			}
		}
		return out
	}
	for _, c := range []struct {
		change func(*offpeak.Spec)
		want   []string
	}{
		{func(s *offpeak.Spec) { s.Requirements.Egress = []string{"pypi.org:443", "*.example.com:80"} }, nil},
		{func(s *offpeak.Spec) { s.Requirements.Egress = []string{"pypi.org:443", "10.0.0.1:80", "any"} }, []string{"requirements.egress[1]", "requirements.egress[2]"}},
		{func(s *offpeak.Spec) { s.Requirements.Egress = slices.Repeat([]string{"pypi.org:443"}, 33) }, []string{"requirements.egress"}},
		{func(s *offpeak.Spec) {
			s.Task.Driver, s.Task.Command, s.Requirements.Egress = "wasm", []string{"a.wasm"}, []string{"pypi.org:443"}
		}, []string{"requirements.egress"}},
	} {
		if got := fields(c.change); !slices.Equal(got, c.want) {
			t.Errorf("breaks %v, want %v", got, c.want)
		}
	}
}

func unjoin(err error) []error {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return list.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}
