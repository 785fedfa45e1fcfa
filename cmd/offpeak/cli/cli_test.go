package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"offpeak/agent/supervisor"
	"offpeak/cmd/offpeak/cli/people"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/internal/local"
	"offpeak/internal/pgtest"
)

var update = flag.Bool("update", false, "write golden files")

// pg is the server of tests with hubs on PostgreSQL.
var pg pgtest.Shared

// TestMain lets the test binary be offpeak itself, for scripts and where
// OFFPEAK_TEST_MAIN is set, so that hubs in tests are real processes.
func TestMain(m *testing.M) {
	// An agent starts this binary again as a supervisor.
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		os.Exit(supervisor.Main(os.Args[2:]))
	}
	if os.Getenv("OFFPEAK_TEST_MAIN") == "1" {
		os.Exit(Main(context.Background(), os.Args[1:], Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Version: "1.2.3-test"}))
	}
	env := Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv}
	testscript.Main(pg.Around(m), map[string]func(){
		"offpeak": func() {
			os.Exit(Main(context.Background(), os.Args[1:], env))
		},
		// offpeak-login logs in to the hub of the local file as a context.
		"offpeak-login": func() {
			here, err := local.Read(local.Path(os.Getenv))
			if err != nil {
				os.Exit(world.Report(os.Stderr, err))
			}
			os.Exit(Main(context.Background(), append([]string{"login", "--token", "-", "--context", os.Args[1]}, here.Hubs...), env))
		},
	})
}

func TestScripts(t *testing.T)     { scripts(t, "testdata/client") }
func TestGridScripts(t *testing.T) { scripts(t, "testdata/grid") }
func TestHubScripts(t *testing.T)  { scripts(t, "testdata/hub") }

// scripts runs the scripts of a folder against the binary.
func scripts(t *testing.T, dir string) {
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("OFFPEAK_PRESENCE", "false")
			e.Setenv("OFFPEAK_HOME", filepath.Join(e.WorkDir, "home"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// await waits for a file to appear.
			"await": func(ts *testscript.TestScript, _ bool, args []string) {
				for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
					if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
						return
					} else if time.Now().After(deadline) {
						ts.Fatalf("%s never came: %v", args[0], err)
					}
				}
			},
			// offpeak-hub sets a variable to the address of the hub of the local file.
			"offpeak-hub": func(ts *testscript.TestScript, _ bool, args []string) {
				here, err := local.Read(local.Path(ts.Getenv))
				ts.Check(err)
				ts.Setenv(args[0], here.Hubs[0])
			},
			// proxy lets the hub be reached by this name, through a proxy alone.
			"proxy": func(ts *testscript.TestScript, _ bool, args []string) { throughProxy(ts, args[0]) },
			// code runs offpeak, which must end with this exit code.
			"code": func(ts *testscript.TestScript, _ bool, args []string) {
				err := ts.Exec("offpeak", args[1:]...)
				have := 0
				if exit, ok := errors.AsType[*exec.ExitError](err); ok {
					have = exit.ExitCode()
				} else {
					ts.Check(err)
				}
				if strconv.Itoa(have) != args[0] {
					ts.Fatalf("offpeak %s: exit code %d, want %s", strings.Join(args[1:], " "), have, args[0])
				}
			},
			// big writes a job file of 2 MiB.
			"big": func(ts *testscript.TestScript, _ bool, args []string) {
				text := "task: {command: [x]}\nname: " + strings.Repeat("a", 2<<20) + "\n"
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
			},
			// bad runs a command line that must end with exit code 2, in this
			// process: starting the binary for each would take minutes.
			"bad": func(ts *testscript.TestScript, neg bool, args []string) {
				for i := range args[1:] {
					if args[i] == "-f" && args[i+1] != "-" {
						args[i+1] = ts.MkAbs(args[i+1])
					}
				}
				env := Env{Stdin: strings.NewReader(""), Stdout: ts.Stdout(), Stderr: ts.Stderr(), Getenv: ts.Getenv}
				if code := Main(context.Background(), args, env); code != world.ExitUsage {
					ts.Fatalf("offpeak %s: exit code %d, want 2", strings.Join(args, " "), code)
				}
			},
		},
	})
}

// TestDocs keeps docs/cli.md equal to what --help says.
func TestDocs(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Commands\n\nThis page is written by `go test ./cmd/offpeak/cli -run TestDocs -update` from what\n`offpeak COMMAND --help` prints.\n")
	root := New(Env{Stdin: strings.NewReader(""), Stdout: &b, Stderr: &b, Getenv: func(string) string { return "" }})
	root.InitDefaultHelpCmd()
	document(&b, root)
	path := filepath.FromSlash("../../../docs/cli.md")
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(have), b.String()); diff != "" {
		t.Errorf("docs/cli.md is not what --help says; run with -update (-have +want):\n%s", diff)
	}
}

func document(b *strings.Builder, cmd *cobra.Command) {
	if cmd.Hidden || cmd.Name() == "help" {
		return
	}
	if cmd.HasParent() {
		fmt.Fprintf(b, "\n%s %s\n\n%s.\n", strings.Repeat("#", min(4, strings.Count(cmd.CommandPath(), " ")+1)), cmd.CommandPath(), cmd.Short)
		if cmd.Long != "" {
			fmt.Fprintf(b, "\n%s\n", indentAware(cmd.Long))
		}
		fmt.Fprintf(b, "\n```\n%s\n```\n", cmd.UseLine())
		if cmd.Example != "" {
			fmt.Fprintf(b, "\nExamples:\n\n```sh\n%s\n```\n", strings.ReplaceAll(strings.Trim(cmd.Example, "\n"), "\n  ", "\n")[2:])
		}
		if flags := flagText(cmd); flags != "" {
			fmt.Fprintf(b, "\n```\n%s```\n", flags)
		}
	}
	for _, sub := range cmd.Commands() {
		document(b, sub)
	}
}

// indentAware leaves text as it is: indented blocks are code in Markdown too.
func indentAware(long string) string { return strings.TrimSpace(long) }

func flagText(cmd *cobra.Command) string {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			set.AddFlag(f)
		}
	})
	return set.FlagUsages()
}

// Every command says what it does and shows an example.
func TestEveryCommandHasHelp(t *testing.T) {
	env := Env{Getenv: func(string) string { return "" }}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Short == "" || cmd.Long == "" || cmd.Example == "" {
			t.Errorf("%s: no description or example", cmd.CommandPath())
		}
		for line := range strings.SplitSeq(cmd.Long, "\n") {
			if len([]rune(line)) > 110 {
				t.Errorf("%s: line too long: %s", cmd.CommandPath(), line)
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	for _, cmd := range people.New(env) {
		walk(cmd)
	}
}
