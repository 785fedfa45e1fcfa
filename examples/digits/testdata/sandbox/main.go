// Sandbox runs a WebAssembly module in a folder, as a node of the grid does:
// the module sees that folder as its root, its environment, and no more. It is
// a process of its own so that the test can kill it.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"
)

func main() {
	dir := flag.String("dir", "", "the module's folder")
	cache := flag.String("cache", "", "folder for compiled modules")
	flag.Parse()
	err := run(context.Background(), *dir, *cache, flag.Args())
	var exit *sys.ExitError
	if errors.As(err, &exit) {
		os.Exit(int(exit.ExitCode()))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandbox:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, cache string, args []string) error {
	code, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	kept, err := wazero.NewCompilationCacheWithDir(cache)
	if err != nil {
		return err
	}
	runtime := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfig().WithCompilationCache(kept))
	if _, err := wasi_snapshot_preview1.Instantiate(ctx, runtime); err != nil {
		return err
	}
	config := wazero.NewModuleConfig().
		WithArgs(args...).WithStdout(os.Stdout).WithStderr(os.Stderr).
		WithRandSource(rand.Reader).WithSysWalltime().WithSysNanotime().
		WithFSConfig(wazero.NewFSConfig().WithDirMount(dir, "/"))
	for _, e := range os.Environ() {
		if name, value, ok := strings.Cut(e, "="); ok && strings.HasPrefix(name, "OFFPEAK_") {
			config = config.WithEnv(name, value)
		}
	}
	_, err = runtime.InstantiateWithConfig(ctx, code, config)
	return err
}
