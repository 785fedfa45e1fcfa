package pgtest

import (
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
)

// keeper is a process that outlives the test's and removes a server: every
// process that works below its folder, the shared memory that a killed
// postmaster leaves, and the folder.
type keeper struct {
	cmd    *exec.Cmd
	pipe   io.Closer
	output *strings.Builder
}

// script waits for the end of its input, which comes when the pipe's other end
// is closed, by the test or, at the end of the test's process, by the kernel.
//
// A postmaster that is asked with SIGQUIT leaves at once and takes its shared
// memory with it. One that does not heed it is killed with the rest, and leaves
// the id of its shared memory in the seventh line of its file, and what
// libfaketime keeps by its process id.
const script = `
dir=$1
cat >/dev/null
processes() { find /proc/[0-9]*/cwd -maxdepth 0 \( -lname "$dir" -o -lname "$dir/*" \) 2>/dev/null | cut -d/ -f3; }
quit=$(head -n 1 "$dir/data/postmaster.pid" 2>/dev/null)
for round in $(seq 200); do
	left=$(processes)
	[ -n "$left" ] || break
	if [ "$round" -gt 20 ]; then
		kill -KILL $left
	elif [ "$round" = 1 ] && echo "$left" | grep -qx "$quit"; then
		kill -CONT $left
		kill -QUIT "$quit"
	fi
	sleep 0.05
done 2>/dev/null
memory=$(sed -n '7s/.* //p' "$dir/data/postmaster.pid" 2>/dev/null)
[ -z "$memory" ] || ipcrm -m "$memory" 2>/dev/null
[ -z "$quit" ] || rm -f "/dev/shm/faketime_shm_$quit" "/dev/shm/sem.faketime_sem_$quit"
rm -rf "$dir"
if left=$(processes) && [ -n "$left" ]; then
	echo "still there:" $left
	exit 1
fi
`

// keep starts the keeper of a folder, in a session of its own, where no signal
// for the test's process group reaches it.
func keep(dir string) (*keeper, error) {
	k := &keeper{output: new(strings.Builder)}
	k.cmd = exec.Command("/bin/sh", "-c", script, "keeper", dir)
	k.cmd.Dir = "/"
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := k.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start keeper: %w", err)
	}
	k.pipe = pipe
	k.cmd.Stdout, k.cmd.Stderr = k.output, k.output
	if err := k.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start keeper: %w", err)
	}
	return k, nil
}

// dismiss tells the keeper that it is time, and waits until it is done.
func (k *keeper) dismiss() error {
	_ = k.pipe.Close()
	if err := k.cmd.Wait(); err != nil {
		return fmt.Errorf("remove server: %w: %s", err, k.output)
	}
	return nil
}
