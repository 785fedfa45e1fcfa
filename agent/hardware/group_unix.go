//go:build unix

package hardware

import (
	"os/exec"
	"syscall"
)

// ownGroup makes a kill reach what a wrapper started, too.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
