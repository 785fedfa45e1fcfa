package sqlstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"offpeak"
	"offpeak/store"
)

// firstTimeout is a node's timeout until its first heartbeat was granted one.
const firstTimeout = time.Minute

// Enrol creates a node.
func (s *Store) Enrol(ctx context.Context, join offpeak.TokenID, n store.NewNode, actor offpeak.Actor) (offpeak.Node, error) {
	return write(ctx, s, "enrol node", func(t *verb) (offpeak.Node, error) {
		var account offpeak.AccountID
		var role offpeak.Role
		var uses, expires, revoked int64
		// Many nodes enrol at once with one token: they take turns.
		if err := t.Lock(`SELECT 1 FROM tokens WHERE id = $1`+forUpdate, string(join)); err != nil {
			return offpeak.Node{}, err
		}
		err := t.row(`SELECT account, role, uses_left, expires_at, revoked_at FROM tokens WHERE id = $1`, []any{string(join)}, &account, &role, &uses, &expires, &revoked)
		if errors.Is(err, offpeak.ErrNotFound) || err == nil && (role != offpeak.RoleJoin || revoked != 0 || expires != 0 && expires <= micros(t.now)) {
			return offpeak.Node{}, offpeak.ErrUnauthenticated
		}
		if err != nil {
			return offpeak.Node{}, err
		}
		// Who sets the account's plan now does so before or after.
		if err := t.Lock(`SELECT 1 FROM accounts WHERE id = $1`+forUpdate, string(account)); err != nil {
			return offpeak.Node{}, err
		}
		var have offpeak.NodeID
		err = t.row(`SELECT id FROM nodes WHERE key = $1 AND removed_at = 0`, []any{n.Key}, &have)
		if err == nil {
			old, err := t.node("", have)
			if err != nil {
				return offpeak.Node{}, err
			}
			if old.Account != account {
				return offpeak.Node{}, fmt.Errorf("the key belongs to another account's node: %w", offpeak.ErrConflict)
			}
			return old.Node, nil
		}
		if !errors.Is(err, offpeak.ErrNotFound) {
			return offpeak.Node{}, err
		}
		if uses == 0 {
			return offpeak.Node{}, offpeak.ErrUnauthenticated
		}
		if uses > 0 {
			if err := t.must(`UPDATE tokens SET uses_left = uses_left - 1, last_used = $1 WHERE id = $2 AND uses_left = $3`, micros(t.now), string(join), uses); err != nil {
				return offpeak.Node{}, err
			}
		}
		inv, err := json.Marshal(n.Inventory)
		if err != nil {
			return offpeak.Node{}, err
		}
		cpu, memory, disk := n.Inventory.CPU, int64(n.Inventory.Memory), int64(n.Inventory.Disk)
		if _, err := t.Exec(`INSERT INTO nodes (id, account, name, key, liveness, intent, availability, inventory, claimed_cpu, claimed_memory, claimed_disk, capacity_cpu, capacity_memory, capacity_disk, timeout, enrolled_at)
			VALUES ($1, $2, $3, $4, 'offline', 'open', 'available', $5, $6, $7, $8, $6, $7, $8, $9, $10)`,
			string(n.ID), string(account), n.Name, n.Key, string(inv), cpu, memory, disk, span(firstTimeout), micros(t.now)); err != nil {
			return offpeak.Node{}, err
		}
		if err := t.devices(n.ID, n.Inventory.Devices); err != nil {
			return offpeak.Node{}, err
		}
		if err := t.firstAsk(n.ID, account); err != nil {
			return offpeak.Node{}, err
		}
		node, err := t.node("", n.ID)
		if err != nil {
			return offpeak.Node{}, err
		}
		t.event(offpeak.Event{Type: "node.enrolled", Account: account, Node: n.ID, Data: data(map[string]any{"name": n.Name, "inventory": n.Inventory, "ask": node.Ask})})
		t.audit(actor, "node.enrol", string(n.ID), "done")
		return node.Node, nil
	})
}

// devices makes the rows of a node's devices those of its inventory.
func (t *verb) devices(id offpeak.NodeID, have []offpeak.Device) error {
	if _, err := t.Exec(`UPDATE node_devices SET gone = 1 WHERE node = $1`, string(id)); err != nil {
		return err
	}
	for _, d := range have {
		if _, err := t.Exec(`INSERT INTO node_devices (node, device, vendor, model, vram, gone) VALUES ($1, $2, $3, $4, $5, 0)
			ON CONFLICT (node, device) DO UPDATE SET vendor = excluded.vendor, model = excluded.model, vram = excluded.vram, gone = 0`,
			string(id), string(d.ID), d.Vendor, d.Model, int64(d.VRAM)); err != nil {
			return err
		}
	}
	return nil
}

// OpenSession opens a session.
func (s *Store) OpenSession(ctx context.Context, n store.NewSession) (offpeak.Node, error) {
	type opened struct {
		node     offpeak.Node
		conflict bool
	}
	out, err := write(ctx, s, "open session of node "+string(n.Node), func(t *verb) (opened, error) {
		if err := t.lockNodes(n.Node); err != nil {
			return opened{}, err
		}
		have, err := t.node("", n.Node)
		if errors.Is(err, offpeak.ErrNotFound) {
			return opened{}, offpeak.ErrUnknownNode
		}
		if err != nil {
			return opened{}, err
		}
		actor := byNode(have.Account, have.ID)
		actor.Address = n.Address
		again := n.Generation == have.Generation-1 && have.Incarnation != "" && (n.Incarnation == have.Incarnation || n.Previous == have.Incarnation)
		if n.Generation < have.Generation && !again {
			// The event is worth keeping, so this refusal commits.
			t.event(offpeak.Event{Type: "node.identity_conflict", Account: have.Account, Node: have.ID, Data: data(map[string]any{"address": n.Address, "generation": n.Generation, "expected": have.Generation})})
			t.audit(actor, "session.open", string(have.ID), "identity_conflict")
			return opened{conflict: true}, nil
		}
		// A node may be ahead of a hub that was restored from a backup.
		next := n.Generation + 1
		beat := have.beat
		if n.Incarnation != have.Incarnation {
			beat = 0
		}
		if err := t.must(`UPDATE nodes SET generation = $1, incarnation = $2, beat = $3 WHERE id = $4 AND generation = $5`, next, string(n.Incarnation), beat, string(have.ID), have.Generation); err != nil {
			return opened{}, err
		}
		if _, err := t.Exec(`DELETE FROM tokens WHERE node = $1`, string(have.ID)); err != nil {
			return opened{}, err
		}
		tok := n.Token
		tok.Node, tok.Role, tok.Account = have.ID, offpeak.RoleNode, have.Account
		if err := t.addToken(tok); err != nil {
			return opened{}, err
		}
		t.event(offpeak.Event{Type: "node.session", Account: have.Account, Node: have.ID, Data: data(map[string]any{"generation": next, "incarnation": n.Incarnation, "address": n.Address})})
		t.audit(actor, "session.open", string(have.ID), "done")
		have.Generation, have.Incarnation = next, n.Incarnation
		return opened{node: have.Node}, nil
	})
	if err == nil && out.conflict {
		err = fmt.Errorf("open session of node %s: %w", n.Node, offpeak.ErrIdentityConflict)
	}
	return out.node, err
}

// SetInventory stores what a node has.
func (s *Store) SetInventory(ctx context.Context, id offpeak.NodeID, inv offpeak.Inventory) (offpeak.Node, []store.Change, error) {
	if inv.CPU < 0 || inv.Memory < 0 || inv.Disk < 0 {
		return offpeak.Node{}, nil, &offpeak.FieldError{Field: "inventory", Rule: "has no negative amounts"}
	}
	text, err := json.Marshal(inv)
	if err != nil {
		return offpeak.Node{}, nil, fmt.Errorf("set inventory of node %s: %w", id, err)
	}
	type done struct {
		node    offpeak.Node
		changes []store.Change
	}
	out, err := write(ctx, s, "set inventory of node "+string(id), func(t *verb) (d done, err error) {
		if err := t.loadNodes(forUpdate, id); err != nil {
			return d, err
		}
		have, err := t.node("", id)
		if errors.Is(err, offpeak.ErrNotFound) {
			return d, offpeak.ErrUnknownNode
		}
		if err != nil {
			return d, err
		}
		was, err := json.Marshal(have.Inventory)
		if err != nil {
			return d, err
		}
		if bytes.Equal(was, text) {
			return done{node: have.Node}, nil
		}
		if err := t.must(`UPDATE nodes SET inventory = $1, claimed_cpu = $2, claimed_memory = $3, claimed_disk = $4 WHERE id = $5`,
			string(text), inv.CPU, int64(inv.Memory), int64(inv.Disk), string(id)); err != nil {
			return d, err
		}
		locked, r := t.rows.nodes[id], have.Reserved
		locked.claimed = offpeak.Resources{CPU: inv.CPU, Memory: inv.Memory, Disk: inv.Disk}
		locked.capacity = offpeak.Resources{CPU: max(inv.CPU, r.CPU), Memory: max(inv.Memory, r.Memory), Disk: max(inv.Disk, r.Disk)}
		t.touched(locked)
		if err := t.devices(id, inv.Devices); err != nil {
			return d, err
		}
		t.event(offpeak.Event{Type: "node.inventory", Account: have.Account, Node: id, Data: data(map[string]any{"inventory": inv})})
		t.audit(byNode(have.Account, id), "node.inventory", string(id), "done")
		if d.changes, err = s.shrink(t, id, inv); err != nil {
			return d, err
		}
		if err := t.put(s.cfg); err != nil {
			return d, err
		}
		n, err := t.node("", id)
		if err != nil {
			return d, err
		}
		d.node = n.Node
		return d, nil
	})
	return out.node, out.changes, err
}

// SetReadings stores what a node's devices do now.
func (s *Store) SetReadings(ctx context.Context, id offpeak.NodeID, readings []offpeak.Reading) error {
	text, err := json.Marshal(readings)
	if err != nil {
		return fmt.Errorf("set readings of node %s: %w", id, err)
	}
	_, err = write(ctx, s, "set readings of node "+string(id), func(t *verb) (struct{}, error) {
		if err := t.lockNodes(id); err != nil {
			return struct{}{}, err
		}
		n, err := t.Exec(`UPDATE nodes SET readings = $1 WHERE id = $2 AND removed_at = 0`, string(text), string(id))
		if err == nil && n == 0 {
			err = offpeak.ErrUnknownNode
		}
		return struct{}{}, err
	})
	return err
}

// shrink asks the leases that no longer fit a node's inventory to go: those
// that hold a device that is gone, then the newest until the rest fits. Offers it ends
// itself: nobody has begun with them.
func (s *Store) shrink(t *verb, id offpeak.NodeID, inv offpeak.Inventory) (ended []store.Change, err error) {
	live, err := t.leases(`node = $1 AND state IN ('offered', 'preparing', 'running') ORDER BY offered_at, id`, string(id))
	if err != nil {
		return nil, err
	}
	have := make(map[offpeak.DeviceID]bool, len(inv.Devices))
	for _, d := range inv.Devices {
		have[d.ID] = true
	}
	var used offpeak.Resources
	for _, l := range live {
		why := offpeak.EndReason("")
		for _, d := range l.Resources.Devices {
			if !have[d] {
				why = offpeak.EndDeviceLost
			}
		}
		r := l.Resources
		if why == "" && (used.CPU+r.CPU > inv.CPU || used.Memory+r.Memory > inv.Memory || used.Disk+r.Disk > inv.Disk) {
			why = offpeak.EndNodeError
		}
		if why == "" {
			used.CPU, used.Memory, used.Disk = used.CPU+r.CPU, used.Memory+r.Memory, used.Disk+r.Disk
			continue
		}
		if l.State == offpeak.LeaseOffered {
			c, err := s.endNow(t, l, ending{reason: offpeak.EndDeclined, detail: "the node no longer has what it was offered for"})
			if err != nil {
				return nil, err
			}
			ended = append(ended, c)
			continue
		}
		if _, err := s.stop(t, l, &job{}, why); err != nil {
			return nil, err
		}
	}
	return ended, nil
}

// SetIntent orders a node open, draining or closed.
func (s *Store) SetIntent(ctx context.Context, op store.Op, account offpeak.AccountID, id offpeak.NodeID, to offpeak.Intent, stop bool) (offpeak.Node, []store.Change, error) {
	type done struct {
		Node    offpeak.Node
		Changes []store.Change
	}
	out, err := write(ctx, s, "set intent of node "+string(id), func(t *verb) (done, error) {
		if err := t.loadNodes(forUpdate, id); err != nil {
			return done{}, err
		}
		d, _, err := once(t, op, "node."+string(to), string(id), func() (done, error) {
			n, err := t.node(account, id)
			if err != nil {
				return done{}, err
			}
			changes, err := s.intend(t, n, to, stop)
			if err != nil {
				return done{}, err
			}
			if err := t.put(s.cfg); err != nil {
				return done{}, err
			}
			n, err = t.node(account, id)
			if err != nil {
				return done{}, err
			}
			return done{Node: n.Node, Changes: changes}, nil
		})
		if err != nil {
			return done{}, err
		}
		// The key is not in the kept outcome.
		err = t.row(`SELECT key FROM nodes WHERE id = $1`, []any{string(d.Node.ID)}, &d.Node.Key)
		return d, err
	})
	return out.Node, out.Changes, err
}

func (s *Store) intend(t *verb, n *node, to offpeak.Intent, stop bool) ([]store.Change, error) {
	live, err := t.leases(`node = $1 AND `+liveLease+` ORDER BY offered_at, id`, string(n.ID))
	if err != nil {
		return nil, err
	}
	locked := t.rows.nodes[n.ID]
	move := func(next offpeak.Intent) error {
		if n.Intent == next {
			return nil
		}
		if err := n.Intent.To(next); err != nil {
			return err
		}
		if err := t.must(`UPDATE nodes SET intent = $1 WHERE id = $2 AND intent = $3`, string(next), string(n.ID), string(n.Intent)); err != nil {
			return err
		}
		n.Intent, locked.intent = next, next
		t.touched(locked)
		e := offpeak.Event{Type: "node." + string(next), Account: n.Account, Node: n.ID}
		if stop {
			e.Data = data(map[string]bool{"stop": true})
		}
		t.event(e)
		return nil
	}
	if to == offpeak.NodeDraining && n.Intent == offpeak.NodeClosed && len(live) == 0 {
		return nil, nil // it is where draining leads
	}
	if err := move(to); err != nil {
		return nil, err
	}
	if to == offpeak.NodeDraining && len(live) == 0 {
		return nil, move(offpeak.NodeClosed)
	}
	var out []store.Change
	for _, l := range live {
		if !stop || l.Stop != "" {
			continue
		}
		j, err := s.job(t, "", l.Job)
		if err != nil {
			return nil, err
		}
		c, err := s.stop(t, l, j, offpeak.EndDrained)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// RemoveNode forgets a node.
func (s *Store) RemoveNode(ctx context.Context, op store.Op, account offpeak.AccountID, id offpeak.NodeID) ([]store.Change, error) {
	return write(ctx, s, "remove node "+string(id), func(t *verb) ([]store.Change, error) {
		if err := t.loadNodes(forUpdate, id); err != nil {
			return nil, err
		}
		out, _, err := once(t, op, "node.remove", string(id), func() ([]store.Change, error) {
			n, err := t.node(account, id)
			if err != nil {
				return nil, err
			}
			live, err := t.leases(`node = $1 AND `+liveLease+` ORDER BY offered_at, id`, string(id))
			if err != nil {
				return nil, err
			}
			var out []store.Change
			for _, l := range live {
				c, err := s.endNow(t, l, ending{reason: offpeak.EndNodeRemoved})
				if err != nil {
					return nil, err
				}
				out = append(out, c)
			}
			if err := t.put(s.cfg); err != nil {
				return nil, err
			}
			if _, err := t.Exec(`DELETE FROM tokens WHERE node = $1`, string(id)); err != nil {
				return nil, err
			}
			if _, err := t.Exec(`DELETE FROM plans WHERE account = $1 AND node = $2`, string(n.Account), string(id)); err != nil {
				return nil, err
			}
			if err := t.must(`UPDATE nodes SET removed_at = $1, ask_due = 0, intent = 'closed', liveness = 'offline', revision = revision + 1 WHERE id = $2 AND removed_at = 0`, micros(t.now), string(id)); err != nil {
				return nil, err
			}
			// The last that is said of it: replay learns what it had, if it came before
			// the oldest event kept.
			t.event(offpeak.Event{Type: "node.removed", Account: n.Account, Node: id, Data: data(map[string]any{"name": n.Name, "inventory": n.Inventory, "ask": n.Ask})})
			return out, nil
		})
		return out, err
	})
}

// Node returns one node.
func (s *Store) Node(ctx context.Context, account offpeak.AccountID, id offpeak.NodeID) (offpeak.Node, error) {
	return read(ctx, s, "read node "+string(id), func(t *verb) (offpeak.Node, error) {
		n, err := t.node(account, id)
		if err != nil {
			return offpeak.Node{}, err
		}
		return n.Node, nil
	})
}

// Nodes lists nodes by id.
func (s *Store) Nodes(ctx context.Context, account offpeak.AccountID, page store.Page) ([]offpeak.Node, string, error) {
	limit, err := bounded(page.Limit)
	if err != nil {
		return nil, "", err
	}
	list, err := read(ctx, s, "list nodes", func(t *verb) ([]offpeak.Node, error) {
		q, args := `SELECT `+nodeColumns+` FROM nodes WHERE removed_at = 0 AND id > $1`, []any{page.Cursor, int64(limit + 1)}
		if account != "" {
			q, args = q+` AND account = $3`, append(args, string(account))
		}
		var nodes []*node
		if err := t.each(q+` ORDER BY id LIMIT $2`, args, func(rows Rows) error {
			n := &node{}
			nodes = append(nodes, n)
			return n.scan(rows)
		}); err != nil {
			return nil, err
		}
		out := make([]offpeak.Node, len(nodes))
		for i, n := range nodes {
			if err := t.reserved(n); err != nil {
				return nil, err
			}
			out[i] = n.Node
		}
		return out, nil
	})
	if err != nil || len(list) <= limit {
		return list, "", err
	}
	return list[:limit], string(list[limit-1].ID), nil
}

// SetLiveness moves nodes that are still silent.
func (s *Store) SetLiveness(ctx context.Context, changes []store.LivenessChange) ([]offpeak.NodeID, error) {
	return write(ctx, s, "set liveness", func(t *verb) ([]offpeak.NodeID, error) {
		var moved []offpeak.NodeID
		ids := make([]offpeak.NodeID, len(changes))
		for i, c := range changes {
			ids[i] = c.Node
		}
		if err := t.lockNodes(ids...); err != nil {
			return nil, err
		}
		for _, c := range changes {
			var account offpeak.AccountID
			var from offpeak.Liveness
			err := t.row(`SELECT account, liveness FROM nodes WHERE id = $1 AND removed_at = 0 AND last_heard < $2`, []any{string(c.Node), micros(c.HeardBefore)}, &account, &from)
			if errors.Is(err, offpeak.ErrNotFound) || err == nil && from == c.To {
				continue
			}
			if err != nil {
				return nil, err
			}
			// Only a heartbeat makes a node online; what is offline stays so.
			if c.To == offpeak.NodeOnline || from.To(c.To) != nil {
				continue
			}
			if err := t.must(`UPDATE nodes SET liveness = $1 WHERE id = $2 AND liveness = $3 AND last_heard < $4`, string(c.To), string(c.Node), string(from), micros(c.HeardBefore)); err != nil {
				return nil, err
			}
			if c.To == offpeak.NodeOffline {
				// What it said last no longer holds; its next heartbeat says what does.
				t.later(addAvailability, string(c.Node), micros(t.now), string(offpeak.NodeInUse), string(offpeak.EndNodeLost))
			}
			t.event(offpeak.Event{Type: "node." + string(c.To), Account: account, Node: c.Node})
			t.audit(byHub(), "node."+string(c.To), string(c.Node), "done")
			moved = append(moved, c.Node)
		}
		return moved, nil
	})
}

// LastHeard returns when nodes were last heard.
func (s *Store) LastHeard(ctx context.Context, nodes []offpeak.NodeID) (map[offpeak.NodeID]time.Time, error) {
	return read(ctx, s, "read who was heard", func(t *verb) (map[offpeak.NodeID]time.Time, error) {
		out := make(map[offpeak.NodeID]time.Time, len(nodes))
		return out, t.each(`SELECT id, last_heard FROM nodes WHERE id = ANY($1) AND removed_at = 0`, []any{texts(nodes)}, func(rows Rows) error {
			var id offpeak.NodeID
			var at int64
			err := rows.Scan(&id, &at)
			out[id] = moment(at)
			return err
		})
	})
}

// Standing returns how nodes stand.
func (s *Store) Standing(ctx context.Context, nodes []offpeak.NodeID) (map[offpeak.NodeID]store.Standing, error) {
	return read(ctx, s, "read how nodes stand", func(t *verb) (map[offpeak.NodeID]store.Standing, error) {
		out := make(map[offpeak.NodeID]store.Standing, len(nodes))
		return out, t.each(`SELECT id, revision, liveness FROM nodes WHERE id = ANY($1) AND removed_at = 0`, []any{texts(nodes)}, func(rows Rows) error {
			var id offpeak.NodeID
			var st store.Standing
			err := rows.Scan(&id, &st.Revision, &st.Liveness)
			out[id] = st
			return err
		})
	})
}

// Touch sets when nodes were last heard.
func (s *Store) Touch(ctx context.Context, heard map[offpeak.NodeID]time.Time) error {
	_, err := write(ctx, s, "touch nodes", func(t *verb) (struct{}, error) {
		if err := t.lockNodes(slices.Collect(maps.Keys(heard))...); err != nil {
			return struct{}{}, err
		}
		rows := make([][]any, 0, len(heard))
		for id, at := range heard {
			rows = append(rows, []any{micros(at), string(id)})
		}
		_, err := t.ExecMany(Many{`UPDATE nodes SET last_heard = $1 WHERE id = $2 AND removed_at = 0 AND last_heard < $1`, rows})
		return struct{}{}, err
	})
	return err
}

// FreeDevices lists a node's devices that no live lease holds.
func (s *Store) FreeDevices(ctx context.Context, id offpeak.NodeID) ([]offpeak.DeviceID, error) {
	return read(ctx, s, "list free devices of node "+string(id), func(t *verb) ([]offpeak.DeviceID, error) {
		if _, err := t.node("", id); err != nil {
			return nil, err
		}
		var out []offpeak.DeviceID
		err := t.each(`SELECT device FROM node_devices d WHERE node = $1 AND gone = 0
			AND NOT EXISTS (SELECT 1 FROM lease_devices l WHERE l.node = d.node AND l.device = d.device AND l.held = 1) ORDER BY device`, []any{string(id)}, func(rows Rows) error {
			var d offpeak.DeviceID
			err := rows.Scan(&d)
			out = append(out, d)
			return err
		})
		return out, err
	})
}
