package hub

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"time"

	"go.jetify.com/typeid"

	"offpeak"
)

// NewID makes the id of a run of a hub process.
func NewID(now time.Time, random io.Reader) (offpeak.HubID, error) {
	id, err := newID("hub", now, random)
	return offpeak.HubID(id), err
}

func (h *Hub) newID(prefix string) (string, error) {
	return newID(prefix, h.env.Now(), h.env.Random)
}

// newID makes an id that sorts by time: a UUIDv7 behind a prefix.
func newID(prefix string, now time.Time, random io.Reader) (string, error) {
	var b [16]byte
	if _, err := io.ReadFull(random, b[6:]); err != nil {
		return "", fmt.Errorf("draw id: %w", err)
	}
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(now.UnixMilli()))
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
