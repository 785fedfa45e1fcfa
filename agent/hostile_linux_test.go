package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"offpeak"
)

// TestHostileJob: a job swaps what the agent reads and writes for links to files
// of the machine, to the node's key, to what lies above, for other names of
// them, pipes and devices. The agent opens nothing through them.
func TestHostileJob(t *testing.T) {
	const secret = "SECRET-of-the-machine"
	for name, script := range map[string]string{
		"logs are links":                 `cd ..; rm -f stdout.log; ln -s "$DIR/secret" stdout.log; ln -s "$DIR/secret" stderr.log; echo later`,
		"logs are other names of a file": `cd ..; rm -f stdout.log; ln "$DIR/secret" stdout.log; ln "$DIR/secret" stderr.log`,
		"logs are pipes":                 `cd ..; rm -f stdout.log; mkfifo stdout.log stderr.log`,
		"logs are devices":               `cd ..; rm -f stdout.log; mknod stdout.log c 1 5 || exit 0; mknod stderr.log c 1 5`,
		"outputs is a link":              `rm -rf outputs; ln -s "$DIR" outputs`,
		"outputs is above":               `rm -rf outputs; ln -s ../../.. outputs`,
		"outputs hold links":             `echo fine > outputs/fine; ln -s "$DIR/secret" outputs/a; ln "$DIR/secret" outputs/b; mkfifo outputs/c; mknod outputs/d c 1 5; ln -s ../../../../node.key outputs/e; ln -s "$DIR" outputs/f`,
		"checkpoints is a link":          `rm -rf checkpoints; ln -s "$DIR" checkpoints; sleep 0.2`,
		"checkpoints is above":           `rm -rf checkpoints; ln -s ../../.. checkpoints; sleep 0.2`,
		"checkpoints hold links":         `cd checkpoints; ln -s "$DIR/secret" a; ln "$DIR/secret" b; mkfifo c; mkdir d; ln -s "$DIR/secret" d/in; sleep 0.2`,
		"work is a link":                 `cd ..; mv work elsewhere; ln -s "$DIR" work; sleep 0.2`,
		"work is above":                  `cd ..; mv work elsewhere; ln -s ../.. work; sleep 0.2`,
		"the lease is a link":            `cd ../..; mv "$OFFPEAK_LEASE" elsewhere; ln -s "$DIR" "$OFFPEAK_LEASE"; sleep 0.2`,
		"the result is a pipe":           `cd ..; mkfifo status.json; rm lease.json; mkfifo lease.json`,
		"everything is shut":             `mkdir -p a/b; echo x > a/b/c; chmod 0 a/b a; cd ..; chmod 0 work`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := realWorld(t)
			dir := t.TempDir()
			for _, path := range []string{"secret", "outputs", "step"} {
				if err := os.WriteFile(filepath.Join(dir, path), []byte(secret), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			w.join()
			a := w.run()
			key, err := os.ReadFile(filepath.Join(w.cfg.Data, "node.key"))
			if err != nil {
				t.Fatal(err)
			}
			task := work("/bin/sh")
			task.Task.Command = []string{"/bin/sh", "-c", "echo first; " + script}
			task.Task.Env = map[string]string{"DIR": dir}
			task.Task.Outputs = []string{"*"}
			task.Task.Checkpoint.Every = offpeak.Duration(1e7)
			w.hub.offer("lease_1", task)
			got := w.hub.ended("lease_1")
			if name == "the lease is a link" {
				// What it moved there is not known for a lease's: the next agent looks.
				if err := a.stop(); err != nil {
					t.Fatal(err)
				}
				w.run()
			}
			w.noLeaseFolders()
			stolen := func(what string, data []byte) {
				if bytes.Contains(data, []byte(secret)) || bytes.Contains(data, bytes.TrimSpace(key)) {
					t.Errorf("%s reached the hub", what)
				}
			}
			w.hub.with(func() {
				for _, data := range w.hub.blobs {
					stolen("a blob with a file of the machine", data)
				}
			})
			for stream, data := range got.logs {
				stolen("a log with a file of the machine as "+stream, data)
			}
			for _, path := range []string{"secret", "outputs", "step"} {
				if data, err := os.ReadFile(filepath.Join(dir, path)); string(data) != secret {
					t.Errorf("%s holds %q now, %v", path, data, err)
				}
			}
			if now, err := os.ReadFile(filepath.Join(w.cfg.Data, "node.key")); !bytes.Equal(now, key) {
				t.Errorf("the node's key changed: %v", err)
			}
			if name == "outputs hold links" {
				files := w.hub.files(got.end.Output)
				if strings.Join(files, " ") != ".offpeak .offpeak/tmp checkpoints outputs outputs/fine" || !strings.Contains(got.end.Detail, "left out") || got.end.Reason != offpeak.EndCompleted {
					t.Errorf("stored %q, end %s: %s", files, got.end.Reason, got.end.Detail)
				}
			}
			t.Logf("end: %s %s", got.end.Reason, got.end.Detail)
		})
	}
}

// TestKilledFromOutside: what kills a job's processes while its agent lives is
// reported with its signal, at once.
func TestKilledFromOutside(t *testing.T) {
	t.Parallel()
	w := realWorld(t)
	w.join()
	w.run()
	marker := "offpeak_outside_" + filepath.Base(w.cfg.Data) + t.Name()
	task := work("/bin/sh")
	task.Task.Command = []string{"/bin/sh", "-c", "echo up; sleep 600 & sleep 601 & wait"}
	task.Task.Env = map[string]string{"MARKER": marker}
	w.hub.offer("lease_1", task)
	w.hub.wait("the first line", func() bool { return len(w.hub.leases["lease_1"].logs["stdout"]) > 0 })
	for _, pid := range processes(marker) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	if got := w.hub.ended("lease_1"); got.end.Reason != offpeak.EndSignalled || got.end.Signal != "SIGKILL" || string(got.logs["stdout"]) != "up\n" {
		t.Errorf("end = %+v", got.end)
	}
}
