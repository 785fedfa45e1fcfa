package hub

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"offpeak"
	"offpeak/store"
	"offpeak/wire"
)

// challengeLife is how long a challenge may be signed.
const challengeLife = time.Minute

// Enrol turns a join token into a node.
func (h *Hub) Enrol(ctx context.Context, join offpeak.Token, in wire.Enrol, address string) (wire.Enrolled, error) {
	if join.Role != offpeak.RoleJoin {
		return wire.Enrolled{}, fmt.Errorf("enrol: a join token is needed: %w", offpeak.ErrForbidden)
	}
	if len(in.Key) != ed25519.PublicKeySize {
		return wire.Enrolled{}, &offpeak.FieldError{Field: "key", Rule: "is an Ed25519 public key of 32 bytes"}
	}
	if !ed25519.Verify(in.Key, wire.EnrolMessage(join.ID), in.Proof) {
		return wire.Enrolled{}, &offpeak.FieldError{Field: "proof", Rule: "is the signature of the enrolment message by the key"}
	}
	if err := checkInventory(&in.Inventory); err != nil {
		return wire.Enrolled{}, err
	}
	name := in.Name
	if name == "" {
		if name = in.Inventory.Hostname; offpeak.ValidName("name", name) != nil {
			name = "node"
		}
	}
	if err := offpeak.ValidName("name", name); err != nil {
		return wire.Enrolled{}, err
	}
	id, err := h.newID("node")
	if err != nil {
		return wire.Enrolled{}, err
	}
	actor := offpeak.Actor{Account: join.Account, Token: join.ID, Role: offpeak.RoleJoin, Address: address}
	ctx, done := h.settling(ctx)
	defer done()
	n, err := h.env.Store.Enrol(ctx, join.ID, store.NewNode{
		ID: offpeak.NodeID(id), Name: name, Key: in.Key, Inventory: in.Inventory,
	}, actor)
	if err != nil {
		return wire.Enrolled{}, fmt.Errorf("enrol: %w", h.failed(err))
	}
	// The token may have been used up.
	h.tokens.drop(func(t *offpeak.Token) bool { return t.ID == join.ID })
	if err := h.reload(ctx, n.ID); err != nil {
		h.distrust(n.ID)
	}
	h.tail.ring()
	return wire.Enrolled{Node: n.ID, Account: n.Account, Name: n.Name, Hubs: h.cfg.Hubs, Generation: n.Generation}, nil
}

// checkInventory refuses what no machine has.
func checkInventory(inv *offpeak.Inventory) error {
	var errs []error
	within := func(field string, n, most int64) {
		if n < 0 || n > most {
			errs = append(errs, &offpeak.FieldError{Field: field, Value: fmt.Sprint(n), Rule: fmt.Sprintf("is from 0 to %d", most)})
		}
	}
	within("inventory.cpu_milli", inv.CPU, 4096*1000)
	within("inventory.memory_bytes", int64(inv.Memory), int64(offpeak.MaxBytes))
	within("inventory.disk_bytes", int64(inv.Disk), int64(offpeak.MaxBytes))
	within("inventory.devices", int64(len(inv.Devices)), 64)
	within("inventory.drivers", int64(len(inv.Drivers)), 64)
	within("inventory.shared_drivers", int64(len(inv.Shared)), 64)
	within("inventory.labels", int64(len(inv.Labels)), 64)
	seen := make(map[offpeak.DeviceID]bool, len(inv.Devices))
	for i, d := range inv.Devices {
		field := fmt.Sprintf("inventory.devices[%d]", i)
		within(field+".vram_bytes", int64(d.VRAM), int64(16*offpeak.TiB))
		if d.ID == "" || len(d.ID) > 128 || seen[d.ID] {
			errs = append(errs, &offpeak.FieldError{Field: field + ".id", Value: string(d.ID), Rule: "names the device, once, in at most 128 bytes"})
		}
		seen[d.ID] = true
	}
	return errors.Join(errs...)
}

// Challenge returns something to sign, good for a minute; the hub keeps no
// state of it.
func (h *Hub) Challenge() wire.Challenge {
	var b [16 + 8 + sha256.Size]byte
	if _, err := io.ReadFull(h.env.Random, b[:16]); err != nil {
		// It can't be signed for a session then: its time is long past.
		h.env.Log.Error("draw challenge", "err", err)
		return wire.Challenge{Challenge: base64.RawURLEncoding.EncodeToString(b[:])}
	}
	binary.BigEndian.PutUint64(b[16:24], uint64(h.env.Now().UnixMilli()))
	copy(b[24:], h.challengeMAC(b[:24]))
	return wire.Challenge{Challenge: base64.RawURLEncoding.EncodeToString(b[:])}
}

func (h *Hub) challengeMAC(b []byte) []byte {
	mac := hmac.New(sha256.New, h.challengeKey[:])
	mac.Write(b)
	return mac.Sum(nil)
}

func (h *Hub) checkChallenge(text string) error {
	stale := fmt.Errorf("the challenge is not of this hub or too old: ask for a new one: %w", offpeak.ErrUnauthenticated)
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) != 24+sha256.Size || !hmac.Equal(b[24:], h.challengeMAC(b[:24])) {
		return stale
	}
	age := h.env.Now().Sub(time.UnixMilli(int64(binary.BigEndian.Uint64(b[16:24]))))
	if age < -time.Second || age > challengeLife {
		return stale
	}
	return nil
}

// OpenSession checks the signature and opens a node's session. It returns
// ErrUnknownNode, ErrUnauthenticated, or ErrIdentityConflict.
func (h *Hub) OpenSession(ctx context.Context, in wire.OpenSession, address string) (wire.Session, error) {
	if in.Incarnation == "" || len(in.Incarnation) > 64 || len(in.Previous) > 64 {
		return wire.Session{}, &offpeak.FieldError{Field: "incarnation", Rule: "is 1 to 64 bytes drawn when the agent started"}
	}
	if err := h.checkChallenge(in.Challenge); err != nil {
		return wire.Session{}, fmt.Errorf("open session: %w", err)
	}
	n, err := h.env.Store.Node(ctx, "", in.Node)
	if errors.Is(err, offpeak.ErrNotFound) {
		return wire.Session{}, fmt.Errorf("open session: %w", offpeak.ErrUnknownNode)
	}
	if err != nil {
		return wire.Session{}, fmt.Errorf("open session: %w", err)
	}
	message := wire.SessionMessage(in.Challenge, in.Node, in.Incarnation, in.Generation)
	if len(n.Key) != ed25519.PublicKeySize || !ed25519.Verify(n.Key, message, in.Signature) {
		return wire.Session{}, fmt.Errorf("open session: the signature is not of the node's key: %w", offpeak.ErrUnauthenticated)
	}
	t, bearer, err := h.mint(offpeak.RoleNode, n.Account, h.cfg.Session, -1)
	if err != nil {
		return wire.Session{}, err
	}
	t.Node = n.ID
	ctx, done := h.settling(ctx)
	defer done()
	n, err = h.env.Store.OpenSession(ctx, store.NewSession{
		Node: in.Node, Incarnation: in.Incarnation, Previous: in.Previous,
		Generation: in.Generation, Token: t, Address: address,
	})
	if err != nil {
		if errors.Is(err, offpeak.ErrNotFound) {
			err = errors.Join(offpeak.ErrUnknownNode, err)
		}
		return wire.Session{}, fmt.Errorf("open session: %w", h.failed(err))
	}
	h.tokens.replace(n.ID, t.ID)
	h.peers.get(n.ID).renewed()
	h.tail.ring()
	return wire.Session{
		Token: bearer, ExpiresAt: t.ExpiresAt, Generation: n.Generation, Name: n.Name,
		Refresh: offpeak.Duration(h.cfg.Session * 2 / 3),
	}, nil
}

// distrust has a node read anew before the next match.
func (h *Hub) distrust(id offpeak.NodeID) {
	h.mu.Lock()
	h.stale[id] = struct{}{}
	h.mu.Unlock()
	h.wake()
}
