// Package local is the file through which a hub, an agent and the CLI of one
// user on one machine find each other without ceremony.
//
// It owns where the file lies, its mode and how it is replaced: whole or not at
// all. Whoever can read it is an admin of the hub, so it has mode 0600 and
// Read refuses one that others could have written or read. It knows nothing of
// what is done with the token in it. Its functions keep no state.
package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"offpeak/wire"
)

// Path says where the file lies: in $OFFPEAK_HOME where that is set, else in
// the user's runtime folder, which the system clears at logout, else in the
// state folder.
func Path(getenv func(string) string) string {
	if home := getenv("OFFPEAK_HOME"); home != "" {
		return filepath.Join(home, "local.json")
	}
	if run := getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(run) {
		return filepath.Join(run, "offpeak", "local.json")
	}
	return filepath.Join(Home(getenv), "local.json")
}

// Home is the folder below which hub and agent keep their state: $OFFPEAK_HOME,
// else offpeak in the user's state folder.
func Home(getenv func(string) string) string {
	if home := getenv("OFFPEAK_HOME"); home != "" {
		return home
	}
	if state := getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "offpeak")
	}
	home := getenv("HOME")
	if home == "" {
		home, _ = os.UserHomeDir()
	}
	return filepath.Join(home, ".local", "state", "offpeak")
}

// Read reads the file. A missing one is fs.ErrNotExist: no hub runs here.
func Read(path string) (wire.Local, error) {
	var l wire.Local
	f, err := os.Open(path)
	if err != nil {
		return l, fmt.Errorf("read local file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return l, fmt.Errorf("read local file: %w", err)
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return l, fmt.Errorf("read local file %s: mode is %v, others could read or change it: remove it and restart the hub", path, info.Mode().Perm())
	}
	if err := json.NewDecoder(f).Decode(&l); err != nil {
		return l, fmt.Errorf("read local file %s: %w", path, err)
	}
	return l, nil
}

// Write replaces the file, with mode 0600, in a folder with mode 0700.
func Write(path string, l wire.Local) error {
	data, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("write local file: %w", err)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("write local file: %w", err)
	}
	// CreateTemp makes files with mode 0600.
	f, err := os.CreateTemp(dir, ".local-*")
	if err != nil {
		return fmt.Errorf("write local file: %w", err)
	}
	_, err = f.Write(append(data, '\n'))
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write local file: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// Remove removes the file if it is still the one of process pid: another hub of
// this user may have replaced it.
func Remove(path string, pid int) error {
	l, err := Read(path)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && l.PID != pid) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove local file: %w", err)
	}
	return nil
}
