package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// checkpoints is the folder $OFFPEAK_CHECKPOINT_DIR. An entry appears in it by
// rename, so each one is whole; its name tells the step.
type checkpoints struct{ dir string }

const (
	prefix = "step-"
	kept   = 2
)

// save stores data as the checkpoint of a step and removes older ones but one,
// which serves if the newest can't be read.
func (c checkpoints) save(step int, data []byte) error {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	name := fmt.Sprintf("%s%08d", prefix, step)
	temp := filepath.Join(c.dir, "."+name+".tmp")
	data = binary.BigEndian.AppendUint32(data, crc32.ChecksumIEEE(data))
	if err := write(temp, data); err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Join(c.dir, name)); err != nil {
		return err
	}
	names, err := c.names()
	if err != nil {
		return err
	}
	for _, old := range names[min(kept, len(names)):] {
		if err := os.Remove(filepath.Join(c.dir, old)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// restore hands stored data to use, the newest first, until use takes it. It
// returns the name of the entry that served, "" if there is none, and what was
// wrong with those that did not.
func (c checkpoints) restore(use func([]byte) error) (name string, refused []error) {
	names, err := c.names()
	if err != nil {
		return "", []error{err}
	}
	for _, name := range names {
		data, err := read(filepath.Join(c.dir, name))
		if err == nil {
			err = use(data)
		}
		if err == nil {
			return name, refused
		}
		refused = append(refused, fmt.Errorf("checkpoint %s: %w", name, err))
	}
	return "", refused
}

// names lists the complete entries, newest first.
func (c checkpoints) names() ([]string, error) {
	entries, err := os.ReadDir(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	slices.Reverse(names)
	return names, nil
}

// write makes a file and brings it to the disk, so that a rename never shows a
// file whose bytes a power cut could take back.
func write(path string, data []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

func read(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(data) < 4 {
		return nil, errors.New("it is cut short")
	}
	body, sum := data[:len(data)-4], binary.BigEndian.Uint32(data[len(data)-4:])
	if crc32.ChecksumIEEE(body) != sum {
		return nil, errors.New("its checksum does not match")
	}
	return body, nil
}
