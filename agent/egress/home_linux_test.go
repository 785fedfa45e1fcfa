package egress_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"offpeak"
	"offpeak/agent/driver"
	"offpeak/agent/driver/process"
	"offpeak/agent/driver/relay"
	"offpeak/agent/egress"
	"offpeak/agent/supervisor"
	"offpeak/internal/require"
)

// The test binary is every machine of the home, and all that runs on the node.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "supervise":
			os.Exit(supervisor.Main(os.Args[2:]))
		case relay.Command:
			os.Exit(relay.Main(os.Args[2:]))
		case "host":
			host(os.Args[2])
		case "node":
			node(os.Args[2], os.Args[3])
		case "job":
			job()
		}
	}
	os.Exit(m.Run())
}

// The addresses of the home. The router's far side and the internet are public; the
// home's IPv6 is too, as at most homes. The site is larger than the one net that the
// node is in: the printer is in another.
const (
	nodeIP, routerIP, lanIP    = "192.168.77.2", "192.168.77.1", "192.168.77.3"
	nodeIP6, routerIP6, lanIP6 = "2a02:8100:1:1::2", "2a02:8100:1:1::1", "2a02:8100:1:1::3"
	printerIP6                 = "2a02:8100:1:2::9"
	routerLL                   = "fe80::77:1"
	wanIP, wanIP6              = "80.10.10.2", "2a02:8108:9::2"
	netIP, netIP6              = "93.184.216.34", "2606:2800:220:1::34"
	otherIP                    = "93.184.216.35"
)

// heard is what a machine has heard.
type heard struct{ Connections, Requests, Datagrams int }

// host listens on every address and writes down who came.
func host(file string) {
	var mu sync.Mutex
	var h heard
	count := func(n *int) {
		mu.Lock()
		defer mu.Unlock()
		*n++
		data, _ := json.Marshal(h)
		_ = os.WriteFile(file+".new", data, 0o600)
		_ = os.Rename(file+".new", file)
	}
	for _, port := range []string{"22", "80", "443"} {
		l, err := net.Listen("tcp", ":"+port)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					continue
				}
				count(&h.Connections)
				go func() {
					defer c.Close()
					_ = c.SetDeadline(time.Now().Add(20 * time.Second))
					req, err := http.ReadRequest(bufio.NewReader(c))
					if err == nil {
						count(&h.Requests)
						fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
						_ = req
					}
				}()
			}
		}()
	}
	u, err := net.ListenPacket("udp", ":53")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	data, _ := json.Marshal(h)
	_ = os.WriteFile(file, data, 0o600)
	for {
		if _, _, err := u.ReadFrom(make([]byte, 100)); err == nil {
			count(&h.Datagrams)
		}
	}
}

// names are what the home's resolver says, in turns.
func names() map[string][][]string {
	return map[string][][]string{
		"files.example":    {{netIP, netIP6}},
		"files4.example":   {{netIP}},
		"files6.example":   {{netIP6}},
		"other.example":    {{otherIP}},
		"lan.example":      {{lanIP}},
		"lan6.example":     {{lanIP6}},
		"printer.example":  {{printerIP6}},
		"node.example":     {{nodeIP6}},
		"wan.example":      {{wanIP}},
		"wan6.example":     {{wanIP6}},
		"mixed.example":    {{netIP, lanIP}},
		"mixed6.example":   {{netIP6, lanIP6}},
		"flip.example":     {{netIP}, {lanIP}, {routerIP}, {nodeIP}},
		"mapped.example":   {{"::ffff:" + lanIP}},
		"loopback.example": {{"127.0.0.1", "::1"}},
	}
}

// node runs one job with egress, as an agent does, and prints what the job says.
func node(dir, exe string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "node:", err)
			os.Exit(1)
		}
	}
	var mu sync.Mutex
	table := names()
	ctx := context.Background()
	p, err := egress.New(egress.Config{
		Folder: filepath.Join(dir, "egress"), Hosts: []string{offpeak.EgressAny}, Log: slog.New(slog.DiscardHandler),
		Times: egress.Times{Dial: 3 * time.Second},
		Resolve: func(_ context.Context, name string) (out []netip.Addr, err error) {
			mu.Lock()
			defer mu.Unlock()
			turns := table[name]
			if len(turns) == 0 {
				return nil, errors.New("no such host")
			}
			if len(turns) > 1 {
				table[name] = turns[1:]
			}
			for _, a := range turns[0] {
				out = append(out, netip.MustParseAddr(a))
			}
			return out, nil
		},
	})
	fail(err)
	fail(p.Verify(ctx))
	var allow []string
	for name := range names() {
		if name != "other.example" {
			allow = append(allow, name+":80", name+":443")
		}
	}
	allow = append(allow, netIP+":80", "["+netIP6+"]:80", wanIP+":80", "["+lanIP6+"]:80")
	g, err := p.Open("lease_1", "job_1", allow[:min(len(allow), 64)])
	fail(err)
	work := filepath.Join(dir, "work")
	fail(os.MkdirAll(work, 0o700))
	var closed []string
	for _, a := range egress.Around() {
		closed = append(closed, a.String())
	}
	for _, must := range []string{nodeIP, nodeIP6, routerIP, routerLL} {
		if !slices.Contains(closed, must) {
			fail(fmt.Errorf("%s is not among %v", must, closed))
		}
	}
	env := []string{"PATH=/usr/bin:/bin"}
	for k, v := range relay.Environment() {
		env = append(env, k+"="+v)
	}
	c, err := process.Driver{Exe: exe, Closed: func() []string { return closed }}.Command(driver.Task{
		Task: offpeak.Task{Command: []string{exe, "job"}}, Work: work, Env: env, Egress: g.Path(),
	})
	fail(err)
	sup := filepath.Join(dir, "sup")
	fail(os.MkdirAll(sup, 0o700))
	x, err := supervisor.Try(ctx, exe, sup, c)
	fail(err)
	out, _ := os.ReadFile(filepath.Join(sup, "stdout.log"))
	os.Stdout.Write(out)
	g.Close()
	if x.Reason != offpeak.EndCompleted {
		said, _ := os.ReadFile(filepath.Join(sup, "stderr.log"))
		fail(fmt.Errorf("the job ended as %s: %s\n%s", x.Reason, x.Detail, said))
	}
	_ = json.NewEncoder(os.Stderr).Encode(p.Ended())
	os.Exit(0)
}

// job tries to reach everything, around the proxy and through it, and prints what it
// has reached.
func job() {
	all := []string{
		nodeIP, routerIP, lanIP, wanIP, netIP, otherIP, "127.0.0.1", "169.254.169.254", "192.168.77.255", "255.255.255.255",
		nodeIP6, routerIP6, lanIP6, printerIP6, wanIP6, netIP6, "::1", routerLL, routerLL + "%eth0", "ff02::1", "::ffff:" + lanIP, "64:ff9b::c0a8:4d03", "2002:c0a8:4d03::1",
	}
	var wg sync.WaitGroup
	say := func(how, to string) { fmt.Println(how, to) }
	for _, a := range all {
		for _, port := range []string{"22", "80"} {
			wg.Go(func() {
				if c, err := net.DialTimeout("tcp", net.JoinHostPort(a, port), time.Second); err == nil {
					_, _ = io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
					if n, _ := c.Read(make([]byte, 5)); n > 0 {
						say("direct", a)
					}
					c.Close()
				}
			})
		}
		wg.Go(func() {
			if c, err := net.Dial("udp", net.JoinHostPort(a, "53")); err == nil {
				_, _ = c.Write([]byte("?"))
				c.Close()
			}
		})
	}
	wg.Wait()
	hosts := slices.Clone(all)
	for name := range names() {
		hosts = append(hosts, name)
	}
	hosts = append(hosts, "router", "3232255235", "0xc0a84d03", "0300.0250.0115.0003", "192.168.19715", "lan.example.", "LAN.example", "192.168.77.3.")
	for range 4 { // some names change what they mean
		for _, h := range hosts {
			text := h
			if strings.Contains(h, ":") {
				text = "[" + h + "]"
			}
			for _, req := range []string{
				"CONNECT " + text + ":80 HTTP/1.1\r\n\r\n", "CONNECT " + text + ":22 HTTP/1.1\r\n\r\n",
				"GET http://" + text + "/ HTTP/1.1\r\nHost: x\r\n\r\n",
			} {
				c, err := net.Dial("tcp", relay.Address)
				if err != nil {
					fmt.Println("no proxy:", err)
					os.Exit(1)
				}
				_ = c.SetDeadline(time.Now().Add(10 * time.Second))
				_, _ = io.WriteString(c, req)
				r := bufio.NewReader(c)
				if strings.HasPrefix(req, "CONNECT") {
					line, _ := r.ReadString('\n')
					if !strings.Contains(line, " 200 ") {
						c.Close()
						continue
					}
					_, _ = r.ReadString('\n')
					_, _ = io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
				}
				if resp, err := http.ReadResponse(r, nil); err == nil && resp.StatusCode == http.StatusOK {
					say("proxy", h)
				}
				c.Close()
			}
		}
	}
	os.Exit(0)
}

// TestHome: of a job with egress on a node at home nothing reaches the node, the
// router (on either side), the home's other machines or what is link-local, over
// IPv4 and IPv6; what it may reach it does.
func TestHome(t *testing.T) {
	ip := require.Tool(t, "ip", "iproute2")
	if os.Geteuid() != 0 {
		require.Met(t, errors.New("not root"), "root, for network namespaces")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	prefix := fmt.Sprintf("offpeak%d", os.Getpid())
	name := func(s string) string { return prefix + s }
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(ip, args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	in := func(ns string, args ...string) { t.Helper(); run(append([]string{"-n", name(ns)}, args...)...) }
	for i, ns := range []string{"node", "router", "lan", "net"} {
		out, err := exec.Command(ip, "netns", "add", name(ns)).CombinedOutput()
		if i == 0 {
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			require.Met(t, err, "network namespaces with names")
		} else if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		t.Cleanup(func() { _ = exec.Command(ip, "netns", "del", name(ns)).Run() })
		in(ns, "link", "set", "lo", "up")
	}
	// The home's switch is in the router.
	in("router", "link", "add", "br0", "type", "bridge")
	link := func(ns, dev string, master bool) {
		in(ns, "link", "add", dev, "type", "veth", "peer", "name", "to"+ns, "netns", name("router"))
		in(ns, "link", "set", dev, "up")
		if master {
			in("router", "link", "set", "to"+ns, "master", "br0")
		}
		in("router", "link", "set", "to"+ns, "up")
	}
	link("node", "eth0", true)
	link("lan", "eth0", true)
	link("net", "eth0", false)
	in("router", "link", "set", "br0", "up")
	addr := func(ns, dev, a string) {
		args := []string{"addr", "add", a, "dev", dev}
		if strings.Contains(a, ":") {
			args = append(args, "nodad")
		}
		in(ns, args...)
	}
	addr("node", "eth0", nodeIP+"/24")
	addr("node", "eth0", nodeIP6+"/64")
	addr("lan", "eth0", lanIP+"/24")
	addr("lan", "eth0", lanIP6+"/64")
	addr("lan", "lo", printerIP6+"/128")
	addr("router", "br0", routerIP+"/24")
	addr("router", "br0", routerIP6+"/64")
	addr("router", "br0", routerLL+"/64")
	addr("router", "tonet", wanIP+"/24")
	addr("router", "tonet", wanIP6+"/64")
	addr("net", "eth0", "80.10.10.1/24")
	addr("net", "eth0", "2a02:8108:9::1/64")
	for _, a := range []string{netIP + "/32", otherIP + "/32", netIP6 + "/128"} {
		addr("net", "lo", a)
	}
	in("node", "route", "add", "default", "via", routerIP)
	in("node", "-6", "route", "add", "default", "via", routerLL, "dev", "eth0")
	in("lan", "route", "add", "default", "via", routerIP)
	in("lan", "-6", "route", "add", "default", "via", routerIP6)
	in("router", "route", "add", "default", "via", "80.10.10.1")
	in("router", "-6", "route", "add", "default", "via", "2a02:8108:9::1")
	in("router", "-6", "route", "add", printerIP6+"/128", "via", lanIP6)
	in("net", "route", "add", "default", "via", wanIP)
	in("net", "-6", "route", "add", "default", "via", wanIP6)
	run("netns", "exec", name("router"), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward && echo 1 > /proc/sys/net/ipv6/conf/all/forwarding")

	dir := t.TempDir()
	file := func(ns string) string { return filepath.Join(dir, ns+".json") }
	for _, ns := range []string{"node", "router", "lan", "net"} {
		cmd := exec.Command(ip, "netns", "exec", name(ns), exe, "host", file(ns))
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		for limit := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(file(ns)); err == nil {
				break
			} else if time.Now().After(limit) {
				t.Fatalf("%s does not listen", ns)
			}
		}
	}
	counted := func(ns string) (h heard) {
		data, err := os.ReadFile(file(ns))
		if err == nil {
			err = json.Unmarshal(data, &h)
		}
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	// The home works: without a fence everything can be reached from the node.
	for to, ns := range map[string]string{lanIP: "lan", lanIP6: "lan", printerIP6: "lan", wanIP: "router", wanIP6: "router", routerLL + "%eth0": "router", netIP: "net", netIP6: "net", otherIP: "net", nodeIP6: "node"} {
		before := counted(ns)
		out, err := exec.Command(ip, "netns", "exec", name("node"), "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/80; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; head -1 <&3", to)).CombinedOutput()
		if err != nil || counted(ns).Requests != before.Requests+1 {
			t.Fatalf("the node can't reach %s: %v\n%s", to, err, out)
		}
	}
	before := map[string]heard{}
	for _, ns := range []string{"node", "router", "lan", "net"} {
		before[ns] = counted(ns)
	}
	cmd := exec.Command(ip, "netns", "exec", name("node"), exe, "node", dir, exe)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, said.String())
	}
	reached := map[string]int{}
	for line := range strings.Lines(string(out)) {
		reached[strings.TrimSpace(line)]++
	}
	// Twice in each of four rounds: by CONNECT and by a plain request. The first
	// answer of flip.example is the internet's; each look takes the next.
	for _, must := range []string{"proxy files.example", "proxy files4.example", "proxy files6.example", "proxy " + netIP, "proxy " + netIP6} {
		if reached[must] != 8 {
			t.Errorf("%s: %d times, want 8", must, reached[must])
		}
		delete(reached, must)
	}
	if n := reached["proxy flip.example"]; n > 1 {
		t.Errorf("flip.example: %d times", n)
	}
	delete(reached, "proxy flip.example")
	if len(reached) > 0 {
		t.Errorf("reached %v", reached)
	}
	for ns, b := range before {
		h := counted(ns)
		t.Logf("%s has heard %+v, before the job %+v", ns, h, b)
		switch ns {
		case "net":
			if h.Requests-b.Requests < 40 || h.Datagrams != 0 {
				t.Errorf("the internet has heard %+v, before %+v", h, b)
			}
		case "router":
			// That its far side is one hop away was found out by asking it.
			if h.Connections > b.Connections+4 || h.Requests != b.Requests || h.Datagrams != b.Datagrams {
				t.Errorf("the router has heard %+v, before %+v", h, b)
			}
		default:
			if h != b {
				t.Errorf("%s has heard %+v, before %+v", ns, h, b)
			}
		}
	}
	t.Log(said.String())
}
