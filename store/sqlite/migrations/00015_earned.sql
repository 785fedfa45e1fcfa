-- What a node earned, for the page that its owner reads.
-- +goose Up

-- Whose node it ran on, when it was settled, and what of the charge is its owner's; ''
-- where the owner paid.
ALTER TABLE receipts ADD COLUMN node TEXT NOT NULL DEFAULT '';
ALTER TABLE receipts ADD COLUMN at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE receipts ADD COLUMN earned INTEGER NOT NULL DEFAULT 0;
UPDATE receipts SET node = COALESCE((SELECT node FROM leases WHERE leases.id = receipts.lease), ''),
    at = COALESCE((SELECT ended_at FROM leases WHERE leases.id = receipts.lease), 0),
    earned = CAST(json_extract(line, '$.split.earned') AS INTEGER) WHERE payer <> owner;
CREATE INDEX receipts_node ON receipts (node, at, earned) WHERE node <> '';
