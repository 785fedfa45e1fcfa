-- Gangs: arrays whose members start together, each on a node of its own, or not at all.
-- +goose Up

-- How many members start together; 0: each starts by itself.
ALTER TABLE job_groups ADD COLUMN gang INTEGER NOT NULL DEFAULT 0 CHECK (gang BETWEEN 0 AND 64);
-- What is still to be done to its members, which todo = 1 says: 'gang_broken', one of
-- them is queued again, so all leave their nodes; 'gang_failed', one failed or was
-- cancelled, so all end. '' while it is whole.
ALTER TABLE job_groups ADD COLUMN broken TEXT NOT NULL DEFAULT '' CHECK (broken IN ('', 'gang_broken', 'gang_failed') AND (broken = '' OR gang > 0));
