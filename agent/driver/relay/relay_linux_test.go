package relay_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"offpeak"
	"offpeak/agent/driver"
	"offpeak/agent/driver/relay"
	"offpeak/internal/require"
)

// The test binary is its own relay, and the program that runs behind it.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case relay.Command:
			os.Exit(relay.Main(os.Args[2:]))
		case "fetch":
			fetch(os.Args[2])
		}
	}
	os.Exit(m.Run())
}

// fetch gets a URL by the proxy of its environment, as most programs do.
func fetch(url string) {
	resp, err := http.Get(url)
	if err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
	_, _ = io.Copy(os.Stdout, resp.Body)
	os.Exit(7)
}

// proxy answers every request on a socket with the request's first line.
func proxy(t *testing.T, socket string) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	require.Met(t, err, "Unix sockets")
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Method, " ", r.RequestURI)
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close() })
}

type result struct {
	out    string
	code   int
	report driver.StartError
}

// behind runs a command of this binary behind a relay, in a network namespace of its
// own, as a supervisor does.
func behind(t *testing.T, flags uintptr, c driver.Command) result {
	t.Helper()
	cmd := &exec.Cmd{Path: c.Path, Args: c.Args, Dir: t.TempDir(), SysProcAttr: &syscall.SysProcAttr{Cloneflags: flags}}
	for k, v := range relay.Environment() {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.ExtraFiles = []*os.File{w}
	err = cmd.Start()
	require.Met(t, err, "root, for network namespaces")
	w.Close()
	// A job that ran leaves nobody with the report's descriptor, long before it ends.
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	endRelays(t)
	res := result{out: out.String(), code: cmd.ProcessState.ExitCode()}
	if len(data) > 0 {
		if err := json.Unmarshal(data, &res.report); err != nil {
			t.Fatalf("report %q: %v", data, err)
		}
	}
	return res
}

// endRelays ends the relays that became this process's children, as a supervisor
// ends the whole tree.
func endRelays(t *testing.T) {
	t.Helper()
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		data, _ := os.ReadFile(list)
		for _, pid := range strings.Fields(string(data)) {
			args, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			if n, err := strconv.Atoi(pid); err == nil && bytes.Contains(args, []byte("\x00--serve\x00")) {
				_ = syscall.Kill(n, syscall.SIGKILL)
				_, _ = syscall.Wait4(n, nil, 0, nil)
			}
		}
	}
}

func TestRelay(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Longer than a socket's path may be.
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep/", 3)+strings.Repeat("x", 90))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	proxy(t, fmt.Sprintf("/proc/self/fd/%d/s", d.Fd()))
	pid1 := uintptr(syscall.CLONE_NEWNET | syscall.CLONE_NEWPID)
	for _, c := range []struct {
		name  string
		flags uintptr
	}{{"beside", syscall.CLONE_NEWNET}, {"first process of a namespace", pid1}} {
		t.Run(c.name, func(t *testing.T) {
			got := behind(t, c.flags, relay.Wrap(exe, driver.Command{Path: exe, Args: []string{"job", "fetch", "http://files.example/a?b"}}, socket, []string{"192.168.1.1", "fe80::1"}))
			if got.code != 7 || got.out != "GET http://files.example/a?b" || got.report.Reason != "" {
				t.Errorf("%+v", got)
			}
		})
	}
	t.Run("not closed", func(t *testing.T) {
		got := behind(t, 0, relay.Wrap(exe, driver.Command{Path: exe, Args: []string{"job", "fetch", "x"}}, socket, nil))
		if got.code != 125 || got.report.Reason != offpeak.EndNodeError || !strings.Contains(got.report.Detail, "not closed") {
			t.Errorf("%+v", got)
		}
	})
	t.Run("no command", func(t *testing.T) {
		got := behind(t, syscall.CLONE_NEWNET, relay.Wrap(exe, driver.Command{Path: "/no/such", Args: []string{"job"}}, socket, nil))
		if got.code != 125 || got.report.Reason != offpeak.EndCommandNotFound {
			t.Errorf("%+v", got)
		}
	})
	t.Run("the agent is away", func(t *testing.T) {
		got := behind(t, syscall.CLONE_NEWNET, relay.Wrap(exe, driver.Command{Path: exe, Args: []string{"job", "fetch", "http://files.example/"}}, filepath.Join(dir, "gone"), nil))
		if got.code != 7 || !strings.Contains(got.out, "is away") {
			t.Errorf("%+v", got)
		}
	})
	t.Run("no child of the job's", func(t *testing.T) {
		// A shell that waits for all it has started ends.
		start := time.Now()
		got := behind(t, syscall.CLONE_NEWNET, relay.Wrap(exe, driver.Command{Path: "/bin/sh", Args: []string{"sh", "-c", "cat /proc/$$/task/$$/children; wait; echo $?"}}, socket, nil))
		if strings.TrimSpace(got.out) == "" || len(strings.Fields(got.out)) > 2 || time.Since(start) > 10*time.Second {
			t.Errorf("%+v", got)
		}
	})
}
