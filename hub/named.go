package hub

import (
	"context"
	"errors"
	"fmt"

	"offpeak"
)

// known refuses requirements that keep a job off accounts which do not exist: a typing
// error would let it run where it must not.
func (h *Hub) known(ctx context.Context, at string, r *offpeak.Requirements) error {
	for i, id := range r.NotAccounts {
		there, err := h.isAccount(ctx, id)
		if err != nil {
			return err
		}
		if !there {
			return &offpeak.FieldError{Field: fmt.Sprintf("%srequirements.not_accounts[%d]", at, i), Value: string(id), Rule: "is the id of an account, and there is none with this one"}
		}
	}
	return nil
}

func (h *Hub) isAccount(ctx context.Context, id offpeak.AccountID) (bool, error) {
	_, err := h.env.Store.Account(ctx, id)
	if errors.Is(err, offpeak.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// warned adds to an inventory's warnings the accounts that its owner names and that do
// not exist. The node works without them.
func (h *Hub) warned(ctx context.Context, inv *offpeak.Inventory) error {
	g := inv.Guests
	if g == nil {
		return nil
	}
	const most = 8 // that are named
	inv.Warnings = inv.Warnings[:len(inv.Warnings):len(inv.Warnings)]
	for _, l := range []struct {
		flag string
		ids  []offpeak.AccountID
	}{{"--allow-account", g.Allow}, {"--deny-account", g.Deny}} {
		named := 0
		for _, id := range l.ids {
			there, err := h.isAccount(ctx, id)
			if err != nil {
				return err
			}
			if !there && named < most {
				named++
				inv.Warnings = append(inv.Warnings, fmt.Sprintf("%s names %s, and there is no account with this id", l.flag, id))
			}
		}
	}
	return nil
}
