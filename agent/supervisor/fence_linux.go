package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// The fences, best first.
const (
	FencePIDNamespace = "pid_namespace"
	FenceCgroupV2     = "cgroup_v2"
	FenceCgroupV1     = "cgroup_v1"
	FenceSubreaper    = "subreaper"
	FenceProcessGroup = "process_group"
)

// fence kills and freezes a job's whole tree. That the tree is gone is never
// taken from it: all fences but the process group make the supervisor the
// parent of every orphan of the job, and then the kernel's "no child left" is
// exact.
type fence struct {
	name string
	cg   *cgroups
	// main is the job's first process and, as the leader of its own session,
	// its process group.
	main int
}

// newFence sets this process up for the fence with a name; "" is the best one
// that this process, as it was started, can have.
func newFence(name string, cg *cgroups) (*fence, []string, error) {
	f := &fence{name: name, cg: cg}
	if name == "" {
		switch {
		case os.Getpid() == 1:
			f.name = FencePIDNamespace
		case cg.v2 != "":
			f.name = FenceCgroupV2
		case len(cg.v1) > 0:
			f.name = FenceCgroupV1
		default:
			f.name = FenceSubreaper
		}
	}
	var warnings []string
	switch f.name {
	case FencePIDNamespace:
		if os.Getpid() != 1 {
			return nil, nil, fmt.Errorf("fence by %s: this is not the first process of a namespace", f.name)
		}
		if err := mountProc(); err != nil {
			warnings = append(warnings, "jobs see the machine's /proc: "+err.Error())
		}
	case FenceCgroupV2:
		if cg.v2 == "" {
			return nil, nil, fmt.Errorf("fence by %s: no group that can be written and killed", f.name)
		}
	case FenceCgroupV1:
		if len(cg.v1) == 0 {
			return nil, nil, fmt.Errorf("fence by %s: no group that can be written", f.name)
		}
	case FenceSubreaper, FenceProcessGroup:
	default:
		return nil, nil, fmt.Errorf("fence by %q: no such fence", f.name)
	}
	if f.name != FencePIDNamespace {
		warnings = append(warnings, "no PID namespace: what a job leaves in the background may survive if its supervisor is killed")
	}
	if f.name == FenceProcessGroup {
		return f, append(warnings, "fenced by process group alone: what leaves the group is not killed"), nil
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil && f.name == FenceSubreaper {
		return nil, nil, fmt.Errorf("fence by %s: %w", f.name, err)
	}
	return f, warnings, nil
}

// mountProc gives the namespace a /proc of its own, so that a job sees its own
// processes and no others.
func mountProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

// attr is how the job's first process is born.
func (f *fence) attr() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setsid: true}
	if f.name != FencePIDNamespace {
		a.Pdeathsig = syscall.SIGKILL
	}
	if f.cg.fd != nil {
		a.UseCgroupFD, a.CgroupFD = true, int(f.cg.fd.Fd())
	}
	return a
}

// list finds the job's processes where no kernel object holds them all.
func (f *fence) list() []proc {
	self := os.Getpid()
	found := descendants(self)
	if f.name != FenceCgroupV1 {
		return found
	}
	var more []proc
	for _, dir := range f.cg.v1 {
		for _, pid := range members(dir) {
			if p, ok := readProc(pid); ok && pid != self {
				more = append(more, p)
			}
		}
	}
	return union(found, more)
}

// kill sends SIGKILL to the whole tree once. The caller repeats it until no
// child is left.
func (f *fence) kill() error {
	switch f.name {
	case FencePIDNamespace:
		// From the first process of a namespace this reaches all of it, at once.
		if err := unix.Kill(-1, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill the namespace: %w", err)
		}
		return nil
	case FenceCgroupV2:
		if err := put(f.cg.v2, "cgroup.kill", "1"); err != nil {
			return fmt.Errorf("kill the group: %w", err)
		}
		// A job with the right to may have moved out of its group.
		return killAll(f.list)
	case FenceProcessGroup:
		if err := unix.Kill(-f.main, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill the process group: %w", err)
		}
		return nil
	default:
		return killAll(f.list)
	}
}

// freeze stops the tree or lets it go on. The v1 freezer is not used: a tree
// frozen in it can't be killed, not even by the end of its namespace.
func (f *fence) freeze(frozen bool) error {
	sig, value := unix.SIGCONT, "0"
	if frozen {
		sig, value = unix.SIGSTOP, "1"
	}
	// Stop signals stop a whole group or namespace under one lock of the kernel.
	switch {
	case f.cg.v2 != "" && f.name != FenceProcessGroup:
		return put(f.cg.v2, "cgroup.freeze", value)
	case f.name == FencePIDNamespace:
		return unix.Kill(-1, sig)
	case f.name == FenceProcessGroup:
		return unix.Kill(-f.main, sig)
	case frozen:
		return stopAll(f.list)
	default:
		signalAll(f.list, sig)
		return nil
	}
}

// Remove takes away what the supervisor in dir left when it was killed: the
// processes in its groups, the groups, its socket. It is harmless when there
// is nothing, and must not be called while that supervisor lives.
func Remove(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("remove supervisor: %w", err)
	}
	own, err := ownGroups()
	if err != nil {
		return err
	}
	var errs []error
	for c, m := range own {
		group := filepath.Join(m.point, groupName(dir))
		if _, err := os.Stat(group); err != nil {
			continue
		}
		if c == "" {
			_ = put(group, "cgroup.freeze", "0")
			_ = put(group, "cgroup.kill", "1")
		} else {
			_ = killAll(func() []proc {
				var out []proc
				for _, pid := range members(group) {
					if p, ok := readProc(pid); ok && pid != os.Getpid() {
						out = append(out, p)
					}
				}
				return out
			})
		}
		errs = append(errs, removeGroup(group))
	}
	if err := os.Remove(filepath.Join(dir, socketName)); err != nil && !os.IsNotExist(err) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// removeGroup removes a group whose last processes are just dying.
func removeGroup(dir string) error {
	var err error
	for range 200 {
		if err = os.Remove(dir); err == nil || os.IsNotExist(err) {
			return nil
		}
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 5e6}, nil)
	}
	return err
}
