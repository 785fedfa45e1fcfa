package local

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"offpeak/wire"
)

func getenv(m map[string]string) func(string) string { return func(k string) string { return m[k] } }

func TestPath(t *testing.T) {
	for _, tc := range []struct {
		env        map[string]string
		path, home string
	}{
		{map[string]string{"OFFPEAK_HOME": "/op", "XDG_RUNTIME_DIR": "/run/7"}, "/op/local.json", "/op"},
		{map[string]string{"XDG_RUNTIME_DIR": "/run/7", "HOME": "/h"}, "/run/7/offpeak/local.json", "/h/.local/state/offpeak"},
		{map[string]string{"XDG_RUNTIME_DIR": "not/absolute", "XDG_STATE_HOME": "/s"}, "/s/offpeak/local.json", "/s/offpeak"},
		{map[string]string{"HOME": "/h"}, "/h/.local/state/offpeak/local.json", "/h/.local/state/offpeak"},
	} {
		if got := Path(getenv(tc.env)); got != tc.path {
			t.Errorf("Path(%v) = %s, want %s", tc.env, got, tc.path)
		}
		if got := Home(getenv(tc.env)); got != tc.home {
			t.Errorf("Home(%v) = %s, want %s", tc.env, got, tc.home)
		}
	}
}

func TestWriteReadRemove(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "local.json")
	if _, err := Read(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read a missing file: %v", err)
	}
	for _, want := range []wire.Local{
		{Hubs: []string{"http://127.0.0.1:7070"}, Token: "a", PID: 1},
		{Hubs: []string{"https://127.0.0.1:7070"}, Token: "b", Fingerprint: "f", PID: 2},
	} {
		if err := Write(path, want); err != nil {
			t.Fatal(err)
		}
		got, err := Read(path)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("read: %v\n%s", err, diff)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("files left behind: %v", left)
	}
	if err := Remove(path, 1); err != nil {
		t.Error(err)
	}
	if _, err := Read(path); err != nil {
		t.Errorf("a hub that ended removed the file of its successor: %v", err)
	}
	if err := Remove(path, 2); err != nil {
		t.Error(err)
	}
	if _, err := Read(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
	if err := Remove(path, 2); err != nil {
		t.Errorf("remove again: %v", err)
	}
}

func TestReadRefusesAFileThatOthersCouldRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "local.json")
	if err := Write(path, wire.Local{Token: "a"}); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil {
		t.Error("a file that others can read was taken")
	}
}
