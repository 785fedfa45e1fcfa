package supervisor

import (
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
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
