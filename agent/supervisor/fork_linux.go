package supervisor

import (
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"offpeak/agent/driver/relay"
)

// dropAmbient takes back the capabilities with which an unprivileged agent let
// this process mount its /proc, so that no job inherits them.
func dropAmbient() {
	_, _, _ = syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0)
}

// startForker starts the thread that forks jobs, a member of the v1 groups.
// Without v1 groups any thread forks.
func (s *server) startForker() error {
	if len(s.cg.v1) == 0 {
		return nil
	}
	s.forks, s.forkDone = make(chan func()), make(chan struct{})
	joined := make(chan error)
	go s.forker(joined)
	if err := <-joined; err != nil {
		s.stopForker()
		return err
	}
	return nil
}

func (s *server) forker(joined chan<- error) {
	defer close(s.forkDone)
	runtime.LockOSThread() // and never unlocked: the thread ends with it
	if unix.Gettid() == os.Getpid() {
		// Memory is charged where a process's first thread is: that one must
		// stay outside. While it is locked here another thread takes the part.
		defer runtime.UnlockOSThread()
		inner := &server{cg: s.cg, forks: s.forks, forkDone: make(chan struct{})}
		go inner.forker(joined)
		for range inner.forkDone {
			s.forkDone <- struct{}{}
		}
		return
	}
	joined <- s.cg.joinV1()
	for fork := range s.forks {
		fork()
		s.forkDone <- struct{}{}
	}
	s.cg.leaveV1()
}

func (s *server) stopForker() {
	if s.forks != nil {
		close(s.forks)
		<-s.forkDone
		s.forks = nil
	}
}

func (s *server) fork(f func()) {
	if s.forks == nil {
		f()
		return
	}
	s.forks <- f
	<-s.forkDone
}

// forkApart forks from a thread in a network namespace of its own, which has
// loopback and nothing else. The thread lives until then: a child may be told to
// die with it.
func (s *server) forkApart(until <-chan struct{}, fork func() error) error {
	started := make(chan error)
	go s.apart(started, until, fork)
	return <-started
}

func (s *server) apart(started chan<- error, until <-chan struct{}, fork func() error) {
	runtime.LockOSThread() // and never unlocked: the thread ends with it
	if unix.Gettid() == os.Getpid() {
		// The first thread stays what it is, as in forker.
		defer runtime.UnlockOSThread()
		inner := make(chan error)
		go s.apart(inner, until, fork)
		started <- <-inner
		return
	}
	err := s.enterApart()
	if err == nil {
		err = fork()
	}
	started <- err
	if err == nil {
		<-until
	}
	if len(s.cg.v1) > 0 {
		s.cg.leaveV1()
	}
}

func (s *server) enterApart() error {
	if len(s.cg.v1) > 0 {
		if err := s.cg.joinV1(); err != nil {
			return err
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace for the job: %w", err)
	}
	return relay.Loopback()
}
