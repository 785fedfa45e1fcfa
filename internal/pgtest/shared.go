package pgtest

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

// Shared is one server for all tests of a binary, started by the first that
// wants it. A test package holds one and hands its tests through Around:
//
//	var pg pgtest.Shared
//
//	func TestMain(m *testing.M) { os.Exit(pg.Around(m).Run()) }
//
// Tests that kill, freeze or skew a server start one of their own.
type Shared struct {
	mu     sync.Mutex // guards server
	server *Server
}

// Tests are a binary's tests: a *testing.M.
type Tests interface {
	Run() int
}

// around are tests after which a shared server ends.
type around struct {
	Tests
	shared *Shared
}

// Around returns the tests with the end of the server after them.
func (s *Shared) Around(m Tests) Tests { return around{m, s} }

// Run runs the tests, ends the server, and returns the exit code.
func (a around) Run() int {
	code := a.Tests.Run()
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	if s := a.shared.server; s != nil {
		a.shared.server = nil
		if err := s.close(); err != nil {
			fmt.Fprintln(os.Stderr, "end PostgreSQL:", err)
			code = max(code, 1)
		}
	}
	return code
}

// Server is the server. It ends the test where there is none to be had.
func (s *Shared) Server(t testing.TB) *Server {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		s.server = launch(t, nil)
	}
	return s.server
}

// Database makes an empty database on the server and returns its URL.
func (s *Shared) Database(t testing.TB) string {
	t.Helper()
	return s.Server(t).Database(t)
}
