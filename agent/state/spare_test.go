package state_test

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"offpeak"
	"offpeak/agent/state"
	"offpeak/wire"
)

func laid(t *testing.T) (state.Folder, *state.Lease) {
	t.Helper()
	f, err := state.Open(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l := lay(t, f, "lease_1")
	must(t, l.Begin(state.Journal{Lease: "lease_1", Supervisor: "s"}))
	return f, l
}

func lay(t *testing.T, f state.Folder, id offpeak.LeaseID) *state.Lease {
	t.Helper()
	l := f.Hold(id)
	t.Cleanup(l.Close)
	must(t, l.Lay())
	return l
}

// tree lists what is below a folder.
func tree(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		names = append(names, rel)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var fresh = []string{".", "work", "work/.offpeak", "work/.offpeak/tmp", "work/checkpoints", "work/outputs"}

// A job's folders serve the next one, without anything of the first in them.
func TestFoldersAreUsedAgain(t *testing.T) {
	f, l := laid(t)
	dir := l.Path()
	for _, name := range []string{"stdout.log", "status.json", "work/a", "work/outputs/b", "work/checkpoints/c", "work/.offpeak/notice.json", "work/.offpeak/tmp/.d"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("left behind"), 0o600))
	}
	must(t, os.MkdirAll(filepath.Join(dir, "work/deep/er"), 0o700))
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "work/link")))
	before, err := os.Stat(filepath.Join(dir, "work"))
	must(t, err)
	l.Retire()
	if _, err := os.Lstat(dir); err == nil {
		t.Error("the lease's folder is still there")
	}
	lay(t, f, "lease_2")
	after, err := os.Stat(filepath.Join(f.Hold("lease_2").Path(), "work"))
	must(t, err)
	if !os.SameFile(before, after) {
		t.Error("the folder was made anew")
	}
	if got, want := tree(t, f.Hold("lease_2").Path()), append([]string{"lease.json"}, fresh...); !slices.Equal(got, sorted(want)) {
		t.Errorf("the next job finds %v, want %v", got, want)
	}
	if data, err := os.ReadFile(filepath.Join(f.Hold("lease_2").Path(), "lease.json")); err != nil || len(bytes.TrimSpace(data)) != 0 {
		t.Errorf("the journal holds %q, %v", data, err)
	}
	// An agent that dies now left nothing begun.
	if js, err := f.Journals(); err != nil || len(js) != 0 {
		t.Errorf("Journals = %v, %v", js, err)
	}
}

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	return s
}

// A folder that a job altered serves nobody again, and nothing outside of it is
// touched.
func TestAlteredFoldersAreRemoved(t *testing.T) {
	host := filepath.Join(t.TempDir(), "host")
	must(t, os.WriteFile(host, []byte("the host's"), 0o600))
	replace := func(name string, with func(path string) error) func(string) error {
		return func(dir string) error {
			path := filepath.Join(dir, name)
			if err := os.RemoveAll(path); err != nil {
				return err
			}
			return with(path)
		}
	}
	for what, alter := range map[string]func(dir string) error{
		"mode":          func(dir string) error { return os.Chmod(filepath.Join(dir, "work/outputs"), 0o755) },
		"sticky":        func(dir string) error { return os.Chmod(filepath.Join(dir, "work"), fs.ModeSticky|0o700) },
		"gone":          replace("work/checkpoints", func(string) error { return nil }),
		"a file":        replace("work/checkpoints", func(p string) error { return os.WriteFile(p, nil, 0o700) }),
		"a link":        replace("work/outputs", func(p string) error { return os.Symlink(".offpeak/tmp", p) }),
		"a link out":    replace("work", func(p string) error { return os.Symlink(filepath.Dir(host), p) }),
		"journal link":  replace("lease.json", func(p string) error { return os.Symlink(host, p) }),
		"journal other": replace("lease.json", func(p string) error { return os.Link(host, p) }),
		"journal pipe":  replace("lease.json", func(p string) error { return unix.Mkfifo(p, 0o600) }),
		"attribute": func(dir string) error {
			err := unix.Setxattr(filepath.Join(dir, "work"), "user.left", []byte("behind"), 0)
			if err == unix.ENOTSUP {
				return os.Chmod(filepath.Join(dir, "work"), 0o777)
			}
			return err
		},
	} {
		f, l := laid(t)
		dir := l.Path()
		must(t, alter(dir))
		l.Retire()
		if spare, err := os.ReadDir(f.At("spare")); err != nil || len(spare) != 0 {
			t.Errorf("%s: the folder was kept: %v, %v", what, spare, err)
		}
		if _, err := os.Lstat(dir); err == nil {
			t.Errorf("%s: the folder is still there", what)
		}
		if data, err := os.ReadFile(host); err != nil || string(data) != "the host's" {
			t.Errorf("%s: the host's file is %q, %v", what, data, err)
		}
		lay(t, f, "lease_2")
		if got := tree(t, f.Hold("lease_2").Path()); !slices.Equal(got, fresh) {
			t.Errorf("%s: the next job finds %v", what, got)
		}
	}
}

// What another agent kept may be half emptied: it is not used.
func TestSparesDoNotOutliveTheirAgent(t *testing.T) {
	f, l := laid(t)
	l.Retire()
	unlock, err := f.Lock()
	must(t, err)
	defer unlock()
	if spare, err := os.ReadDir(f.At("spare")); err != nil || len(spare) != 0 {
		t.Errorf("spares are %v, %v", spare, err)
	}
}

// Few are kept, whatever ends at once.
func TestSparesAreFew(t *testing.T) {
	f, l := laid(t)
	l.Retire()
	for i := range 20 {
		id := offpeak.LeaseID("lease_" + string(rune('a'+i)))
		one := f.Hold(id)
		must(t, one.Make())
		one.Retire()
	}
	many := make([]*state.Lease, 20)
	for i := range many {
		id := offpeak.LeaseID("lease_" + string(rune('a'+i)))
		many[i] = lay(t, f, id)
		must(t, many[i].Begin(state.Journal{Lease: id, Supervisor: "s"}))
	}
	for _, l := range many {
		l.Retire()
	}
	if spare, err := os.ReadDir(f.At("spare")); err != nil || len(spare) != 8 {
		t.Errorf("%d spares, %v; want 8", len(spare), err)
	}
	if left, err := os.ReadDir(f.At("leases")); err != nil || len(left) != 0 {
		t.Errorf("%d lease folders are left, %v", len(left), err)
	}
}

// TestJournalIsBegunOrNot: what the agent after this one finds is the lease that
// was begun, whatever the lease before it left in the file, and nothing of one
// that has ended, was settled or never wholly written.
func TestJournalIsBegunOrNot(t *testing.T) {
	f, l := laid(t)
	long := state.Journal{Lease: "lease_1", Supervisor: "s", Work: wire.Work{JobName: strings.Repeat("secret", 100)}}
	must(t, l.Begin(long))
	found := func(want ...offpeak.LeaseID) {
		t.Helper()
		var got []offpeak.LeaseID
		js, err := f.Journals()
		must(t, err)
		for _, j := range js {
			got = append(got, j.Lease)
		}
		if !slices.Equal(got, want) {
			t.Errorf("leases found: %v, want %v", got, want)
		}
	}
	found("lease_1")
	l.Settle()
	if data, err := l.Read("lease.json"); err != nil || bytes.Contains(data, []byte("secret")) {
		t.Errorf("a settled journal holds %q, %v", data, err)
	}
	l.Retire()
	l = lay(t, f, "lease_2")
	must(t, l.Begin(state.Journal{Lease: "lease_2", Supervisor: "s"}))
	found("lease_2")
	// Killed before the last byte to be written: the first.
	file, err := os.OpenFile(filepath.Join(l.Path(), "lease.json"), os.O_WRONLY, 0)
	must(t, err)
	_, err = file.WriteAt([]byte(" "), 0)
	must(t, errors.Join(err, file.Close()))
	found()
	if _, err := os.Lstat(l.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder of a lease that was not begun is there: %v", err)
	}
}

// TestLinkedFolderIsNeither: of a link nothing is said, so that nobody takes
// what it leads to for empty.
func TestLinkedFolderIsNeither(t *testing.T) {
	_, l := laid(t)
	if l.Holds("work", "outputs") || !l.Empty("work", "outputs") {
		t.Error("an empty folder is not")
	}
	must(t, os.WriteFile(filepath.Join(l.Path(), "work/outputs/a"), nil, 0o600))
	if !l.Holds("work", "outputs") || l.Empty("work", "outputs") {
		t.Error("a folder that holds a file does not")
	}
	must(t, os.Symlink("outputs", filepath.Join(l.Path(), "work/link")))
	if l.Holds("work", "link") || l.Empty("work", "link") {
		t.Error("a link was followed")
	}
}
