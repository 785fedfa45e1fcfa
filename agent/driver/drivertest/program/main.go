// Command program is what drivertest runs through every driver. It knows a few
// verbs, prints exact bytes, and builds for the machine and for wasip1.
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return nil
	}
	switch verb, args := args[0], args[1:]; verb {
	case "args":
		fmt.Print(strings.Join(args, "\x00"))
	case "env":
		fmt.Print(os.Getenv(args[0]))
	case "environ":
		fmt.Print(strings.Join(os.Environ(), "\x00"))
	case "both":
		fmt.Print("to stdout")
		fmt.Fprint(os.Stderr, "to stderr")
	case "exit":
		code, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		os.Exit(code)
	case "stdin":
		n, err := os.Stdin.Read(make([]byte, 1))
		fmt.Print(n, " ", err)
	case "write":
		return os.WriteFile(args[0], []byte(args[1]), 0o644)
	case "append":
		f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		if err != nil {
			return err
		}
		if _, err := f.WriteString(args[1]); err != nil {
			return err
		}
		return f.Close()
	case "read":
		data, err := os.ReadFile(args[0])
		os.Stdout.Write(data)
		return err
	case "checkpoint":
		// As a job does it: into the folder the environment names, by rename.
		dir := os.Getenv("OFFPEAK_CHECKPOINT_DIR")
		if err := os.WriteFile(dir+"/.half", []byte(args[0]), 0o644); err != nil {
			return err
		}
		if err := os.Rename(dir+"/.half", dir+"/whole"); err != nil {
			return err
		}
		entries, err := os.ReadDir(dir)
		for _, e := range entries {
			fmt.Println(e.Name(), e.IsDir())
		}
		return err
	case "link":
		if err := os.Symlink(args[0], args[1]); err != nil {
			return err
		}
		data, err := os.ReadFile(args[1])
		os.Stdout.Write(data)
		return err
	case "tree":
		return tree()
	case "grow":
		size, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		var kept [][]byte
		for range size {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = 1
			}
			kept = append(kept, b)
		}
		fmt.Println(len(kept))
	case "loop":
		fmt.Println("looping")
		for i := 0; ; i++ {
			if i < 0 {
				return nil
			}
		}
	default:
		return fmt.Errorf("no verb %q", verb)
	}
	return nil
}

// tree does to folders and files what programs do.
func tree() error {
	steps := []func() error{
		func() error { return os.MkdirAll("a/b/c", 0o755) },
		func() error { return os.WriteFile("a/b/c/f", []byte("0123456789"), 0o600) },
		func() error { return os.Truncate("a/b/c/f", 4) },
		func() error { return os.Rename("a/b/c/f", "a/g") },
		func() error { return os.Remove("a/b/c") },
		func() error { return os.RemoveAll("a/b") },
		func() error {
			info, err := os.Stat("a/g")
			if err == nil && info.Size() != 4 {
				err = fmt.Errorf("size %d", info.Size())
			}
			return err
		},
		func() error {
			if _, err := os.Stat("a/b"); !os.IsNotExist(err) {
				return fmt.Errorf("a/b: %w", err)
			}
			if err := os.Mkdir("a", 0o755); !os.IsExist(err) {
				return fmt.Errorf("mkdir a: %w", err)
			}
			return nil
		},
	}
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}
