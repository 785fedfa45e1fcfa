package access

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

// Enrol turns a join token into a node. What the node has is for the caller to
// check.
func (c *Control) Enrol(ctx context.Context, join offpeak.Token, in wire.Enrol, address string) (wire.Enrolled, error) {
	if join.Role != offpeak.RoleJoin {
		return wire.Enrolled{}, fmt.Errorf("enrol: a join token is needed: %w", offpeak.ErrForbidden)
	}
	if len(in.Key) != ed25519.PublicKeySize {
		return wire.Enrolled{}, &offpeak.FieldError{Field: "key", Rule: "is an Ed25519 public key of 32 bytes"}
	}
	if !ed25519.Verify(in.Key, wire.EnrolMessage(join.ID), in.Proof) {
		return wire.Enrolled{}, &offpeak.FieldError{Field: "proof", Rule: "is the signature of the enrolment message by the key"}
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
	id, err := c.env.NewID("node")
	if err != nil {
		return wire.Enrolled{}, err
	}
	actor := offpeak.Actor{Account: join.Account, Token: join.ID, Role: offpeak.RoleJoin, Address: address}
	ctx, done := settling(ctx)
	defer done()
	n, err := c.env.Store.Enrol(ctx, join.ID, store.NewNode{
		ID: offpeak.NodeID(id), Name: name, Key: in.Key, Inventory: in.Inventory,
	}, actor)
	// The token may have been used up, also where the outcome is unknown.
	c.cache.drop(func(t *offpeak.Token) bool { return t.ID == join.ID })
	if err != nil {
		return wire.Enrolled{}, fmt.Errorf("enrol: %w", err)
	}
	c.env.Wrote()
	return wire.Enrolled{Node: n.ID, Account: n.Account, Name: n.Name, Hubs: c.env.Addresses(), Generation: n.Generation}, nil
}

// Forget forgets a removed node's session at once.
func (c *Control) Forget(node offpeak.NodeID) { c.cache.replace(node, "") }

// Challenge returns something to sign, good for a minute; the hub keeps no
// state of it.
func (c *Control) Challenge() wire.Challenge {
	var b [16 + 8 + sha256.Size]byte
	if _, err := io.ReadFull(c.env.Random, b[:16]); err != nil {
		// It can't be signed for a session then: its time is long past.
		c.env.Log.Error("draw challenge", "err", err)
		return wire.Challenge{Challenge: base64.RawURLEncoding.EncodeToString(b[:])}
	}
	binary.BigEndian.PutUint64(b[16:24], uint64(c.env.Now().UnixMilli()))
	copy(b[24:], c.challengeMAC(b[:24]))
	return wire.Challenge{Challenge: base64.RawURLEncoding.EncodeToString(b[:])}
}

func (c *Control) challengeMAC(b []byte) []byte {
	mac := hmac.New(sha256.New, c.challengeKey[:])
	mac.Write(b)
	return mac.Sum(nil)
}

func (c *Control) checkChallenge(text string) error {
	stale := fmt.Errorf("the challenge is not of this hub or too old: ask for a new one: %w", offpeak.ErrUnauthenticated)
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) != 24+sha256.Size || !hmac.Equal(b[24:], c.challengeMAC(b[:24])) {
		return stale
	}
	age := c.env.Now().Sub(time.UnixMilli(int64(binary.BigEndian.Uint64(b[16:24]))))
	if age < -time.Second || age > challengeLife {
		return stale
	}
	return nil
}

// OpenSession checks the signature and opens a node's session. It returns
// ErrUnknownNode, ErrUnauthenticated, or ErrIdentityConflict.
func (c *Control) OpenSession(ctx context.Context, in wire.OpenSession, address string) (wire.Session, error) {
	if in.Incarnation == "" || len(in.Incarnation) > 64 || len(in.Previous) > 64 {
		return wire.Session{}, &offpeak.FieldError{Field: "incarnation", Rule: "is 1 to 64 bytes drawn when the agent started"}
	}
	if err := c.checkChallenge(in.Challenge); err != nil {
		return wire.Session{}, fmt.Errorf("open session: %w", err)
	}
	n, err := c.env.Store.Node(ctx, "", in.Node)
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
	t, bearer, err := c.mint(offpeak.RoleNode, n.Account, c.cfg.Session, -1)
	if err != nil {
		return wire.Session{}, err
	}
	t.Node = n.ID
	ctx, done := settling(ctx)
	defer done()
	n, err = c.env.Store.OpenSession(ctx, store.NewSession{
		Node: in.Node, Incarnation: in.Incarnation, Previous: in.Previous,
		Generation: in.Generation, Token: t, Address: address,
	})
	if err != nil {
		if errors.Is(err, offpeak.ErrNotFound) {
			err = errors.Join(offpeak.ErrUnknownNode, err)
		}
		return wire.Session{}, fmt.Errorf("open session: %w", err)
	}
	c.cache.replace(n.ID, t.ID)
	c.env.Wrote()
	return wire.Session{
		Token: bearer, ExpiresAt: t.ExpiresAt, Generation: n.Generation, Name: n.Name,
		Refresh: offpeak.Duration(c.cfg.Session * 2 / 3),
	}, nil
}
