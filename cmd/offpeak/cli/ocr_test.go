package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"offpeak/internal/require"
)

// The example reads its pages on a real grid, joins the texts and scores them; with a
// page that is none, the others are read all the same, and what is missing is read
// again.
func TestOCR(t *testing.T) {
	require.Tool(t, "tesseract", "tesseract-ocr")
	home := t.TempDir()
	h := startHub(t, home)
	node := []string{"--data", filepath.Join(home, "node")}
	if code, _, stderr := once(t, home, append([]string{"agent", "join", "--name", "tower", "--cpu", "4", "--memory", "4GiB"}, node...)...); code != 0 {
		t.Fatal(stderr)
	}
	agent := offpeakCommand(t, home, append([]string{"agent", "run"}, node...)...)
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = agent.Process.Signal(os.Interrupt)
		_ = agent.Wait()
	})
	score := func(out string) {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(out, "score", "score.json"))
		if err != nil {
			t.Fatal(err)
		}
		var v struct {
			Pages             int
			Characters, Words float64
		}
		if err := json.Unmarshal(data, &v); err != nil || v.Pages != 4 || v.Characters < 0.98 || v.Words < 0.95 {
			t.Errorf("score %s, %v; want four pages read", data, err)
		}
	}
	example := "../../../examples/ocr"
	out := filepath.Join(home, "out")
	code, _, stderr := once(t, home, "pipeline", "run", filepath.Join(example, "ocr.yaml"), "--out", out)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	score(out)
	book, err := os.ReadFile(filepath.Join(out, "score", "book.txt"))
	if err != nil || !strings.Contains(string(book), "Four score and seven years ago") {
		t.Errorf("the book is %q, %v", book, err)
	}

	broken := filepath.Join(home, "broken")
	if err := os.CopyFS(broken, os.DirFS(example)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(broken, "pages", "3.png"), []byte("no image"), 0o600); err != nil {
		t.Fatal(err)
	}
	out = filepath.Join(home, "nothing")
	code, _, stderr = once(t, home, "pipeline", "run", filepath.Join(broken, "ocr.yaml"), "--out", out)
	if code == 0 || !strings.Contains(stderr, "2 failed") || !strings.Contains(stderr, "read: failed: 1 of its 4 members have failed") || !strings.Contains(stderr, "score: failed") {
		t.Errorf("with a broken page: exit code %d: %s", code, stderr)
	}
	_, shown, _ := once(t, home, "pipeline", "show", "-")
	if !strings.Contains(shown, "(read) has failed in 1 of its 4 members") {
		t.Errorf("show says %s, want it to name the page", shown)
	}
	// Only that page is read again.
	if code, _, stderr = once(t, home, "pipeline", "retry", "-"); code != 0 {
		t.Errorf("retry: %s", stderr)
	}
	if code, _, _ = once(t, home, "pipeline", "wait", "-"); code == 0 {
		t.Error("the broken page was read")
	}
	if _, shown, _ = once(t, home, "ps", "--all"); !strings.Contains(shown, "1 failed") {
		t.Errorf("ps says %s, want the array of the page that was read again", shown)
	}
	if code, stdout, stderr := once(t, home, "check"); code != 0 {
		t.Errorf("check: %s%s", stdout, stderr)
	}
	h.stop()
}
