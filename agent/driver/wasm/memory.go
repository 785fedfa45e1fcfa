package wasm

import (
	"fmt"
	"syscall"

	"github.com/tetratelabs/wazero/experimental"

	"offpeak"
	"offpeak/agent/driver"
)

// memory is a module's linear memory: address space for all that it may ever
// have, of which untouched pages cost nothing, so that growing never copies. It
// remembers that the module asked for more than it may have.
type memory struct {
	// limit is in bytes.
	limit   uint64
	space   []byte
	refused bool
}

// Allocate implements experimental.MemoryAllocator.
func (m *memory) Allocate(_, most uint64) experimental.LinearMemory {
	m.limit = min(m.limit, most)
	return m
}

// Reallocate implements experimental.LinearMemory. What a module has from the
// start is given in any case, since the engine takes no refusal: the caller
// looks before it starts the module.
func (m *memory) Reallocate(size uint64) []byte {
	if size > m.limit {
		m.refused = true
		if m.space != nil {
			return nil
		}
	}
	if m.space == nil {
		space, err := syscall.Mmap(-1, 0, int(max(m.limit, size, 1)), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
		if err != nil {
			m.refused = true
			space = make([]byte, size)
		}
		m.space = space
	}
	if size > uint64(len(m.space)) {
		return nil
	}
	return m.space[:size]
}

// Free implements experimental.LinearMemory: the process ends with its module.
func (m *memory) Free() {}

// shortage is the end of a module that failed after it was refused memory.
func (m *memory) shortage() *driver.StartError {
	return &driver.StartError{
		Reason: offpeak.EndOutOfMemory,
		Detail: fmt.Sprintf("the module asked for more than the %s of memory that it may have", offpeak.Bytes(m.limit)),
	}
}
