package people

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"offpeak"
	"offpeak/cmd/offpeak/cli/follow"
	"offpeak/cmd/offpeak/cli/world"
)

// terminal opens a terminal: what a person types goes into keys, what they are
// shown comes out of it.
func terminal(t *testing.T) (keys, tty *os.File) {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keys.Close() })
	if err := unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return keys, tty
}

// On a terminal the first interrupt asks: d leaves the job running, Enter goes
// on, c cancels it.
func TestRunInterruptedOnATerminal(t *testing.T) {
	const question = "d leaves the job running, c cancels it, Enter goes on: "
	for _, tt := range []struct {
		name      string
		answers   []string
		cancelled int
		said      string
	}{
		{"leave", []string{"d\n"}, 0, "left running; go on with: offpeak logs -f job_1"},
		{"cancel", []string{"c\n"}, 1, "cancelled: The job was cancelled."},
		{"go on, then cancel", []string{"\n", "C\n"}, 1, "cancelled: The job was cancelled."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGrid(t)
			g.job = offpeak.Job{ID: "job_1", State: offpeak.JobQueued}
			env, _, _ := g.world(t)
			keys, tty := terminal(t)
			env.Stdin, env.Stderr = tty, tty
			shown := newConsole(t)
			go func() { // ends when the terminal is closed
				buf := make([]byte, 4096)
				for {
					n, err := keys.Read(buf)
					if err != nil {
						return
					}
					_, _ = shown.Write(buf[:n])
				}
			}()
			signals, ended := followed(t, env)
			shown.await("queued")
			for i, answer := range tt.answers {
				signals <- os.Interrupt
				shown.await(strings.Repeat(question+"\r\noffpeak: going on\r\n\r\noffpeak: ", i) + question)
				if _, err := keys.WriteString(answer); err != nil {
					t.Fatal(err)
				}
				if answer == "\n" {
					shown.await("going on")
				}
			}
			err := <-ended
			if code := world.Report(newConsole(t), err); code != follow.ExitCancelled {
				t.Errorf("ended with %v, exit code %d", err, code)
			}
			shown.await(tt.said)
			if len(g.ops["cancel"]) != tt.cancelled {
				t.Errorf("cancelled %d times, want %d", len(g.ops["cancel"]), tt.cancelled)
			}
		})
	}
}
