package supervisor_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"offpeak"
	"offpeak/agent/supervisor"
	"offpeak/internal/require"
)

// TestNoNetwork: a job has loopback, up, and nothing else, under every fence; the
// next one on the same supervisor has the machine's network if it may.
func TestNoNetwork(t *testing.T) {
	python := require.Tool(t, "python3", "python3")
	const look = `
import os, socket
print(sorted(i[1] for i in socket.if_nameindex() if i[1] not in ("sit0","ip6tnl0","tunl0","gre0","gretap0","erspan0","ip_vti0","ip6_vti0","ip6gre0")))
s = socket.create_server(("127.0.0.1", 0)); socket.create_connection(s.getsockname()); print("loopback")
for a in ("1.1.1.1", "169.254.169.254"):
    try: socket.create_connection((a, 80), 1); print("reached", a)
    except OSError as e: print(e.strerror)
`
	for _, fence := range fences(t) {
		t.Run(fence, func(t *testing.T) {
			t.Parallel()
			h := spawn(t, fence)
			s := script(t, `sleep 0.3; exec "$PY" -c "$LOOK"`)
			s.Command.Env = append(s.Command.Env, "PY="+python, "LOOK="+look)
			s.Command.NoNetwork = true
			start(t, h, s)
			if e := awaitExit(t, h); e.Reason != offpeak.EndCompleted {
				t.Fatalf("%+v\n%s", e, read(t, s, "stderr.log"))
			}
			if got, want := read(t, s, "stdout.log"), "['lo']\nloopback\nNetwork is unreachable\nNetwork is unreachable\n"; got != want {
				t.Errorf("saw %q, want %q", got, want)
			}
			s = script(t, `readlink /proc/self/ns/net`)
			start(t, h, s)
			awaitExit(t, h)
			here, err := os.Readlink("/proc/self/ns/net")
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(read(t, s, "stdout.log")); got != here {
				t.Errorf("the next job is in %s, want the machine's %s", got, here)
			}
			if fence == supervisor.FenceProcessGroup {
				return // it does not hold those who leave it
			}
			// A job that may not have a network is killed like any other.
			s = script(t, escapees+"sleep 1005")
			m := mark(t, &s)
			s.Command.NoNetwork = true
			start(t, h, s)
			await(t, h, "output", func(st supervisor.Status) bool { return st.Stdout > 0 })
			do(t, h, supervisor.Request{Kill: &supervisor.Kill{Reason: offpeak.EndCancelled}})
			awaitExit(t, h)
			if left := marked(m); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestNoNetworkUnprivileged: an ordinary user's supervisor does it in a namespace of
// users, where the machine lets users have them.
func TestNoNetworkUnprivileged(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the suite runs as an ordinary user: TestNoNetwork is this test")
	}
	const nobody = 65534
	dir, err := os.MkdirTemp("", "offpeak-nobody-") // test folders are root's alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	data, err := os.ReadFile(exe(t))
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "supervisor.test")
	for _, err := range []error{os.WriteFile(binary, data, 0o755), os.Chown(dir, nobody, nobody)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(binary, "-test.run", "^TestNoNetwork$/^pid_namespace$", "-test.v")
	cmd.Env, cmd.Dir = append(os.Environ(), "TMPDIR="+dir, "HOME="+dir), dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "PASS: TestNoNetwork/pid_namespace") {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

// BenchmarkStart is a job's whole way through a warm supervisor, with the machine's
// network and without.
func BenchmarkStart(b *testing.B) {
	for _, apart := range []bool{false, true} {
		b.Run(map[bool]string{false: "host", true: "none"}[apart], func(b *testing.B) {
			h := spawn(b, "")
			for b.Loop() {
				s := script(b, "")
				s.Command.Path, s.Command.Args, s.Command.NoNetwork = "/bin/true", []string{"true"}, apart
				start(b, h, s)
				awaitExit(b, h)
			}
		})
	}
}
