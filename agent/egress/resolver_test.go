package egress

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"offpeak"
	"offpeak/agent/driver/relay"
)

// dns is a resolver of a home, as hostile as it likes: for a name and a type it says
// what its table says, in turns.
type dns struct {
	mu    sync.Mutex
	table map[string][][]string // guarded by mu; records as "A 1.2.3.4", "AAAA ::1", "CNAME a.b"
	asked []string              // guarded by mu
}

const (
	typeA, typeCNAME, typeAAAA = 1, 5, 28
)

func wireName(name string) (out []byte) {
	for l := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		out = append(append(out, byte(len(l))), l...)
	}
	return append(out, 0)
}

func (d *dns) answer(q []byte) []byte {
	i, labels := 12, []string{}
	for q[i] != 0 {
		labels = append(labels, string(q[i+1:i+1+int(q[i])]))
		i += 1 + int(q[i])
	}
	kind := binary.BigEndian.Uint16(q[i+1:])
	name := strings.Join(labels, ".")
	d.mu.Lock()
	defer d.mu.Unlock()
	// Both types are asked for in a turn.
	before := 0
	for _, n := range d.asked {
		if n == name {
			before++
		}
	}
	d.asked = append(d.asked, name)
	var records []string
	if turns := d.table[name]; len(turns) > 0 {
		records = turns[min(before/2, len(turns)-1)]
	}
	out := append([]byte{}, q[:i+5]...)
	out[2], out[3] = 0x81, 0x80
	if d.table[name] == nil {
		out[3] = 0x83
	}
	count, owner := 0, name
	for _, r := range records {
		what, value, _ := strings.Cut(r, " ")
		var t uint16
		var data []byte
		switch what {
		case "A":
			t, data = typeA, netip.MustParseAddr(value).AsSlice()
		case "AAAA":
			t, data = typeAAAA, netip.MustParseAddr(value).AsSlice()
		case "CNAME":
			t, data = typeCNAME, wireName(value)
		}
		if t != kind && t != typeCNAME {
			continue
		}
		out = append(out, wireName(owner)...)
		out = binary.BigEndian.AppendUint16(out, t)
		out = append(out, 0, 1, 0, 0, 0, 0)
		out = binary.BigEndian.AppendUint16(out, uint16(len(data)))
		out = append(out, data...)
		if t == typeCNAME {
			owner = value
		}
		count++
	}
	binary.BigEndian.PutUint16(out[6:], uint16(count))
	binary.BigEndian.PutUint16(out[8:], 0)
	binary.BigEndian.PutUint16(out[10:], 0)
	return out
}

// TestResolver: what a real resolver's answers lead to, tricks among them.
func TestResolver(t *testing.T) {
	d := &dns{table: map[string][][]string{
		"both.example":   {{"A 1.1.1.1", "AAAA 2606:4700::1"}},
		"a.example":      {{"A 1.1.1.1"}},
		"cname.example":  {{"CNAME nas.lan", "A 192.168.1.5"}},
		"cname6.example": {{"CNAME nas.lan", "AAAA fd00::5"}},
		"chain.example":  {{"CNAME b.example", "CNAME localhost", "A 127.0.0.1"}},
		"mixed.example":  {{"A 1.1.1.1", "A 10.0.0.1"}},
		"split.example":  {{"A 1.1.1.1", "AAAA ::1"}},
		"mapped.example": {{"AAAA ::ffff:127.0.0.1"}},
		"nat64.example":  {{"A 1.1.1.1", "AAAA 64:ff9b::101:101"}},
		"flip.example":   {{"A 1.1.1.1"}, {"A 192.168.1.5"}},
	}}
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	go func() {
		for {
			b := make([]byte, 1500)
			n, from, err := pc.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo(d.answer(b[:n]), from)
		}
	}()
	w := newWorld(t, func(c *Config) {
		c.Resolve = resolver(&net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "udp", pc.LocalAddr().String())
		}})
	})
	look := func(name string) string {
		list, err := w.p.addresses(t.Context(), offpeak.Destination{Name: name, Port: 443})
		if err != nil {
			return closed(offpeak.Destination{Name: name, Port: 443}, err).Error()
		}
		return fmt.Sprint(list)
	}
	for _, c := range []struct{ name, want string }{
		{"both.example", "[1.1.1.1 2606:4700::1]"}, {"a.example", "[1.1.1.1]"},
		{"cname.example", "private"}, {"cname6.example", "private"}, {"chain.example", "loopback"},
		{"mixed.example", "private"}, {"split.example", "loopback"}, {"mapped.example", "loopback"}, {"nat64.example", "NAT64"},
		{"flip.example", "[1.1.1.1]"}, {"flip.example", "private"}, {"unknown.example", "not known"},
	} {
		if got := look(c.name); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range d.asked {
		if !strings.HasSuffix(name, ".example") {
			t.Errorf("asked for %q", name)
		}
	}
}

// BenchmarkBytes is how fast bytes come through, beside a connection over loopback:
// by the proxy alone, and with the relay's process before it, as a job has it.
func BenchmarkBytes(b *testing.B) {
	const size = 64 << 20
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 256<<10)
				for n := 0; n < size; n += len(buf) {
					if _, err := c.Write(buf); err != nil {
						return
					}
				}
			}()
		}
	}()
	w := newWorld(b, nil)
	g := w.gate(b, "files.example:443")
	socket := b.TempDir() + "/s"
	l, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server.Addr().String())
			if err != nil {
				return
			}
			job, far := g.metered("files.example:443", c, up)
			go tunnel(job, far)
		}
	}()
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	f, err := front.(*net.TCPListener).File()
	if err != nil {
		b.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(exe, relay.Command, "--serve", "--socket", socket)
	cmd.ExtraFiles = []*os.File{f}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	f.Close()
	front.Close()
	for _, way := range []struct{ name, network, address string }{
		{"direct", "tcp", server.Addr().String()}, {"proxy", "unix", socket}, {"relay", "tcp", front.Addr().String()},
	} {
		b.Run(way.name, func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				c, err := net.Dial(way.network, way.address)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 256<<10)); n != size {
					b.Fatal(n, err)
				}
				c.Close()
			}
		})
	}
}
