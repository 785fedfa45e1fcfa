package world

import (
	"runtime"
	"runtime/debug"

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

// NewBuild reads what the binary knows of itself; the linker's stamps go first.
func NewBuild(env Env) Build {
	b := Build{Version: env.Version, Commit: env.Commit, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, Protocol: wire.Protocol}
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				if b.Commit == "" {
					b.Commit = s.Value
				}
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
