package supervisor

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"offpeak"
)

// cgroups are the groups of one supervisor: one in the v2 hierarchy and one in
// each v1 hierarchy that has a controller we need. They are made once and
// serve job after job; only limits that changed are written again, since
// making a group costs more than starting a process.
type cgroups struct {
	// v2 is the unified group, "" without one; fd is it, opened.
	v2 string
	fd *os.File
	// v1 maps a controller to its group.
	v1 map[string]string
	// has names the controllers whose limits can be set, and where.
	has map[string]string
	set Limits
	// ooms is an open handle on the file that counts kills for lack of memory.
	ooms     *os.File
	warnings []string
}

// limited are the controllers that must all be there for limits to hold.
var limited = [...]string{"cpu", "memory", "pids"}

// cgroupMount is one mounted hierarchy.
type cgroupMount struct {
	point, root string
	v2          bool
	controllers []string
}

// groupName names the groups of the supervisor in dir: the same after a crash,
// so that whoever cleans up finds them.
func groupName(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return "offpeak-" + hex.EncodeToString(sum[:8])
}

// ownGroups lists, for every mounted hierarchy, the folder of the group that
// this process is in.
func ownGroups() (map[string]cgroupMount, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	return parseGroups(string(mounts), string(own)), nil
}

// parseGroups joins mountinfo with /proc/self/cgroup; the key is a controller,
// or "" for the unified hierarchy, the value's point the group's folder.
func parseGroups(mountinfo, self string) map[string]cgroupMount {
	paths := map[string]string{}
	for line := range strings.Lines(self) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		for c := range strings.SplitSeq(f[1], ",") {
			paths[c] = f[2]
		}
	}
	out := map[string]cgroupMount{}
	sc := bufio.NewScanner(strings.NewReader(mountinfo))
	for sc.Scan() {
		before, after, ok := strings.Cut(sc.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 6 || len(right) < 3 {
			continue
		}
		m := cgroupMount{point: left[4], root: left[3], v2: right[0] == "cgroup2"}
		switch {
		case m.v2:
			m.controllers = []string{""}
		case right[0] == "cgroup":
			m.controllers = strings.Split(right[2], ",")
		default:
			continue
		}
		for _, c := range m.controllers {
			path, in := paths[c]
			if !in {
				continue
			}
			// Inside a container the mount shows a part of the hierarchy.
			rel, err := filepath.Rel(m.root, path)
			if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
				rel = "."
			}
			m.point = filepath.Join(left[4], rel)
			if m.v2 && filepath.Base(m.point) == agentLeaf {
				m.point = filepath.Dir(m.point)
			}
			out[c] = m
		}
	}
	return out
}

// makeCgroups makes what groups this process may. Nothing of it is required:
// what is missing is told in warnings.
func makeCgroups(name string) *cgroups {
	cg := &cgroups{v1: map[string]string{}, has: map[string]string{}}
	own, err := ownGroups()
	if err != nil {
		cg.warnings = append(cg.warnings, err.Error())
		return cg
	}
	if m, ok := own[""]; ok {
		cg.makeV2(m.point, name)
	}
	for _, c := range limited {
		m, ok := own[c]
		if _, have := cg.has[c]; have || !ok || m.v2 {
			continue
		}
		dir := filepath.Join(m.point, name)
		if err := os.Mkdir(dir, 0o755); err == nil || errors.Is(err, os.ErrExist) {
			cg.v1[c], cg.has[c] = dir, dir
		}
	}
	var lacks []string
	for _, c := range limited {
		if _, ok := cg.has[c]; !ok {
			lacks = append(lacks, c)
		}
	}
	if len(lacks) > 0 {
		cg.warnings = append(cg.warnings, "limits are not enforced for "+strings.Join(lacks, ", ")+": no writable cgroup")
	}
	if dir, ok := cg.has["memory"]; ok {
		file := "memory.oom_control"
		if dir == cg.v2 {
			file = "memory.events"
		}
		cg.ooms, _ = os.Open(filepath.Join(dir, file))
	}
	return cg
}

func (cg *cgroups) makeV2(parent, name string) {
	enable(parent)
	dir := filepath.Join(parent, name)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return
	}
	// A group that can't be killed as a whole (before Linux 5.14) is no fence.
	if _, err := os.Stat(filepath.Join(dir, "cgroup.kill")); err != nil {
		os.Remove(dir)
		return
	}
	fd, err := os.Open(dir)
	if err != nil {
		os.Remove(dir)
		return
	}
	cg.v2, cg.fd = dir, fd
	have, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	for _, c := range strings.Fields(string(have)) {
		cg.has[c] = dir
	}
}

// agentLeaf is the group into which an agent moves so that the group it was
// started in may hand controllers to its children.
const agentLeaf = "offpeak-agent"

// enable hands a v2 group's controllers to its children, as far as it may.
func enable(parent string) (busy bool) {
	for _, c := range limited {
		// One by one: a machine may lack one of them.
		err := put(parent, "cgroup.subtree_control", "+"+c)
		busy = busy || errors.Is(err, syscall.EBUSY)
	}
	return busy
}

// delegate makes limits possible in a v2 group that was given to the agent
// alone, as a service with Delegate=yes is: a group with processes of its own
// can't hand on controllers, so the agent moves to a leaf of it.
func delegate() {
	own, err := ownGroups()
	m, ok := own[""]
	if err != nil || !ok || !enable(m.point) {
		return
	}
	if pids := members(m.point); len(pids) != 1 || pids[0] != os.Getpid() {
		return
	}
	leaf := filepath.Join(m.point, agentLeaf)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return
	}
	if put(leaf, "cgroup.procs", "0") == nil {
		enable(m.point)
	}
}

// members lists the processes of a group, as seen from our PID namespace.
func members(dir string) []int {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil
	}
	var out []int
	for f := range strings.FieldsSeq(string(data)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
			out = append(out, pid)
		}
	}
	return out
}

// enforced says that every limit holds.
func (cg *cgroups) enforced() bool {
	for _, c := range limited {
		if _, ok := cg.has[c]; !ok {
			return false
		}
	}
	return true
}

// joinV1 moves the calling thread into the v1 groups, for good: what it forks
// is born there. Moving for each job would stop the whole machine's forks for
// a grace period of the kernel each time. Charges follow the process that owns
// the memory, so the rest of the supervisor stays outside.
func (cg *cgroups) joinV1() error {
	for c, dir := range cg.v1 {
		if err := put(dir, "tasks", "0"); err != nil {
			return fmt.Errorf("join cgroup of %s: %w", c, err)
		}
	}
	return nil
}

// cpuPeriod is the period over which a share of the CPUs is granted, in
// microseconds.
const cpuPeriod = 100_000

// limit writes the limits that differ from those in force.
func (cg *cgroups) limit(l Limits) error {
	var errs []error
	if dir, ok := cg.has["memory"]; ok && l.Memory != cg.set.Memory {
		if dir == cg.v2 {
			errs = append(errs, put(dir, "memory.max", orMax(int64(l.Memory), "max")))
			_ = put(dir, "memory.swap.max", "0")
		} else {
			errs = append(errs, limitV1Memory(dir, l.Memory))
		}
	}
	if dir, ok := cg.has["pids"]; ok && l.Processes != cg.set.Processes {
		n := int64(l.Processes)
		if n > 0 && dir != cg.v2 {
			n++ // the thread that forks
		}
		errs = append(errs, put(dir, "pids.max", orMax(n, "max")))
	}
	if dir, ok := cg.has["cpu"]; ok && l.CPU != cg.set.CPU {
		quota := orMax(max(l.CPU*cpuPeriod/1000, min(l.CPU, 1)*1000), "max")
		if dir == cg.v2 {
			errs = append(errs, put(dir, "cpu.max", quota+" "+strconv.Itoa(cpuPeriod)))
		} else {
			if quota == "max" {
				quota = "-1"
			}
			errs = append(errs, put(dir, "cpu.cfs_quota_us", quota))
		}
	}
	if err := errors.Join(errs...); err != nil {
		cg.set = Limits{CPU: -1, Memory: -1, Processes: -1}
		return fmt.Errorf("set limits: %w", err)
	}
	cg.set = l
	return nil
}

// limitV1Memory sets memory and, where swap is accounted, the sum of both. The
// sum may never be below the memory limit, so the order depends on the direction.
func limitV1Memory(dir string, limit offpeak.Bytes) error {
	const mem, sum = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
	value := orMax(int64(limit), "-1")
	if put(dir, mem, value) == nil {
		_ = put(dir, sum, value)
		return put(dir, mem, value)
	}
	_ = put(dir, sum, value)
	if err := put(dir, mem, value); err == nil {
		return nil
	}
	// What a former job left in the page cache stands in the way.
	_ = put(dir, "memory.force_empty", "0")
	return put(dir, mem, value)
}

func orMax(n int64, unlimited string) string {
	if n <= 0 {
		return unlimited
	}
	return strconv.FormatInt(n, 10)
}

func put(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(value)
	return err
}

// oomKills counts what the kernel killed in the group for lack of memory.
func (cg *cgroups) oomKills() int64 {
	if cg.ooms == nil {
		return 0
	}
	var buf [512]byte
	n, _ := cg.ooms.ReadAt(buf[:], 0)
	for line := range strings.Lines(string(buf[:n])) {
		if v, ok := strings.CutPrefix(line, "oom_kill "); ok {
			k, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return k
		}
	}
	return 0
}

// close removes the groups; they must be empty but for the thread that forks,
// which left them.
func (cg *cgroups) close() {
	if cg.fd != nil {
		cg.fd.Close()
		os.Remove(cg.v2)
	}
	if cg.ooms != nil {
		cg.ooms.Close()
	}
	for _, dir := range cg.v1 {
		os.Remove(dir)
	}
}

// leaveV1 takes the calling thread out of the v1 groups again.
func (cg *cgroups) leaveV1() {
	for _, dir := range cg.v1 {
		_ = put(filepath.Dir(dir), "tasks", "0")
	}
}

// dropV2 and dropV1 give groups up that can't be used.
func (cg *cgroups) dropV2() {
	if cg.v2 == "" {
		return
	}
	cg.fd.Close()
	os.Remove(cg.v2)
	for c, dir := range cg.has {
		if dir == cg.v2 {
			delete(cg.has, c)
		}
	}
	cg.v2, cg.fd = "", nil
}

func (cg *cgroups) dropV1() {
	for c, dir := range cg.v1 {
		os.Remove(dir)
		delete(cg.has, c)
	}
	clear(cg.v1)
}
