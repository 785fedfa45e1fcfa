-- +goose Up

-- How long an attempt may hold a node, as the spec's limits say: what the order of
-- the queue needs. Specs that are there get the default limits, 24 h and 15 min.
ALTER TABLE specs ADD COLUMN lasts BIGINT NOT NULL DEFAULT 87300000000;

-- The most GPUs that an account's live leases may hold at once; 0 is no bound.
ALTER TABLE accounts ADD COLUMN quota_gpus BIGINT NOT NULL DEFAULT 0 CHECK (quota_gpus >= 0);

-- A hub that knows of no such bound would go beyond it.
UPDATE grid SET oldest_hub = 5;
