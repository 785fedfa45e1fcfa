package blob

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"offpeak"
)

var t0 = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)

// folder writes files of n chunks that are all different.
func folder(t testing.TB, chunks ...int) string {
	dir := t.TempDir()
	for i, n := range chunks {
		data := make([]byte, n*int(ChunkSize)+17*i)
		_, _ = rand.Read(data)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%02d", i)), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestUploadSendsEachBlobOnceAndResumes(t *testing.T) {
	dir := folder(t, 3, 2, 0, 1)
	p := pack(t, dir, PackOptions{})
	remote := newMemory()
	broken := errors.New("no")
	n := 0
	remote.fail = func(call string, _ offpeak.Hash) error {
		if call == "upload" {
			if n++; n > 4 {
				return broken
			}
		}
		return nil
	}
	if _, err := Upload(t.Context(), remote, p, nil); !errors.Is(err, broken) {
		t.Fatalf("%v, want the remote's error", err)
	}
	sent := len(remote.uploads)
	if sent != 4 || len(remote.trees) != 0 {
		t.Fatalf("%d blobs sent, %d trees", sent, len(remote.trees))
	}
	remote.fail = nil
	var last, total offpeak.Bytes
	tree, err := Upload(t.Context(), remote, p, func(done, all offpeak.Bytes) {
		if done < last {
			t.Errorf("progress went back from %d to %d", last, done)
		}
		last, total = done, all
	})
	if err != nil || !remote.trees[tree] || tree != p.Tree {
		t.Fatal(tree, err)
	}
	if last != total || total == 0 {
		t.Errorf("progress ended at %d of %d", last, total)
	}
	all := slices.Sorted(slices.Values(remote.uploads))
	if len(slices.Compact(slices.Clone(all))) != len(all) || len(all) != len(p.Manifest.Chunks())+1 {
		t.Errorf("%d uploads of %d blobs", len(all), len(p.Manifest.Chunks())+1)
	}
	before := len(remote.uploads)
	if _, err := Upload(t.Context(), remote, p, nil); err != nil || len(remote.uploads) != before {
		t.Errorf("a second upload sent %d blobs, %v", len(remote.uploads)-before, err)
	}
}

func TestUploadAsksInBatches(t *testing.T) {
	dir := t.TempDir()
	for i := range 2100 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), fmt.Append(nil, i), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	remote := newMemory() // refuses more than 1000 at once
	if _, err := Upload(t.Context(), remote, pack(t, dir, PackOptions{}), nil); err != nil {
		t.Fatal(err)
	}
	if remote.calls["missing"] != 3 {
		t.Errorf("asked %d times", remote.calls["missing"])
	}
}

func TestUploadAgainAfterCollection(t *testing.T) {
	p := pack(t, folder(t, 1, 1), PackOptions{})
	remote := newMemory()
	remote.fail = func(call string, _ offpeak.Hash) error {
		if call == "commit" && remote.calls["commit"] == 1 {
			delete(remote.blobs, p.Manifest.Chunks()[0])
		}
		return nil
	}
	if _, err := Upload(t.Context(), remote, p, nil); err != nil {
		t.Fatal(err)
	}
	remote.fail = func(call string, _ offpeak.Hash) error {
		if call == "commit" {
			return offpeak.ErrBlobMissing
		}
		return nil
	}
	if _, err := Upload(t.Context(), remote, p, nil); !errors.Is(err, offpeak.ErrBlobMissing) {
		t.Fatalf("%v, want ErrBlobMissing at last", err)
	}
}

func TestTransferWaitsForAnUnavailableRemote(t *testing.T) {
	src := folder(t, 1, 2)
	p := pack(t, src, PackOptions{})
	dst := openRoot(t, t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		remote := newMemory()
		down := time.Now().Add(time.Hour)
		remote.fail = func(string, offpeak.Hash) error {
			if time.Now().Before(down) {
				return fmt.Errorf("dial: %w", offpeak.ErrUnavailable)
			}
			return nil
		}
		tree, err := Upload(t.Context(), remote, p, nil)
		if err != nil {
			t.Fatal(err)
		}
		if calls := remote.calls["missing"]; calls < 100 || calls > 3000 {
			t.Errorf("%d calls in an hour", calls)
		}
		down = time.Now().Add(time.Minute)
		if err := Unpack(t.Context(), remote, tree, dst, UnpackOptions{}); err != nil {
			t.Fatal(err)
		}
		down = time.Now().Add(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = Upload(ctx, remote, p, nil)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, offpeak.ErrUnavailable) {
			t.Errorf("%v, want both that time ran out and why", err)
		}
	})
}

func TestTransferDoesNotRetryARefusal(t *testing.T) {
	p := pack(t, folder(t, 1), PackOptions{})
	for _, want := range []error{offpeak.ErrQuota, offpeak.ErrForbidden, offpeak.ErrStaleLease, offpeak.ErrStorage} {
		remote := newMemory()
		remote.fail = func(call string, _ offpeak.Hash) error {
			if call == "upload" {
				return want
			}
			return nil
		}
		if _, err := Upload(t.Context(), remote, p, nil); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
		if remote.calls["upload"] > 2 {
			t.Errorf("%v: %d uploads of 2 blobs", want, remote.calls["upload"])
		}
	}
}

func TestUnpackTornBytes(t *testing.T) {
	p := pack(t, folder(t, 2), PackOptions{})
	remote := newMemory()
	tree, err := Upload(t.Context(), remote, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	torn := 1
	remote.bend = func(h offpeak.Hash, data []byte) []byte {
		if h != tree && torn > 0 {
			torn--
			return data[:len(data)/2]
		}
		return data
	}
	if err := Unpack(t.Context(), remote, tree, openRoot(t, t.TempDir()), UnpackOptions{}); err != nil {
		t.Errorf("torn once: %v", err)
	}
	torn = 1 << 30
	dir := t.TempDir()
	err = Unpack(t.Context(), remote, tree, openRoot(t, dir), UnpackOptions{})
	if !errors.Is(err, offpeak.ErrHashMismatch) {
		t.Errorf("torn always: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "f00")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a file of wrong bytes has its name")
	}
}

func TestUnpackGoesOn(t *testing.T) {
	src := folder(t, 1, 1, 1, 1, 1, 1)
	remote := newMemory()
	tree, err := Upload(t.Context(), remote, pack(t, src, PackOptions{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	broken := errors.New("no")
	var n atomic.Int32
	remote.fail = func(call string, _ offpeak.Hash) error {
		if call == "download" && n.Add(1) > 7 {
			return broken
		}
		return nil
	}
	if err := Unpack(t.Context(), remote, tree, openRoot(t, dir), UnpackOptions{}); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	kept, err := os.ReadDir(dir)
	if err != nil || len(kept) == 0 {
		t.Fatalf("nothing was kept: %v", err)
	}
	remote.fail, remote.calls["download"] = nil, 0
	if err := Unpack(t.Context(), remote, tree, openRoot(t, dir), UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	if all := 12; remote.calls["download"] > all-len(kept) {
		t.Errorf("%d downloads with %d files kept", remote.calls["download"], len(kept))
	}
	if pack(t, dir, PackOptions{}).Tree != tree {
		t.Error("the folder differs")
	}
}

func TestUnpackBounds(t *testing.T) {
	src := t.TempDir()
	write(t, src, "a", "12345")
	write(t, src, "b", "12345")
	remote := newMemory()
	tree, err := Upload(t.Context(), remote, pack(t, src, PackOptions{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []UnpackOptions{{Limit: 9}, {Entries: 1}} {
		dir := t.TempDir()
		remote.calls["download"] = 0
		if err := Unpack(t.Context(), remote, tree, openRoot(t, dir), o); !errors.Is(err, offpeak.ErrTooLarge) {
			t.Errorf("%+v: %v", o, err)
		}
		if entries, _ := os.ReadDir(dir); len(entries) != 0 || remote.calls["download"] != 1 {
			t.Errorf("%+v: %d entries, %d downloads before it was refused", o, len(entries), remote.calls["download"])
		}
	}
	if err := Unpack(t.Context(), remote, tree, openRoot(t, t.TempDir()), UnpackOptions{Limit: 10, Entries: 2}); err != nil {
		t.Error(err)
	}
}

// TestPackUnpackIsIdentity: whatever a folder holds, it comes back the same.
func TestPackUnpackIsIdentity(t *testing.T) {
	name := rapid.StringMatching(`[a-c]{1,2}( |\.|é|🚀|-)?[x-z]?`)
	rapid.Check(t, func(r *rapid.T) {
		src, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			r.Fatal(err)
		}
		dst := src + ".out"
		if err := os.Mkdir(dst, 0o755); err != nil {
			r.Fatal(err)
		}
		want := map[string]string{}
		for range rapid.IntRange(0, 8).Draw(r, "files") {
			p := filepath.Join(rapid.SliceOfN(name, 1, 4).Draw(r, "path")...)
			size := rapid.SampledFrom([]int{0, 1, 100, 1000, 4096, 5000, 7000, int(ChunkSize) - 1, int(ChunkSize), int(ChunkSize) + 1}).Draw(r, "size")
			data := bytes.Repeat([]byte{byte(rapid.IntRange(0, 3).Draw(r, "byte"))}, size)
			perm := rapid.SampledFrom([]os.FileMode{0o644, 0o755, 0o600, 0o700}).Draw(r, "perm")
			full := filepath.Join(src, p)
			if os.MkdirAll(filepath.Dir(full), 0o755) != nil {
				continue // a file is in the way
			}
			if os.WriteFile(full, data, perm) != nil {
				continue // a folder is in the way
			}
			want[p] = string(data)
		}
		remote := newMemory()
		from, to := openRoot(t, src), openRoot(t, dst)
		p, err := Pack(context.Background(), from, nil, PackOptions{})
		if err != nil {
			r.Fatal(err)
		}
		tree, err := Upload(context.Background(), remote, p, nil)
		if err != nil {
			r.Fatal(err)
		}
		if err := Unpack(context.Background(), remote, tree, to, UnpackOptions{}); err != nil {
			r.Fatal(err)
		}
		for p, data := range want {
			got, err := os.ReadFile(filepath.Join(dst, p))
			if err != nil || string(got) != data {
				r.Fatalf("%q differs: %v", p, err)
			}
		}
		again, err := Pack(context.Background(), to, nil, PackOptions{})
		if err != nil || again.Tree != tree {
			r.Fatalf("packed again: %v, %v", paths(again.Manifest), err)
		}
	})
}
