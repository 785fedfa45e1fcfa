package cli

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"offpeak/wire"
)

// Build is what a binary knows of its making.
type Build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	Protocol int    `json:"protocol"`
}

// build reads it from the binary; version is the linker's stamp, if there is one.
func build(version string) Build {
	b := Build{Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, Protocol: wire.Protocol}
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
		if b.Version == "" && info.Main.Version != "(devel)" {
			b.Version = info.Main.Version
		}
	}
	if b.Version == "" {
		b.Version = "devel"
	}
	return b
}

func newVersion(env Env) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			b := build(env.Version)
			switch format {
			case "json":
				e := json.NewEncoder(env.Stdout)
				e.SetIndent("", "  ")
				return e.Encode(b)
			case "table":
				commit := b.Commit
				if len(commit) > 12 {
					commit = commit[:12]
				}
				if b.Modified {
					commit += " with changes"
				}
				if commit != "" {
					commit = " (" + commit + ")"
				}
				_, err := fmt.Fprintf(env.Stdout, "offpeak %s%s, %s, %s/%s, protocol %d\n", b.Version, commit, b.Go, b.OS, b.Arch, b.Protocol)
				return err
			}
			return badInput("--format: %q: is table or json", format)
		},
	}
	cmd.Flags().StringVarP(&format, "format", "o", "table", "print `table` or json")
	return cmd
}

// badInput is an error that ends the process with exit code 2.
func badInput(format string, args ...any) error {
	return &ExitError{Code: 2, Err: fmt.Errorf(format, args...)}
}

// noArgs refuses arguments as bad input.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return badInput("%s takes no arguments, got %q", cmd.CommandPath(), args[0])
	}
	return nil
}
