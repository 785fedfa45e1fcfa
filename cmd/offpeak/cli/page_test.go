package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The owner's page is a command's: it works with the hub gone and with no agent, and
// a pause is one that any later agent keeps.
func TestOwnersPage(t *testing.T) {
	home := t.TempDir()
	h := startHub(t, home)
	data := filepath.Join(home, "node")
	if code, _, stderr := once(t, home, "agent", "join", "--data", data, "--name", "tower"); code != 0 {
		t.Fatal(stderr)
	}
	agent := offpeakCommand(t, home, "agent", "run", "--data", data)
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	web := offpeakCommand(t, home, "agent", "status", "--data", data, "--web")
	out, err := web.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := web.Start(); err != nil {
		t.Fatal(err)
	}
	link := ""
	for s := bufio.NewScanner(out); link == "" && s.Scan(); {
		if text := strings.TrimSpace(s.Text()); strings.HasPrefix(text, "http://127.0.0.1:") {
			link = text
		}
	}
	base, word, ok := strings.Cut(link, "#")
	if !ok {
		t.Fatalf("the link is %q", link)
	}
	key := ""
	ask := func(method, path, body string) map[string]any {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, base+"api/"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]any{}
		if err := json.Unmarshal(text, &got); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s %s: %s %s", method, path, resp.Status, text)
		}
		return got
	}
	until := func(headline string) {
		t.Helper()
		var got map[string]any
		for range 200 {
			if got = ask("GET", "status", ""); strings.HasPrefix(fmt.Sprint(got["headline"]), headline) {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Fatalf("never %q: %v", headline, got)
	}
	key = fmt.Sprint(ask("POST", "open", `{"word":"`+word+`"}`)["key"])
	until("Ready: waits for a job")

	if err := h.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	until("Ready, but its hub can't be reached")
	if got := ask("POST", "pause", `{"until":"tomorrow"}`); !strings.HasPrefix(fmt.Sprint(got["headline"]), "Paused, until ") {
		t.Errorf("a pause until tomorrow: %v", got)
	}
	if got := ask("POST", "resume", ""); got["paused"] != false {
		t.Errorf("resumed: %v", got)
	}
	if err := agent.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = agent.Wait()
	until("No agent runs")
	if got := ask("POST", "pause", ""); got["paused"] != true || got["running"] != false {
		t.Errorf("paused without an agent: %v", got)
	}
	if err := web.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	if err := web.Wait(); err != nil {
		t.Errorf("the page's command ends with %v", err)
	}
	if code, stdout, _ := once(t, home, "agent", "status", "--data", data); code != 0 || !strings.Contains(stdout, "paused: takes no work before") {
		t.Errorf("the pause is kept: %d %s", code, stdout)
	}
}

// A status that is watched goes on until it is interrupted; as JSON it is one a line.
func TestWatchedStatus(t *testing.T) {
	home := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	env := Env{Stdin: strings.NewReader(""), Stdout: w, Stderr: io.Discard, Getenv: func(string) string { return "" }}
	ended := make(chan int, 1)
	go func() {
		ended <- Main(ctx, []string{"agent", "status", "--watch", "-o", "json", "--data", filepath.Join(home, "node")}, env)
		w.Close()
	}()
	s := bufio.NewScanner(r)
	for i := range 2 {
		if !s.Scan() || !bytes.HasPrefix(s.Bytes(), []byte(`{"running":false`)) {
			t.Fatalf("line %d: %s %v", i, s.Text(), s.Err())
		}
	}
	cancel()
	_, _ = io.Copy(io.Discard, r)
	if code := <-ended; code != 0 {
		t.Errorf("it ends with %d", code)
	}
}
