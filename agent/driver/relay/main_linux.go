package relay

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"offpeak"
	"offpeak/agent/driver"
)

const (
	// maxPipes is how many connections are carried at once; more wait.
	maxPipes = 256
	// linger is how long a job may go on sending once the proxy has hung up. It is
	// the proxy that ends what is idle.
	linger = 30 * time.Second
)

// Main is the body of the relay; args follow the command's name. It returns only
// if the command was not started.
func Main(args []string) int {
	var o options
	flags := flag.NewFlagSet(Command, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.socket, "socket", "", "the proxy's socket")
	flags.StringVar(&o.path, "path", "", "the command's executable")
	flags.Func("closed", "an address that must not be reachable", func(s string) error {
		a, err := netip.ParseAddr(s)
		o.closed = append(o.closed, a)
		return err
	})
	report := flags.Bool("report", false, "descriptor 3 is a supervisor's")
	serving := flags.Bool("serve", false, "carry bytes for the listener at descriptor 3")
	if err := flags.Parse(args); err != nil || o.socket == "" {
		fmt.Fprintln(os.Stderr, "usage: offpeak relay --socket PATH [--path FILE] [--closed IP]… -- COMMAND ARGS…")
		return 2
	}
	o.command = flags.Args()
	if *serving {
		return serve(o.socket)
	}
	if *report {
		unix.CloseOnExec(reportFD)
	}
	err := o.run()
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "offpeak:", err)
	if *report {
		se, ok := errors.AsType[*driver.StartError](err)
		if !ok {
			se = &driver.StartError{Reason: offpeak.EndNodeError, Detail: err.Error()}
		}
		if data, err := json.Marshal(se); err == nil {
			_, _ = unix.Write(reportFD, data)
		}
	}
	return exitReported
}

type options struct {
	socket, path string
	closed       []netip.Addr
	command      []string
}

// run becomes the command, behind a relay. Without a command it only looks.
func (o *options) run() error {
	if err := raiseLoopback(); err != nil {
		return err
	}
	if err := Closed(o.closed); err != nil {
		return err
	}
	if len(o.command) == 0 {
		return nil
	}
	if err := o.leaveServer(); err != nil {
		return err
	}
	path := o.path
	if path == "" {
		found, err := exec.LookPath(o.command[0])
		if err != nil {
			return &driver.StartError{Reason: offpeak.EndCommandNotFound, Detail: err.Error()}
		}
		path = found
	}
	dropAmbient()
	err := unix.Exec(path, o.command, os.Environ())
	return &driver.StartError{Reason: offpeak.EndCommandNotFound, Detail: fmt.Sprintf("start %s: %v", path, err)}
}

// leaveServer starts the process that carries bytes. It is no child of the command,
// which may wait for all of its children, but its sibling.
func (o *options) leaveServer() error {
	l, err := net.Listen("tcp4", Address)
	if err != nil {
		return fmt.Errorf("listen for the job's proxy: %w", err)
	}
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return fmt.Errorf("listen for the job's proxy: %w", err)
	}
	defer f.Close()
	l.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	exe := "/proc/self/exe"
	// Its own name is told by the path of the binary where /proc is not there.
	if _, err := os.Stat(exe); err != nil {
		exe = os.Args[0]
	}
	attr := syscall.ProcAttr{
		Dir: "/", Env: []string{"GOMAXPROCS=1"},
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), f.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_PARENT},
	}
	argv := []string{filepath.Base(os.Args[0]), Command, "--serve", "--socket", o.socket}
	_, err = syscall.ForkExec(exe, argv, &attr)
	if errors.Is(err, syscall.EINVAL) {
		// The first process of a PID namespace has no siblings.
		attr.Sys.Cloneflags = 0
		_, err = syscall.ForkExec(exe, argv, &attr)
	}
	if err != nil {
		return fmt.Errorf("start the relay of the job's proxy: %w", err)
	}
	return nil
}

// dropAmbient takes back the right with which loopback was raised.
func dropAmbient() {
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
}

// raiseLoopback brings loopback up, if nobody has.
func raiseLoopback() error {
	if i, err := net.InterfaceByName("lo"); err == nil && i.Flags&net.FlagUp != 0 {
		return nil
	}
	return Loopback()
}

// Loopback brings loopback up in the network namespace of the calling thread.
func Loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	return nil
}

// Closed returns nil if the network namespace of this process has loopback alone
// and no way to any of the addresses, else what is wrong with it. It sends nothing.
func Closed(addresses []netip.Addr) error {
	list, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("look at the job's network: %w", err)
	}
	for _, i := range list {
		// The kernel puts tunnels that are down into every namespace.
		if i.Flags&net.FlagLoopback == 0 && i.Flags&net.FlagUp != 0 {
			return fmt.Errorf("the job's network is not closed: it has %s", i.Name)
		}
	}
	for _, a := range append([]netip.Addr{
		netip.AddrFrom4([4]byte{1, 1, 1, 1}), netip.MustParseAddr("2606:4700:4700::1111"),
	}, addresses...) {
		if a.IsLoopback() {
			continue
		}
		// To connect a datagram socket asks for the way and sends nothing.
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 9)))
		if err == nil {
			c.Close()
			return fmt.Errorf("the job's network is not closed: it has a way to %s", a)
		}
		if !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.EAFNOSUPPORT) &&
			!errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("the job's network may not be closed: a way to %s: %w", a, err)
		}
	}
	return nil
}

// serve carries bytes between the listener at descriptor 3 and the proxy, until it
// is killed with the job.
func serve(socket string) int {
	debug.SetGCPercent(20)
	f := os.NewFile(reportFD, "listener")
	l, err := net.FileListener(f)
	f.Close()
	if err != nil {
		return 1
	}
	// A socket's path has room for 107 bytes, so it is reached from its folder.
	if err := os.Chdir(filepath.Dir(socket)); err != nil {
		return 1
	}
	name := filepath.Base(socket)
	room := make(chan struct{}, maxPipes)
	for {
		c, err := l.Accept()
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors
			continue
		}
		room <- struct{}{}
		go func() {
			defer func() { <-room }()
			carry(c.(*net.TCPConn), name)
		}()
	}
}

func carry(c *net.TCPConn, name string) {
	defer c.Close()
	p, err := net.Dial("unix", name)
	if err != nil {
		const said = "HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s"
		const why = "offpeak: the agent of this machine is away; try again\n"
		// An answer before the question is none.
		_ = c.SetReadDeadline(time.Now().Add(linger))
		_, _ = c.Read(make([]byte, 4<<10))
		fmt.Fprintf(c, said, len(why), why)
		// To close on what was not read would take the answer away again.
		_ = c.CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = io.Copy(io.Discard, io.LimitReader(c, 64<<10))
		return
	}
	proxy := p.(*net.UnixConn)
	defer proxy.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(proxy, c)
		_ = proxy.CloseWrite()
	}()
	_, _ = io.Copy(c, proxy)
	_ = c.CloseWrite()
	_ = c.SetReadDeadline(time.Now().Add(linger))
	<-done
}
