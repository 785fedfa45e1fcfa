package hardware

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"offpeak"
)

// fake are made-up devices in a folder, for tests and demos on machines without
// GPUs. Of each there is
//
//	NAME.json    what it is: an offpeak.Device, with all its memory as vram_bytes
//	NAME.dev     the device: a process claims as many of its bytes as the offset
//	             of its open file, so seeking to 10 GiB takes 10 GiB of VRAM; a child
//	             that inherits the file takes as much again
//	NAME.temperature, NAME.power, NAME.utilisation    numbers, where there are such
//	NAME.throttled    Throttle words with blanks between
//
// Memory in use is so what living processes hold, as /proc says, never a number
// that somebody wrote: a job that is killed gives it back at that moment. Taking
// NAME.json or NAME.dev away takes the device away.
type fake struct {
	dir, proc string
}

func (f fake) look(context.Context, forest) ([]found, []string, error) {
	names, err := filepath.Glob(filepath.Join(f.dir, "*.json"))
	if err != nil {
		return nil, nil, fmt.Errorf("look for made-up devices: %w", err)
	}
	var all []found
	var warnings []string
	files := map[[2]uint64]int{}
	for _, name := range names {
		base := strings.TrimSuffix(name, ".json")
		info, err := os.Stat(base + ".dev")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var d found
		var data []byte
		if err == nil {
			data, err = os.ReadFile(name)
		}
		if err == nil {
			err = json.Unmarshal(data, &d.device)
		}
		if err == nil && (d.device.ID == "" || d.device.VRAM <= 0) {
			err = errors.New("it has no id or no vram_bytes")
		}
		if err != nil {
			warnings = append(warnings, fmt.Sprintf("made-up device %s: %v", filepath.Base(base), err))
			continue
		}
		d.used = new(offpeak.Bytes)
		d.temperature, d.power, d.utilisation = plain(base+".temperature"), plain(base+".power"), plain(base+".utilisation")
		if data, err := os.ReadFile(base + ".throttled"); err == nil {
			d.throttled = strings.Fields(printable(string(data)))
		}
		if key, ok := inode(info); ok {
			files[key] = len(all)
		}
		all = append(all, d)
	}
	for _, pid := range pids(f.proc) {
		f.claims(pid, files, all)
	}
	return all, warnings, nil
}

// claims adds what a process holds.
func (f fake) claims(pid int, files map[[2]uint64]int, all []found) {
	dir := filepath.Join(f.proc, strconv.Itoa(pid))
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return // it went away, or it is closed to us
	}
	held := map[int]offpeak.Bytes{}
	for _, fd := range fds {
		link, err := os.Readlink(filepath.Join(dir, "fd", fd.Name()))
		if err != nil || !strings.HasSuffix(link, ".dev") {
			continue
		}
		// Through the descriptor and not by name: a sandbox has names of its own.
		info, err := os.Stat(filepath.Join(dir, "fd", fd.Name()))
		if err != nil {
			continue
		}
		key, _ := inode(info)
		if i, ok := files[key]; ok {
			held[i] += position(filepath.Join(dir, "fdinfo", fd.Name()))
		}
	}
	for i, b := range held {
		*all[i].used += b
		all[i].processes = append(all[i].processes, Process{PID: pid, Name: nameOf(f.proc, pid), VRAM: &b})
	}
}

// position is the offset of an open file.
func position(fdinfo string) offpeak.Bytes {
	data, err := os.ReadFile(fdinfo)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if s, ok := strings.CutPrefix(line, "pos:"); ok {
			if b := amount(s, 1); b != nil {
				return *b
			}
		}
	}
	return 0
}

func plain(path string) *float64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return number(string(data))
}
