package wasm

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/experimental"
	"github.com/tetratelabs/wazero/experimental/sysfs"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"

	"offpeak"
	"offpeak/agent/driver"
)

const (
	// exitTrap is the exit status of a module that trapped, as of a process
	// that aborted; exitReported that of one that did not run at all.
	exitTrap     = 134
	exitReported = 125
	// reportFD is where the supervisor reads why a module did not run.
	reportFD = 3
	pageSize = 64 << 10
	maxPages = 65536
)

// Main is the body of the process that runs one module; args follow the
// command's name. It returns the exit status.
func Main(args []string) int {
	flags := flag.NewFlagSet(Command, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	work := flags.String("work", "", "the job's folder")
	cache := flags.String("cache", "", "a folder for compiled modules")
	memory := flags.Int64("memory", 0, "most bytes of module memory; 0 for no limit")
	if err := flags.Parse(args); err != nil || *work == "" || flags.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: offpeak wasm-run --work DIR [--cache DIR] [--memory BYTES] -- MODULE ARGS…")
		return 2
	}
	code, err := run(context.Background(), *work, *cache, *memory, flags.Args())
	if se, ok := errors.AsType[*driver.StartError](err); ok {
		report(*se)
		fmt.Fprintln(os.Stderr, "offpeak:", se.Detail)
		return exitReported
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "offpeak: the module was stopped:", err)
		return exitTrap
	}
	return code
}

func report(e driver.StartError) {
	data, err := json.Marshal(e)
	if err != nil {
		return
	}
	f := os.NewFile(reportFD, "report")
	_, _ = f.Write(data)
	f.Close()
}

func badModule(what string, err error) error {
	return &driver.StartError{Reason: offpeak.EndBadModule, Detail: what + ": " + err.Error()}
}

// run returns the module's exit status, a *driver.StartError if it can't be
// run, or any other error if it trapped.
func run(ctx context.Context, work, cache string, limit int64, args []string) (int, error) {
	root, err := os.OpenRoot(work)
	if err != nil {
		return 0, &driver.StartError{Reason: offpeak.EndNodeError, Detail: err.Error()}
	}
	defer root.Close()
	code, err := root.ReadFile(relative(args[0]))
	if err != nil {
		return 0, &driver.StartError{Reason: offpeak.EndCommandNotFound, Detail: err.Error()}
	}
	config := wazero.NewRuntimeConfig()
	most := int64(maxPages)
	if limit > 0 {
		most = min(max(limit/pageSize, 1), maxPages)
	}
	mem := &memory{limit: uint64(most) * pageSize}
	// A cache that can't be used costs time, nothing else.
	if cc, err := wazero.NewCompilationCacheWithDir(cache); cache != "" && err == nil {
		defer cc.Close(ctx)
		config = config.WithCompilationCache(cc)
	}
	// No close-on-context: it slows every loop, and the supervisor kills anyway.
	runtime := wazero.NewRuntimeWithConfig(ctx, config)
	defer runtime.Close(ctx)
	if _, err := wasi_snapshot_preview1.Instantiate(ctx, runtime); err != nil {
		return 0, &driver.StartError{Reason: offpeak.EndNodeError, Detail: err.Error()}
	}
	compiled, err := runtime.CompileModule(ctx, code)
	if err != nil {
		return 0, badModule("compile "+args[0], err)
	}
	fsys, ok := wazero.NewFSConfig().(sysfs.FSConfig)
	if !ok {
		return 0, &driver.StartError{Reason: offpeak.EndNodeError, Detail: "the engine takes no file system"}
	}
	module := wazero.NewModuleConfig().
		WithName("").WithStartFunctions().
		WithArgs(args...).
		WithStdout(os.Stdout).WithStderr(os.Stderr).
		WithSysWalltime().WithSysNanotime().WithSysNanosleep().
		WithRandSource(rand.Reader).
		WithFSConfig(fsys.WithSysFSMount(&rootFS{root: root}, "/"))
	for _, e := range os.Environ() {
		name, value, _ := strings.Cut(e, "=")
		module = module.WithEnv(name, value)
	}
	m, err := runtime.InstantiateModule(experimental.WithMemoryAllocator(ctx, mem), compiled, module)
	if err != nil {
		return 0, badModule("instantiate "+args[0], err)
	}
	if mem.refused {
		return 0, mem.shortage()
	}
	start := m.ExportedFunction("_start")
	if start == nil {
		return 0, badModule("start "+args[0], errors.New("it exports no _start; build it as a WASI command"))
	}
	_, err = start.Call(ctx)
	exit, exited := errors.AsType[*sys.ExitError](err)
	if failed := err != nil && (!exited || exit.ExitCode() != 0); failed && mem.refused {
		report(*mem.shortage())
	}
	if exited {
		return int(exit.ExitCode() & 0xff), nil
	}
	return 0, err
}
