package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"offpeak"
	"offpeak/blob"
	"offpeak/internal/gridtest"
	"offpeak/internal/require"
	"offpeak/wire"
)

// A small disk: a job that fills it ends for its disk limit, input that does not
// fit is refused with both sizes before it is fetched, and all the while the
// agent beats and the disk is free again.
func TestSmallDisk(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	disk := filepath.Join(g.Dir, "agent-a")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	require.Met(t, unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64m"), "root, to mount a small disk")
	defer func() { _ = unix.Unmount(disk, unix.MNT_DETACH) }()
	a := g.StartAgent("a", "")
	free := func() offpeak.Bytes {
		var st unix.Statfs_t
		if err := unix.Statfs(disk, &st); err != nil {
			t.Fatal(err)
		}
		return offpeak.Bytes(st.Bavail) * offpeak.Bytes(st.Bsize)
	}
	atFirst := free()
	spaceIsBack := func() {
		t.Helper()
		gridtest.Eventually(t, 20*time.Second, "the space to be free again", func() error {
			if now := free(); now < atFirst-2*offpeak.MiB {
				return fmt.Errorf("%s of %s", now, atFirst)
			}
			return nil
		})
	}
	for _, script := range []string{"dd if=/dev/zero of=f bs=1M; sleep 60", "dd if=/dev/zero of=f bs=1M"} {
		spec := g.Shell("echo begin; sleep 0.3; " + script)
		// What lies on a tmpfs counts as memory too.
		spec.Requirements.Disk, spec.Requirements.Memory = 40*offpeak.MiB, 256*offpeak.MiB
		job := g.WaitState(g.Submit(spec).ID, 30*time.Second, offpeak.JobFailed, offpeak.JobSucceeded)
		if job.Reason != offpeak.EndDiskLimit || job.Attempt != 1 || !strings.Contains(job.Detail, "40MiB") {
			t.Errorf("%s ended as %s after attempt %d: %s", script, job.Reason, job.Attempt, job.Detail)
		}
		if got := g.Log(job.ID, 0, "stdout"); got != "begin\n" {
			t.Errorf("its log is %q", got)
		}
		spaceIsBack()
	}
	// More than the job asked for, and then more than the node has.
	input := upload(t, g, map[string][]byte{"big": noise(70 * offpeak.MiB)})
	spec := g.Shell("true")
	spec.Task.Input, spec.Requirements.Disk = input, 30*offpeak.MiB
	job := g.WaitState(g.Submit(spec).ID, 30*time.Second, offpeak.JobFailed, offpeak.JobSucceeded)
	if job.Reason != offpeak.EndBadInput || !strings.Contains(job.Detail, "70MiB") || !strings.Contains(job.Detail, "30MiB") {
		t.Errorf("an input over the job's disk ended as %s: %s", job.Reason, job.Detail)
	}
	spaceIsBack()
	spec.Requirements.Disk = 100 * offpeak.MiB
	id := g.Submit(spec).ID
	gridtest.Eventually(t, 20*time.Second, "the node to decline", func() error {
		list, err := g.Client.Attempts(context.Background(), id)
		if err != nil || len(list.Items) == 0 || list.Items[0].Reason == "" {
			return fmt.Errorf("attempts are %+v, %v", list.Items, err)
		}
		if l := list.Items[0]; l.Reason != offpeak.EndDeclined || !strings.Contains(l.Detail, "free on the node's disk") || !strings.Contains(l.Detail, "100MiB wanted") {
			t.Errorf("it ended as %s: %s", l.Reason, l.Detail)
		}
		return nil
	})
	if now := free(); now < atFirst-2*offpeak.MiB {
		t.Errorf("%s of %s are free after an input that was refused", now, atFirst)
	}
	gridtest.Eventually(t, 10*time.Second, "the node to say why it takes nothing", func() error {
		if n := node(t, g, a.Node); n.Availability != offpeak.NodeInUse || n.Why != offpeak.EndNodeDiskFull {
			return fmt.Errorf("it is %s: %s", n.Availability, n.Why)
		}
		return nil
	})
	cancel(t, g, id)
	g.WaitState(id, 20*time.Second, offpeak.JobCancelled)
	if n := onlineEvents(t, g, a.Node); n.offline != 0 {
		t.Errorf("the node was offline %d times", n.offline)
	}
	waitIdle(t, g, a.Node)
	a.KillNode()
}

// noise is data that no compression makes small.
func noise(size offpeak.Bytes) []byte {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	return data
}

// upload stores a tree of files on the hub.
func upload(t *testing.T, g *gridtest.Grid, files map[string][]byte) offpeak.Hash {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	packed, err := blob.Pack(context.Background(), root, []string{"."}, blob.PackOptions{})
	if err != nil {
		t.Fatalf("pack: %v", err)
	}
	hash, err := blob.Upload(context.Background(), wire.Blobs{Direct: g.Client}, packed, nil)
	if err != nil {
		t.Fatalf("upload: %v", err)
	}
	return hash
}

// A transfer that begins anew: output goes over a link whose connections break
// every few megabytes, under an agent that is killed half-way. What is stored is
// not sent again, the job has not succeeded before all is, and all is right.
func TestTransferResumes(t *testing.T) {
	t.Parallel()
	g := gridtest.Start(t, bin)
	link := g.Link()
	a := g.StartAgent("far", link.URL())
	const size = 60 * offpeak.MiB
	source := filepath.Join(g.Dir, "source")
	data := noise(size)
	if err := os.WriteFile(source, data, 0o600); err != nil {
		t.Fatal(err)
	}
	spec := g.Shell(`cp "$SOURCE" result; echo ready; until [ -e "$GO" ]; do sleep 0.05; done`)
	spec.Task.Env["SOURCE"], spec.Task.Env["GO"] = source, filepath.Join(g.Dir, "go")
	spec.Task.Outputs, spec.Requirements.Disk = []string{"result"}, 100*offpeak.MiB
	id := g.Submit(spec).ID
	waitLog(t, g, id, "ready\n")
	link.HalfClose(gridtest.ToHub, 4<<20)
	// Slow enough for a kill to fall inside.
	link.Rate(gridtest.ToHub, 8<<20)
	if err := os.WriteFile(spec.Task.Env["GO"], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	gridtest.Eventually(t, 60*time.Second, "half to be stored", func() error {
		job, err := g.Client.Job(context.Background(), id)
		if err != nil || job.State != offpeak.JobRunning {
			t.Fatalf("job is %s while its output is sent, %v", job.State, err)
		}
		if n := sizeOf(g.HubDir()); n < size/2 {
			return fmt.Errorf("%s so far", n)
		}
		return nil
	})
	a.Kill()
	stored := sizeOf(g.HubDir())
	a.Start()
	// The new agent has its own count of what it sent.
	var sent offpeak.Bytes
	gridtest.Eventually(t, 60*time.Second, "the job to succeed", func() error {
		sent = max(sent, written(a.PID()))
		job, err := g.Client.Job(context.Background(), id)
		if err != nil || job.State != offpeak.JobSucceeded {
			return fmt.Errorf("it is %s, attempt %d: %s, %v", job.State, job.Attempt, job.Detail, err)
		}
		return nil
	})
	if stored > size {
		t.Errorf("%s were stored before the kill, which fell on nothing", stored)
	}
	// What a connection's break cost may be sent twice.
	if most := size - size/2 + size/4; sent > most || sent == 0 {
		t.Errorf("the new agent sent %s, of %s, when %s were stored: at most %s are left", sent, size, stored, most)
	}
	if job, err := g.Client.Job(context.Background(), id); err != nil || job.Attempt != 1 {
		t.Errorf("job took %d attempts, %v", job.Attempt, err)
	}
	to := t.TempDir()
	if _, errs, exit := g.CLI("outputs", string(id), "--out", to); exit != 0 {
		t.Fatalf("fetch: exit %d: %s", exit, errs)
	}
	if got, err := os.ReadFile(filepath.Join(to, "result")); err != nil || sha256.Sum256(got) != sha256.Sum256(data) {
		t.Errorf("the output came back as %d other bytes, %v", len(got), err)
	}
}

// sizeOf is the length of all files below a folder.
func sizeOf(dir string) (n offpeak.Bytes) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				n += offpeak.Bytes(info.Size())
			}
		}
		return nil
	})
	return n
}

// written is how many bytes a process has written to files and sockets.
func written(pid int) (n offpeak.Bytes) {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "wchar:"); ok {
			_, _ = fmt.Sscan(rest, &n)
		}
	}
	return n
}
