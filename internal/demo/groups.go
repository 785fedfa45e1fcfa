package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// groups lists the control groups that processes are in and this one is not:
// what a supervisor that was killed with -9 could not remove itself.
func groups(pids []int) []string {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	own := groupsOf("/proc/self", mounts)
	var out []string
	for _, pid := range pids {
		for _, dir := range groupsOf(filepath.Join("/proc", strconv.Itoa(pid)), mounts) {
			if !slices.Contains(own, dir) && !slices.Contains(out, dir) {
				out = append(out, dir)
			}
		}
	}
	return out
}

// groupsOf joins a process's cgroup file with the mounts of the hierarchies.
func groupsOf(proc string, mounts []byte) []string {
	file, err := os.ReadFile(filepath.Join(proc, "cgroup"))
	if err != nil {
		return nil
	}
	paths := map[string]string{} // by controller, "" for version 2
	for row := range strings.Lines(string(file)) {
		part := strings.SplitN(strings.TrimSpace(row), ":", 3)
		if len(part) == 3 {
			for _, controller := range strings.Split(part[1], ",") {
				paths[controller] = part[2]
			}
		}
	}
	var out []string
	for rows := bufio.NewScanner(bytes.NewReader(mounts)); rows.Scan(); {
		left, right, _ := strings.Cut(rows.Text(), " - ")
		mount, kind := strings.Fields(left), strings.Fields(right)
		if len(mount) < 5 || len(kind) < 3 {
			continue
		}
		var controllers []string
		switch kind[0] {
		case "cgroup2":
			controllers = []string{""}
		case "cgroup":
			controllers = strings.Split(kind[2], ",")
		}
		for _, c := range controllers {
			// mount[3] is the part of the hierarchy that is mounted at mount[4].
			path, err := filepath.Rel(mount[3], paths[c])
			if paths[c] != "" && err == nil && !strings.HasPrefix(path, "..") {
				out = append(out, filepath.Join(mount[4], path))
				break
			}
		}
	}
	return out
}

// removeGroups removes groups, the inner ones first. The kernel refuses while a
// dying process is still in one, so it tries until they are gone or ctx is done.
func removeGroups(ctx context.Context, dirs []string) {
	slices.SortFunc(dirs, func(a, b string) int { return len(b) - len(a) })
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for len(dirs) > 0 {
		dirs = slices.DeleteFunc(dirs, func(dir string) bool {
			err := os.Remove(dir)
			return err == nil || errors.Is(err, fs.ErrNotExist)
		})
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
