-- +goose Up

-- By which order the nodes that fit are preferred, as the spec says; '' is the grid's.
ALTER TABLE specs ADD COLUMN policy TEXT NOT NULL DEFAULT '' CHECK (policy IN ('', 'cheapest', 'balanced', 'fastest'));
