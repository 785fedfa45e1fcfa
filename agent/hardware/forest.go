package hardware

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

// forest says of processes with which one the tree begins that they are in.
type forest map[int]int

func (f forest) root(pid int) int { return f[pid] }

// plant reads the trees below roots from /proc, by who is whose parent: what a
// job starts stays below its supervisor. Elsewhere than on Linux only the roots
// themselves are known.
func plant(proc string, roots []int) forest {
	if len(roots) == 0 {
		return nil
	}
	f := forest{}
	for _, r := range roots {
		f[r] = r
	}
	children := map[int][]int{}
	for _, pid := range pids(proc) {
		if parent, ok := parentOf(proc, pid); ok {
			children[parent] = append(children[parent], pid)
		}
	}
	for _, r := range roots {
		for queue := []int{r}; len(queue) > 0; queue = queue[1:] {
			for _, c := range children[queue[0]] {
				if f[c] == 0 {
					f[c] = r
					queue = append(queue, c)
				}
			}
		}
	}
	return f
}

// pids lists the processes of /proc.
func pids(proc string) (out []int) {
	dir, err := os.Open(proc)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
			out = append(out, pid)
		}
	}
	return out
}

func parentOf(proc string, pid int) (int, bool) {
	data, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, false
	}
	// The name, in parentheses, may hold anything; the fields follow the last one.
	f := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(f) < 2 {
		return 0, false
	}
	parent, err := strconv.Atoi(string(f[1]))
	return parent, err == nil
}

// nameOf is a process's short name.
func nameOf(proc string, pid int) string {
	data, _ := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "comm"))
	return printable(string(data))
}
