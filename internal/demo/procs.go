package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// processes lists all processes that belong to a folder: those that have it in
// their command line or work below it, and their descendants. A node's agent,
// its supervisors and its jobs are all found by the node's data folder.
func processes(dir string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes (the demo needs Linux): %w", err)
	}
	parent := map[int]int{}
	belongs := map[int]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		proc := filepath.Join("/proc", e.Name())
		// A process that ends meanwhile has no files to read: it is gone.
		stat, err := os.ReadFile(filepath.Join(proc, "stat"))
		if err != nil {
			continue
		}
		state, ppid := parseStat(string(stat))
		if state == "Z" || state == "X" {
			continue
		}
		parent[pid] = ppid
		cmdline, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
		cwd, _ := os.Readlink(filepath.Join(proc, "cwd"))
		if bytes.Contains(cmdline, []byte(dir)) || cwd == dir || strings.HasPrefix(cwd, dir+"/") {
			belongs[pid] = true
		}
	}
	var pids []int
	for pid := range parent {
		for p := pid; p > 1; p = parent[p] {
			if belongs[p] {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids, nil
}

// parseStat reads the state and the parent from a line of /proc/PID/stat. The
// name before them stands in brackets and may hold anything.
func parseStat(stat string) (state string, ppid int) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return "X", 0
	}
	ppid, _ = strconv.Atoi(fields[1])
	return fields[0], ppid
}

// killAll sends SIGKILL to all processes of a folder until none is left, and
// returns how many there were. Their control groups go with them.
func killAll(ctx context.Context, dir string) (killed int, err error) {
	var left []string
	defer func() {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		removeGroups(ctx, left)
	}()
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		pids, err := processes(dir)
		if err != nil || len(pids) == 0 {
			tick.Stop()
			return killed, err
		}
		killed = max(killed, len(pids))
		for _, group := range groups(pids) {
			if !slices.Contains(left, group) {
				left = append(left, group)
			}
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
				return killed, fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
		select {
		case <-ctx.Done():
			return killed, fmt.Errorf("processes %v do not die: %w", pids, ctx.Err())
		case <-tick.C:
		}
	}
}
