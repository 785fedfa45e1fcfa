package hub

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"

	"go.jetify.com/typeid"

	"offpeak"
)

// newID makes an id that sorts by time: a UUIDv7 behind a prefix, from the
// hub's own clock and randomness.
func (h *Hub) newID(prefix string) (string, error) {
	var b [16]byte
	if _, err := io.ReadFull(h.env.Random, b[6:]); err != nil {
		return "", fmt.Errorf("draw id: %w", err)
	}
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(h.env.Now().UnixMilli()))
	copy(b[:6], ms[2:])
	b[6] = b[6]&0x0f | 0x70
	b[8] = b[8]&0x3f | 0x80
	id, err := typeid.FromUUIDBytesWithPrefix(prefix, b[:])
	if err != nil {
		return "", fmt.Errorf("make id: %w", err)
	}
	return id.String(), nil
}

// newLease draws a lease id, which is never reused.
func (h *Hub) newLease() (offpeak.LeaseID, error) {
	var b [16]byte
	if _, err := io.ReadFull(h.env.Random, b[:]); err != nil {
		return "", fmt.Errorf("draw lease id: %w", err)
	}
	return offpeak.LeaseID("lease_" + hex.EncodeToString(b[:])), nil
}
