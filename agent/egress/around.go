package egress

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Around are this machine's own addresses and those of its routers, as far as it
// knows them: what a job must not have a way to.
func Around() (out []netip.Addr) {
	add := func(a netip.Addr) {
		if a = a.WithZone(""); a.IsValid() && !a.IsUnspecified() && !a.IsLoopback() && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	own, _ := ownAddrs()
	for _, a := range own {
		add(a)
	}
	for _, r := range []struct {
		path string
		read func(io.Reader) []netip.Addr
	}{{"/proc/net/route", routes4}, {"/proc/net/ipv6_route", routes6}} {
		f, err := os.Open(r.path)
		if err != nil {
			continue
		}
		for _, a := range r.read(f) {
			add(a)
		}
		f.Close()
	}
	// Enough is enough where a machine has very many.
	return out[:min(len(out), 64)]
}

// routes4 reads the gateways of /proc/net/route.
func routes4(r io.Reader) (out []netip.Addr) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 3 || len(f[2]) != 8 {
			continue
		}
		n, err := strconv.ParseUint(f[2], 16, 32)
		if err != nil || n == 0 {
			continue
		}
		// As the machine has it in memory.
		var b [4]byte
		binary.NativeEndian.PutUint32(b[:], uint32(n))
		out = append(out, netip.AddrFrom4(b))
	}
	return out
}

// routes6 reads the gateways of /proc/net/ipv6_route.
func routes6(r io.Reader) (out []netip.Addr) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 5 {
			continue
		}
		b, err := hex.DecodeString(f[4])
		if a, ok := netip.AddrFromSlice(b); err == nil && ok && a.Is6() && !a.IsUnspecified() {
			out = append(out, a)
		}
	}
	return out
}
