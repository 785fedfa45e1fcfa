package offpeak

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// EgressAny is what a node's owner says to let jobs name any public host.
const EgressAny = "any"

// Bounds of egress.
const (
	maxEgress = 32
	maxHost   = 253
)

// Egress is what a node's owner lets jobs reach through the agent's proxy.
type Egress struct {
	// Hosts are destinations, as ParseDestination reads them, or EgressAny alone.
	Hosts []string `json:"hosts" doc:"host:port, *.host:port or address:port; any alone is every public host"`
	// Drivers are those whose jobs have no other way out, so that they may have this.
	Drivers []string `json:"drivers" doc:"drivers whose jobs can be given it"`
}

// Takes says whether a job for driver may reach all that it wants.
func (e *Egress) Takes(driver string, want []string) bool {
	if len(want) == 0 {
		return true
	}
	if e == nil || !slices.Contains(e.Drivers, driver) {
		return false
	}
	for _, w := range want {
		if !covered(e.Hosts, w) {
			return false
		}
	}
	return true
}

func covered(hosts []string, want string) bool {
	for _, h := range hosts {
		if h == EgressAny || h == want {
			return true
		}
		if below, ok := strings.CutPrefix(h, "*"); ok && strings.HasSuffix(want, below) {
			return true
		}
	}
	return false
}

// lacks says in words what stands in the way of a job that Takes refuses.
func (e *Egress) lacks(driver string) string {
	switch {
	case e == nil || len(e.Hosts) == 0 || len(e.Drivers) == 0:
		return "no network for jobs"
	case !slices.Contains(e.Drivers, driver):
		return "no network for " + driver + " jobs, only for " + strings.Join(e.Drivers, ", ")
	case len(e.Hosts) > 4:
		return "only " + strings.Join(e.Hosts[:4], ", ") + " and " + strconv.Itoa(len(e.Hosts)-4) + " more"
	}
	return "only " + strings.Join(e.Hosts, ", ")
}

// Destination is where a job may connect to: one port of a host, of all hosts below
// a name, or of a public address.
type Destination struct {
	// Name is a host's name in lower case; "" for an address.
	Name string
	// Below says that the hosts below Name are meant, and not Name.
	Below bool
	Addr  netip.Addr
	Port  uint16
}

// ParseDestination reads "host:port", "*.host:port", "1.2.3.4:port" or "[2001:…]:port",
// in the one form in which each can be written. It returns a *ValueError that says
// what is wrong.
func ParseDestination(s string) (Destination, error) {
	bad := func(rule string) (Destination, error) {
		return Destination{}, &ValueError{Value: clip(s), Rule: rule}
	}
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return bad("is host:port, for example pypi.org:443")
	}
	host, port := s[:i], s[i+1:]
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		return bad("ends in a port from 1 to 65535, for example pypi.org:443")
	}
	if n == 25 {
		return bad("is not on port 25: no job sends mail from another's machine")
	}
	d := Destination{Port: uint16(n)}
	if v6, ok := strings.CutPrefix(host, "["); ok {
		text, closed := strings.CutSuffix(v6, "]")
		a, err := netip.ParseAddr(text)
		if !closed || err != nil || !a.Is6() {
			return bad("has an IPv6 address in its brackets")
		}
		d.Addr = a
	} else if a, err := netip.ParseAddr(host); err == nil {
		if a.Is6() {
			return bad("has its IPv6 address in brackets: [2606:4700::1111]:443")
		}
		d.Addr = a
	}
	if d.Addr.IsValid() {
		if why := ClosedAddr(d.Addr); why != "" {
			return bad("is a public address; this one is " + why)
		}
		if d.String() != s {
			return bad("is " + d.String())
		}
		return d, nil
	}
	d.Name, d.Below = strings.CutPrefix(host, "*.")
	if rule := hostRule(d.Name, d.Below); rule != "" {
		return bad(rule)
	}
	return d, nil
}

// hostRule is the rule that a host's name breaks, "" for none.
func hostRule(name string, below bool) string {
	labels := strings.Split(name, ".")
	last := labels[len(labels)-1]
	switch {
	case strings.ContainsFunc(name, func(r rune) bool { return r > 127 }):
		return "has the host's name in its ASCII form, xn--…"
	case strings.ToLower(name) != name:
		return "is in lower case"
	case len(name) > maxHost:
		return "has a host's name of at most 253 characters"
	case last == "" && len(labels) > 1:
		return "has no dot at the end of the host's name"
	}
	for _, l := range labels {
		if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' || strings.ContainsFunc(l, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
		}) {
			return "has a host's name of letters, digits and hyphens, with dots between, or * for its first part alone"
		}
	}
	switch {
	case last[0] >= '0' && last[0] <= '9':
		// As browsers and C libraries read it, 2130706433, 0x7f.1 and 127.1 are addresses.
		return "has a host's name, or an address in its usual form"
	case len(labels) < 2:
		return "has the whole name of a public host: one without a dot is of the local network"
	case slices.Contains([]string{"local", "localhost", "internal", "localdomain", "lan", "home", "corp", "onion"}, last),
		strings.HasSuffix(name, ".home.arpa"), name == "home.arpa":
		return "has the name of a public host; ." + last + " is of the local network"
	case below && name == "arpa":
		return "has the name of a public host"
	}
	return ""
}

// String is what ParseDestination reads.
func (d Destination) String() string {
	if d.Addr.IsValid() {
		return netip.AddrPortFrom(d.Addr, d.Port).String()
	}
	name := d.Name
	if d.Below {
		name = "*." + name
	}
	return name + ":" + strconv.Itoa(int(d.Port))
}

// Covers says whether one who may reach d may reach o.
func (d Destination) Covers(o Destination) bool { return covered([]string{d.String()}, o.String()) }

// closedNets are the addresses that no job may reach, with what they are. Of IPv6
// only 2000::/3 is handed out to the public, less what is listed.
func closedNets() []struct{ net, is string } {
	return []struct{ net, is string }{
		{"0.0.0.0/8", "of this machine"}, {"10.0.0.0/8", "private"}, {"100.64.0.0/10", "of a provider's own network"},
		{"127.0.0.0/8", "loopback"}, {"169.254.0.0/16", "link-local"}, {"172.16.0.0/12", "private"},
		{"192.0.0.0/24", "reserved"}, {"192.0.2.0/24", "for documentation"}, {"192.31.196.0/24", "reserved"},
		{"192.52.193.0/24", "reserved"}, {"192.88.99.0/24", "a 6to4 relay"}, {"192.168.0.0/16", "private"},
		{"192.175.48.0/24", "reserved"}, {"198.18.0.0/15", "for measurements"}, {"198.51.100.0/24", "for documentation"},
		{"203.0.113.0/24", "for documentation"}, {"224.0.0.0/4", "multicast"}, {"255.255.255.255/32", "broadcast"}, {"240.0.0.0/4", "reserved"},

		{"::/128", "of this machine"}, {"::1/128", "loopback"}, {"::ffff:0:0/96", "an IPv4 address in disguise"},
		{"::/96", "an IPv4 address in disguise"}, {"64:ff9b::/96", "an IPv4 address behind NAT64"}, {"64:ff9b:1::/48", "an IPv4 address behind NAT64"},
		{"fc00::/7", "private"}, {"fe80::/10", "link-local"}, {"fec0::/10", "private"}, {"ff00::/8", "multicast"},
		{"2001::/32", "an IPv4 address behind Teredo"}, {"2001::/23", "reserved"}, {"2001:db8::/32", "for documentation"},
		{"2002::/16", "an IPv4 address behind 6to4"}, {"3fff::/20", "for documentation"}, {"2620:4f:8000::/48", "reserved"},
	}
}

// ClosedAddr says what an address is that no job may reach, "" for a public one.
func ClosedAddr(a netip.Addr) string {
	if !a.IsValid() || a.Zone() != "" {
		return "link-local"
	}
	for _, c := range closedNets() {
		if netip.MustParsePrefix(c.net).Contains(a) {
			return c.is
		}
	}
	if a.Is6() && !netip.MustParsePrefix("2000::/3").Contains(a) {
		return "reserved"
	}
	return ""
}
