// Command guest is a module for the agent's tests: what it can and can't do
// from inside of the wasm driver.
package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	switch os.Args[1] {
	case "train":
		train()
	case "grow":
		var kept [][]byte
		for {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = 1
			}
			kept = append(kept, b)
		}
	case "escape":
		escape()
	}
}

// train resumes from its checkpoint, or makes one and works until it is told to go.
func train() {
	env := os.Environ()
	slices.Sort(env)
	for _, e := range env {
		if strings.HasPrefix(e, "OFFPEAK_") || strings.HasPrefix(e, "OF_THE_TASK") {
			fmt.Println(e)
		}
	}
	place := os.Getenv("OFFPEAK_CHECKPOINT_DIR")
	if data, err := os.ReadFile(filepath.Join(place, "step")); err == nil {
		fmt.Printf("resumed from %s\n", data)
		must(os.WriteFile(filepath.Join(os.Getenv("OFFPEAK_OUTPUT_DIR"), "model"), data, 0o644))
		return
	}
	must(os.WriteFile(filepath.Join(place, "step.tmp"), []byte("step 7"), 0o644))
	must(os.Rename(filepath.Join(place, "step.tmp"), filepath.Join(place, "step")))
	fmt.Println("working")
	for {
		if data, err := os.ReadFile(os.Getenv("OFFPEAK_NOTICE")); err == nil {
			fmt.Printf("notice %s\n", data)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// escape tries every way out and says which one led somewhere.
func escape() {
	for _, path := range []string{"../lease.json", "../../../node.key", "/etc/passwd", "/proc/self/environ", "sub/../../lease.json"} {
		if data, err := os.ReadFile(path); err == nil {
			fmt.Printf("ESCAPED to %s: %q\n", path, data)
		}
	}
	for i, target := range []string{"/etc/passwd", "../../lease.json", "../../../../node.key"} {
		name := fmt.Sprintf("outputs/link%d", i)
		if err := os.Symlink(target, name); err == nil {
			data, err := os.ReadFile(name)
			fmt.Printf("LINKED to %s: %q %v\n", target, data, err)
		}
	}
	for _, addr := range os.Args[2:] {
		if c, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
			c.Close()
			fmt.Printf("REACHED %s\n", addr)
		}
	}
	fmt.Println("contained")
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(9)
	}
}
