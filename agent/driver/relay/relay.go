// Package relay is how a job without a network reaches the proxy of its agent.
//
// The agent speaks an HTTP proxy on a Unix socket (agent/egress), which no network
// namespace hides. A job's programs want an address, so in the job's namespace this
// binary, as "offpeak relay", listens on 127.0.0.1:3128, leaves a process behind
// that carries bytes between the two, and becomes the job's command: the command
// keeps its process number, its signals and its exit code.
//
// Before that it looks where it is. If there is anything but loopback, or a way to
// an address that must be closed, the command is not started: a sandbox that was
// set up wrong is a fault of the node, and no job runs in it.
//
// The relay decides nothing else and has no right that the job has not: a job that
// breaks it has cut itself off. The package must know nothing of leases, proxies or
// what may be reached. It is tested in namespaces of its own.
package relay

import (
	"offpeak/agent/driver"
)

const (
	// Command is the hidden command whose body is Main.
	Command = "relay"
	// Address is where jobs find the proxy.
	Address = "127.0.0.1:3128"
	// reportFD is where a supervisor reads why a command did not run.
	reportFD = 3
	// exitReported is the exit status of what did not run at all.
	exitReported = 125
)

// Wrap has a command run behind a relay to the proxy on socket, in a network
// namespace that the supervisor makes. exe is this binary, closed are addresses of
// which none may be reachable.
func Wrap(exe string, c driver.Command, socket string, closed []string) driver.Command {
	c.Path, c.Args = exe, append(Args(exe, c.Path, socket, closed, true), c.Args...)
	c.Report, c.NoNetwork = true, true
	return c
}

// Args are what to put before the arguments of a command, its name included, to
// have it run behind a relay; exe and socket are paths as the job sees them. path is
// the executable, "" to look for the first argument in PATH. report says that
// descriptor 3 is a supervisor's.
func Args(exe, path, socket string, closed []string, report bool) []string {
	args := []string{exe, Command, "--socket", socket}
	if path != "" {
		args = append(args, "--path", path)
	}
	for _, a := range closed {
		args = append(args, "--closed", a)
	}
	if report {
		args = append(args, "--report")
	}
	return append(args, "--")
}

// Environment is what programs look for to find the proxy.
func Environment() map[string]string {
	const proxy, not = "http://" + Address, "localhost,127.0.0.1,::1"
	return map[string]string{
		"http_proxy": proxy, "https_proxy": proxy, "all_proxy": proxy, "no_proxy": not,
		"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "ALL_PROXY": proxy, "NO_PROXY": not,
	}
}
