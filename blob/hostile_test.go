//go:build unix

package blob

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"offpeak"
	"offpeak/internal/require"
)

const secret = "the host's own secret"

// host is a folder beside the job's with what no job may read or change.
type host struct {
	t    *testing.T
	base string
	// job is the folder that is packed from or unpacked into.
	job string
	// loot is a file of the host, keys a folder of it.
	loot, keys string
}

func newHost(t *testing.T) *host {
	base := t.TempDir()
	h := &host{t: t, base: base, job: filepath.Join(base, "job"), loot: filepath.Join(base, "loot"), keys: filepath.Join(base, "keys")}
	write(t, base, "loot", secret)
	write(t, base, "keys/agent", secret)
	write(t, base, "job/own", "own")
	return h
}

func (h *host) path(name string) string { return filepath.Join(h.job, name) }

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// unchanged fails if anything of the host differs or was added.
func (h *host) unchanged() {
	h.t.Helper()
	var seen []string
	err := filepath.WalkDir(h.base, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if p == h.job {
			return fs.SkipDir
		}
		seen = append(seen, strings.TrimPrefix(p, h.base))
		if d.Type().IsRegular() {
			if data, err := os.ReadFile(p); err != nil || string(data) != secret {
				h.t.Errorf("%s was changed to %q, %v", p, data, err)
			}
		}
		return nil
	})
	h.must(err)
	if want := []string{"", "/keys", "/keys/agent", "/loot"}; !slices.Equal(seen, want) {
		h.t.Errorf("the host's folder holds %q", seen)
	}
}

// One name that no tree can hold costs what is at it, not the rest.
func TestPackLeavesOutOddNames(t *testing.T) {
	h := newHost(t)
	for _, p := range []string{"a\xff", "a\nb/inside", `c\d`, strings.Repeat("deep/", MaxDepth) + "x"} {
		write(t, h.job, p, "x")
	}
	p, err := Pack(t.Context(), openRoot(t, h.job), []string{"own", "*", "deep"}, PackOptions{LeaveOutNames: true})
	h.must(err)
	if !slices.Contains(paths(p.Manifest), "own") {
		t.Errorf("packed %q without own", paths(p.Manifest))
	}
	var got []string
	for _, s := range p.Skipped {
		got = append(got, s.String())
	}
	slices.Sort(got)
	want := []string{
		`"a\nb" left out: a stored path holds no control character and no backslash`,
		`"a\xff" left out: a stored path is valid UTF-8`,
		`"c\\d" left out: a stored path holds no control character and no backslash`,
		fmt.Sprintf("%q left out: a stored path is at most %d folders deep", strings.Repeat("deep/", MaxDepth)+"x", MaxDepth),
	}
	if !slices.Equal(got, want) {
		t.Errorf("left out\n%q, want\n%q", got, want)
	}
	// Of what was asked for and is not there, the reason is told.
	_, err = Pack(t.Context(), openRoot(t, h.job), []string{"a?"}, PackOptions{LeaveOutNames: true})
	if !errors.Is(err, offpeak.ErrNotFound) || !strings.Contains(err.Error(), "valid UTF-8") {
		t.Errorf("nothing but an odd name: %v", err)
	}
}

// TestPackHostileFolder: what a job may leave in its folder.
func TestPackHostileFolder(t *testing.T) {
	for _, c := range []struct {
		name  string
		lay   func(h *host)
		paths []string
		want  []string
		skip  string // why something was left out, "" for nothing
		err   error
	}{
		{name: "link to a file", lay: func(h *host) { h.must(os.Symlink(h.loot, h.path("out"))) }, want: []string{"own"}, skip: "symbolic link"},
		{name: "relative link", lay: func(h *host) { h.must(os.Symlink("../loot", h.path("out"))) }, want: []string{"own"}, skip: "symbolic link"},
		{name: "link to a folder", lay: func(h *host) { h.must(os.Symlink(h.keys, h.path("out"))) }, want: []string{"own"}, skip: "symbolic link"},
		{name: "link inside", lay: func(h *host) { h.must(os.Symlink("own", h.path("out"))) }, want: []string{"own"}, skip: "symbolic link"},
		{name: "link to itself", lay: func(h *host) { h.must(os.Symlink("out", h.path("out"))) }, want: []string{"own"}, skip: "symbolic link"},
		{name: "link to the root", lay: func(h *host) { h.must(os.Symlink(".", h.path("out"))) }, want: []string{"own"}, skip: "symbolic link"},
		{name: "dangling link", lay: func(h *host) { h.must(os.Symlink("/nowhere", h.path("out"))) }, want: []string{"own"}, skip: "symbolic link"},
		{name: "asked-for link", lay: func(h *host) { h.must(os.Symlink(h.loot, h.path("out"))) }, paths: []string{"out"}, err: offpeak.ErrNotFound},
		{name: "path through a link", lay: func(h *host) { h.must(os.Symlink(h.keys, h.path("out"))) }, paths: []string{"out/agent"}, err: offpeak.ErrNotFound},
		{name: "pattern through a link", lay: func(h *host) { h.must(os.Symlink(h.keys, h.path("out"))) }, paths: []string{"*/*"}, err: offpeak.ErrNotFound},
		{name: "path through a link inside", lay: func(h *host) {
			write(h.t, h.job, "real/x", "x")
			h.must(os.Symlink("real", h.path("out")))
		}, paths: []string{"out/x"}, err: offpeak.ErrNotFound},
		{name: "path that leaves", lay: func(*host) {}, paths: []string{"../loot"}, err: offpeak.ErrInvalid},
		{name: "hard link", lay: func(h *host) { h.must(os.Link(h.loot, h.path("out"))) }, want: []string{"own"}, skip: "hard link"},
		{name: "pipe", lay: func(h *host) { h.must(syscall.Mkfifo(h.path("out"), 0o644)) }, want: []string{"own"}, skip: "pipe"},
		{name: "socket", lay: func(h *host) {
			l, err := net.Listen("unix", h.path("s"))
			h.must(err)
			h.t.Cleanup(func() { _ = l.Close() })
		}, want: []string{"own"}, skip: "socket"},
		{name: "device", lay: func(h *host) {
			require.Met(h.t, syscall.Mknod(h.path("out"), syscall.S_IFCHR|0o666, 1<<8|5), "root, to make a device")
		}, want: []string{"own"}, skip: "device"},
		{name: "staging folder", lay: func(h *host) { write(h.t, h.job, stagingDir+"/x", "x") }, want: []string{"own"}},
		{name: "backslash", lay: func(h *host) { write(h.t, h.job, `..\loot`, "x") }, err: offpeak.ErrInvalid},
		{name: "line break", lay: func(h *host) { write(h.t, h.job, "a\nb", "x") }, err: offpeak.ErrInvalid},
		{name: "escape sequence", lay: func(h *host) { write(h.t, h.job, "a\x1b]0;b\a", "x") }, err: offpeak.ErrInvalid},
		{name: "broken UTF-8", lay: func(h *host) { write(h.t, h.job, "a\xff", "x") }, err: offpeak.ErrInvalid},
		{name: "broken UTF-8, not asked for", lay: func(h *host) { write(h.t, h.job, "a\xff", "x") }, paths: []string{"own"}, want: []string{"own"}},
		{name: "right to left", lay: func(h *host) { write(h.t, h.job, "\u202egnp.exe", "x") }, want: []string{"own", "\u202egnp.exe"}},
		{name: "Unicode forms", lay: func(h *host) {
			write(h.t, h.job, "e\u0301", "x")
			write(h.t, h.job, "\u00e9", "x")
		}, want: []string{"e\u0301", "own", "\u00e9"}},
		{name: "set-user-id", lay: func(h *host) {
			write(h.t, h.job, "su", "x")
			h.must(os.Chmod(h.path("su"), 0o755|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky))
		}, want: []string{"own", "su"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t)
			c.lay(h)
			p, err := Pack(t.Context(), openRoot(t, h.job), c.paths, PackOptions{RefuseLinks: true})
			if !errors.Is(err, c.err) {
				t.Fatalf("%v, want %v", err, c.err)
			}
			h.unchanged()
			if err != nil {
				return
			}
			if got := paths(p.Manifest); !slices.Equal(got, c.want) {
				t.Errorf("packed %q, want %q", got, c.want)
			}
			if c.skip == "" && len(p.Skipped) > 0 || c.skip != "" && (len(p.Skipped) != 1 || p.Skipped[0].Why != c.skip) {
				t.Errorf("left out %v, want a %s", p.Skipped, c.skip)
			}
			remote := newMemory()
			tree, err := Upload(t.Context(), remote, p, nil)
			if err != nil {
				t.Fatal(err)
			}
			noSecret(t, remote)
			dst := t.TempDir()
			if err := Unpack(t.Context(), remote, tree, openRoot(t, dst), UnpackOptions{}); err != nil {
				t.Fatal(err)
			}
			if c.name == "set-user-id" {
				info, err := os.Lstat(filepath.Join(dst, "su"))
				if err != nil || info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 || info.Mode()&0o100 == 0 {
					t.Errorf("mode %v, %v", info.Mode(), err)
				}
			}
		})
	}
}

func noSecret(t *testing.T, m *memory) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, data := range m.blobs {
		if strings.Contains(string(data), secret) {
			t.Fatal("the host's secret was sent")
		}
	}
}

func TestPackManyLinks(t *testing.T) {
	h := newHost(t)
	for i := range maxSkips + 50 {
		h.must(os.Symlink(h.loot, h.path(strings.Repeat("l", i+1))))
	}
	p := pack(t, h.job, PackOptions{RefuseLinks: true})
	if len(p.Skipped) != maxSkips || p.MoreSkipped != 50 {
		t.Errorf("%d listed, %d more", len(p.Skipped), p.MoreSkipped)
	}
	// The user's own folder may hold hard links: their content is packed.
	h = newHost(t)
	h.must(os.Link(h.path("own"), h.path("twin")))
	if got := paths(pack(t, h.job, PackOptions{}).Manifest); !slices.Equal(got, []string{"own", "twin"}) {
		t.Errorf("packed %q", got)
	}
}

// TestUnpackHostileTree: what a manifest or its bytes may say. Those that no
// manifest may hold at all are in TestParseManifestRefuses.
func TestUnpackHostileTree(t *testing.T) {
	one := Sum([]byte("x"))
	for name, c := range map[string]struct {
		data string
		want error
	}{
		"parent":       {form(fileForm("../loot", 1, string(one))), offpeak.ErrInvalid},
		"absolute":     {form(fileForm("/tmp/loot", 1, string(one))), offpeak.ErrInvalid},
		"link":         {form(`{"path":"own","kind":"symlink"}`), offpeak.ErrInvalid},
		"file as dir":  {form(fileForm("a", 1, string(one)), fileForm("a/b", 1, string(one))), offpeak.ErrInvalid},
		"short chunk":  {form(fileForm("a", 2, string(one))), offpeak.ErrInvalid},
		"long file":    {form(fileForm("a", int64(ChunkSize)+1, string(one), string(one))), offpeak.ErrInvalid},
		"huge":         {form(fileForm("a", int64(offpeak.GiB), slices.Repeat([]string{string(one)}, 1024)...)), offpeak.ErrTooLarge},
		"chunk gone":   {form(fileForm("a", 1, hashA)), offpeak.ErrNotFound},
		"not a tree":   {"x", offpeak.ErrInvalid},
		"own as dir":   {form(dirForm("own")), offpeak.ErrConflict},
		"own as root":  {form(dirForm("own"), fileForm("own/x", 1, string(one))), offpeak.ErrConflict},
		"other bytes":  {form(fileForm("own", 1, string(one))), offpeak.ErrConflict},
		"no such name": {form(fileForm("a\x00b", 1, string(one))), offpeak.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			remote := newMemory()
			remote.put([]byte("x"))
			tree := remote.put([]byte(c.data))
			err := Unpack(t.Context(), remote, tree, openRoot(t, h.job), UnpackOptions{Limit: offpeak.MiB * 16})
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			h.unchanged()
			entries, err := os.ReadDir(h.job)
			if err != nil || len(entries) != 1 {
				t.Errorf("the folder holds %v, %v", entries, err)
			}
			if data, err := os.ReadFile(h.path("own")); err != nil || string(data) != "own" {
				t.Errorf("own file is %q, %v", data, err)
			}
		})
	}
}

// TestUnpackHostileFolder: what may stand where a tree is unpacked.
func TestUnpackHostileFolder(t *testing.T) {
	src := t.TempDir()
	write(t, src, "out/x", "x")
	write(t, src, "y", "y")
	remote := newMemory()
	tree, err := Upload(t.Context(), remote, pack(t, src, PackOptions{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		lay  func(h *host)
	}{
		{"link for a folder", func(h *host) { h.must(os.Symlink(h.keys, h.path("out"))) }},
		{"link for a folder, inside", func(h *host) {
			h.must(os.Mkdir(h.path("real"), 0o755))
			h.must(os.Symlink("real", h.path("out")))
		}},
		{"dangling link for a folder", func(h *host) { h.must(os.Symlink("../new", h.path("out"))) }},
		{"link for a file", func(h *host) { h.must(os.Symlink(h.loot, h.path("y"))) }},
		{"relative link for a file", func(h *host) { h.must(os.Symlink("../loot", h.path("y"))) }},
		{"dangling link for a file", func(h *host) { h.must(os.Symlink("../new", h.path("y"))) }},
		{"link for a file, inside", func(h *host) { h.must(os.Symlink("own", h.path("y"))) }},
		{"file for a folder", func(h *host) { write(h.t, h.job, "out", "out") }},
		{"folder for a file", func(h *host) { write(h.t, h.job, "y/z", "z") }},
		{"pipe for a file", func(h *host) { h.must(syscall.Mkfifo(h.path("y"), 0o644)) }},
	} {
		for _, overwrite := range []bool{false, true} {
			h := newHost(t)
			c.lay(h)
			err := Unpack(t.Context(), remote, tree, openRoot(t, h.job), UnpackOptions{Overwrite: overwrite})
			if !errors.Is(err, offpeak.ErrConflict) {
				t.Errorf("%s: %v, want ErrConflict", c.name, err)
			}
			h.unchanged()
			if data, err := os.ReadFile(h.path("own")); err != nil || string(data) != "own" {
				t.Errorf("%s: own file is %q, %v", c.name, data, err)
			}
		}
	}
	// The staging folder itself.
	for _, target := range []string{"../keys", ".", "own"} {
		h := newHost(t)
		h.must(os.Symlink(target, h.path(stagingDir)))
		if err := Unpack(t.Context(), remote, tree, openRoot(t, h.job), UnpackOptions{}); err != nil {
			t.Error(err)
		}
		h.unchanged()
	}
	// A hard link to a file of the host is replaced, never written through.
	h := newHost(t)
	h.must(os.Link(h.loot, h.path("y")))
	if err := Unpack(t.Context(), remote, tree, openRoot(t, h.job), UnpackOptions{Overwrite: true}); err != nil {
		t.Error(err)
	}
	h.unchanged()
}

func TestUnpackOverwrites(t *testing.T) {
	src := t.TempDir()
	write(t, src, "f", "new")
	if err := os.Chmod(filepath.Join(src, "f"), 0o755); err != nil {
		t.Fatal(err)
	}
	remote := newMemory()
	tree, err := Upload(t.Context(), remote, pack(t, src, PackOptions{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	dst := t.TempDir()
	write(t, dst, "f", "old")
	write(t, dst, "other", "other")
	if err := Unpack(t.Context(), remote, tree, openRoot(t, dst), UnpackOptions{Overwrite: true}); err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(filepath.Join(dst, "f")); string(data) != "new" {
		t.Errorf("%q", data)
	}
	// Only the mode differs: mended, nothing fetched but the manifest.
	if err := os.Chmod(filepath.Join(dst, "f"), 0o644); err != nil {
		t.Fatal(err)
	}
	remote.calls["download"] = 0
	if err := Unpack(t.Context(), remote, tree, openRoot(t, dst), UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dst, "f")); err != nil || info.Mode().Perm() != 0o755 || remote.calls["download"] != 1 {
		t.Errorf("mode %v, %v, %d downloads", info.Mode(), err, remote.calls["download"])
	}
	if data, _ := os.ReadFile(filepath.Join(dst, "other")); string(data) != "other" {
		t.Errorf("a file that is not in the tree became %q", data)
	}
}

// swap keeps replacing a name by other things until the returned stop is called.
func swap(t *testing.T, h *host, turns ...func() error) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			_ = turns[i%len(turns)]()
		}
	})
	return func() { cancel(); wg.Wait() }
}

// put makes something under another name and then moves it to name.
func (h *host) put(name string, f func(tmp string) error) func() error {
	return func() error {
		tmp := h.path(".swap-" + name)
		_ = os.RemoveAll(tmp)
		if err := f(tmp); err != nil {
			return err
		}
		_ = os.RemoveAll(h.path(name))
		return os.Rename(tmp, h.path(name))
	}
}

const raceFor = time.Second

// TestPackRace: a job swaps files and folders for links, pipes and hard links
// while they are packed.
func TestPackRace(t *testing.T) {
	h := newHost(t)
	h.must(os.Mkdir(h.path("real"), 0o755))
	write(t, h.job, "real/agent", "decoy")
	write(t, h.job, "spare", "decoy")
	stop := swap(t, h,
		h.put("dir", func(p string) error {
			return errors.Join(os.Mkdir(p, 0o755), os.WriteFile(filepath.Join(p, "agent"), []byte("decoy"), 0o644))
		}),
		h.put("dir", func(p string) error { return os.Symlink(h.keys, p) }),
		h.put("file", func(p string) error { return os.WriteFile(p, []byte("decoy"), 0o644) }),
		h.put("file", func(p string) error { return os.Symlink(h.loot, p) }),
		h.put("file", func(p string) error { return syscall.Mkfifo(p, 0o644) }),
		h.put("file", func(p string) error { return os.Link(h.loot, p) }),
		h.put("dir", func(p string) error { return os.Symlink("real", p) }),
	)
	defer stop()
	root := openRoot(t, h.job)
	remote := newMemory()
	packed, refused := 0, 0
	for end := time.Now().Add(raceFor); time.Now().Before(end); {
		p, err := Pack(t.Context(), root, nil, PackOptions{RefuseLinks: true})
		if err == nil {
			_, err = Upload(t.Context(), remote, p, nil)
		}
		switch {
		case err == nil:
			packed++
		case errors.Is(err, ErrChanged), errors.Is(err, offpeak.ErrNotFound):
			refused++
		default:
			t.Fatal(err)
		}
	}
	stop()
	noSecret(t, remote)
	h.unchanged()
	if packed == 0 || refused == 0 {
		t.Errorf("no race: %d packed, %d refused", packed, refused)
	}
}

// TestUnpackRace: another process swaps folders for links while a tree is
// unpacked over them.
func TestUnpackRace(t *testing.T) {
	src := t.TempDir()
	write(t, src, "dir/sub/agent", "new")
	write(t, src, "dir/agent", "new")
	remote := newMemory()
	tree, err := Upload(t.Context(), remote, pack(t, src, PackOptions{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(t)
	stop := swap(t, h,
		h.put("dir", func(p string) error { return os.Mkdir(p, 0o755) }),
		h.put("dir", func(p string) error { return os.Symlink(h.keys, p) }),
		h.put("dir", func(p string) error { return os.MkdirAll(filepath.Join(p, "sub"), 0o755) }),
		h.put("dir", func(p string) error { return os.Symlink(".", p) }),
		h.put("dir/sub", func(p string) error { return os.Symlink(h.keys, p) }),
		func() error { return os.Symlink(h.loot, h.path("dir/agent")) },
	)
	defer stop()
	root := openRoot(t, h.job)
	done, refused := 0, 0
	for end := time.Now().Add(raceFor); time.Now().Before(end); {
		switch err := Unpack(t.Context(), remote, tree, root, UnpackOptions{Overwrite: true}); {
		case err == nil:
			done++
		case errors.Is(err, offpeak.ErrConflict):
			refused++
		default:
			t.Fatal(err)
		}
	}
	stop()
	h.unchanged()
	if done == 0 || refused == 0 {
		t.Errorf("no race: %d done, %d refused", done, refused)
	}
}
