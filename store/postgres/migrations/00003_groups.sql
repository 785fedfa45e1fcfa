-- Arrays of jobs. The members are rows of jobs, written some at a time: what is not
-- written yet is queued, or cancelled with the whole.
-- +goose Up

CREATE TABLE job_groups (
    id           TEXT COLLATE "C" PRIMARY KEY,
    account      TEXT COLLATE "C" NOT NULL,
    spec         TEXT COLLATE "C" NOT NULL REFERENCES specs (hash),
    -- The indexes of the members, and what a sweep varies as JSON; '' for no sweep.
    indexes      TEXT COLLATE "C" NOT NULL,
    sweep        TEXT COLLATE "C" NOT NULL DEFAULT '',
    -- How many members may hold leases at once; 0 is no limit.
    at_once      BIGINT NOT NULL DEFAULT 0 CHECK (at_once >= 0),
    size         BIGINT NOT NULL CHECK (size >= 1),
    members      BIGINT NOT NULL CHECK (members >= 1),
    -- How many members have rows: the first so many of the indexes.
    written      BIGINT NOT NULL CHECK (written BETWEEN 0 AND members),
    -- 1 while members are still to be written, or to be cancelled with the whole.
    todo         BIGINT NOT NULL CHECK (todo IN (0, 1)),
    retry_of     TEXT COLLATE "C" NOT NULL DEFAULT '',
    submitted_by TEXT COLLATE "C" NOT NULL DEFAULT '',
    submitted_at BIGINT NOT NULL,
    -- When somebody asked to cancel the whole; 0: nobody did.
    cancelled_at BIGINT NOT NULL DEFAULT 0,
    detail       TEXT COLLATE "C" NOT NULL DEFAULT ''
);
CREATE INDEX job_groups_account ON job_groups (account, id);
CREATE INDEX job_groups_spec ON job_groups (spec);
CREATE INDEX job_groups_todo ON job_groups (id) WHERE todo = 1;
CREATE INDEX job_groups_unwritten ON job_groups (account) WHERE written < members;
CREATE INDEX jobs_members ON jobs (grp, state, ended_at) WHERE grp <> id;

UPDATE grid SET oldest_hub = 3;
