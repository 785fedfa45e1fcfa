package hub_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/internal/require"
	"offpeak/wire"
)

// A hub whose disk is full refuses and loses nothing: what it acknowledged is
// there, what it refused is not, a job that runs meanwhile goes on, and with room
// everything works again.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	require.Met(t, syscall.Mount("offpeak-test", dir, "tmpfs", 0, "size=6m"), "root, to mount a small disk")
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	must(t, os.WriteFile(ballast, make([]byte, 1<<20), 0o600))
	synctest.Test(t, func(t *testing.T) {
		g := &grid{t: t, folder: dir}
		g.begin()
		defer g.stop()
		a := g.join("one")
		running := g.submit(small())
		d := a.offered()
		a.accept(d)
		a.run(d)
		jobs, blobs := map[offpeak.JobID]bool{running: true}, map[offpeak.Hash][]byte{}
		refused := map[string]int{}
		var lost []offpeak.Hash
		beats := 0
		for i := 0; refused["submit"] < 50 || refused["put"] < 50; i++ {
			if i > 20_000 {
				t.Fatalf("the disk never filled: %v", refused)
			}
			j, err := g.hub.Submit(t.Context(), g.op(), g.account, small())
			if err == nil {
				jobs[j.ID] = true
			}
			g.storage(err, "submit", refused)
			data := bytes.Repeat([]byte(fmt.Sprintf("blob %6d ", i)), 500)
			hash, err := g.put(data)
			if err == nil {
				blobs[hash] = data
			} else {
				lost = append(lost, hash)
			}
			g.storage(err, "put", refused)
			if i%20 == 0 { // silence is the disk's here, not the node's
				time.Sleep(5 * time.Second)
				sent := time.Now()
				if _, err := g.hub.Heartbeat(t.Context(), a.id, a.heartbeat(d.Lease)); err == nil {
					a.ack = sent
					beats++
				} else {
					g.storage(err, "beat", refused)
				}
			}
		}
		t.Logf("%d jobs, %d blobs and %d beats acknowledged; refused %v", len(jobs), len(blobs), beats, refused)
		must(t, os.Remove(ballast))
		time.Sleep(5 * time.Second)
		a.beat(d.Lease)
		j, err := g.hub.Submit(t.Context(), g.op(), g.account, small())
		must(t, err)
		jobs[j.ID] = true
		data := []byte("once there is room")
		hash, err := g.put(data)
		must(t, err)
		blobs[hash] = data
		synctest.Wait()
		check := func(when string) {
			counts, err := g.store.CountJobs(t.Context(), "")
			must(t, err)
			stored := 0
			for _, n := range counts {
				stored += n
			}
			if stored != len(jobs) {
				t.Errorf("%s %d jobs are stored, %d were acknowledged", when, stored, len(jobs))
			}
			for id := range jobs {
				if _, err := g.store.Job(t.Context(), "", id); err != nil {
					t.Errorf("%s job %s: %v", when, id, err)
				}
			}
			for hash, want := range blobs {
				r, _, err := g.hub.Data().Open(t.Context(), g.account, hash)
				must(t, err)
				got, err := io.ReadAll(r)
				_ = r.Close()
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s blob %s: %d bytes, %v", when, hash, len(got), err)
				}
			}
			for _, hash := range lost {
				if has, err := g.blobs.Has(t.Context(), hash); has || err != nil {
					t.Errorf("%s the refused blob %s is there: %v, %v", when, hash, has, err)
				}
			}
			if j := g.job(running); j.State != offpeak.JobRunning || j.Attempt != 1 {
				t.Errorf("%s the running job is %s (%s), attempt %d", when, j.State, j.Reason, j.Attempt)
			}
			g.sound()
		}
		check("with room again")
		g.stop()
		g.start()
		check("after a restart")
	})
}

// storage counts a refusal and fails the test when it is another than that of
// a full disk.
func (g *grid) storage(err error, what string, refused map[string]int) {
	g.t.Helper()
	if err == nil {
		return
	}
	refused[what]++
	if !errors.Is(err, offpeak.ErrStorage) || wire.ProblemOf(err).Status != 503 {
		g.t.Fatalf("%s on a full disk = %v", what, err)
	}
}
