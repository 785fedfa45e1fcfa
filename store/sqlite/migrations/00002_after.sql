-- Jobs that wait for others.
-- +goose Up

-- Of how many others a job waits for their end, and whether others wait for it
-- that were not told of its end yet.
ALTER TABLE jobs ADD COLUMN parents INTEGER NOT NULL DEFAULT 0 CHECK (parents >= 0);
ALTER TABLE jobs ADD COLUMN waits INTEGER NOT NULL DEFAULT 0 CHECK (waits BETWEEN 0 AND parents AND (state <> 'blocked' OR waits > 0));
ALTER TABLE jobs ADD COLUMN awaited INTEGER NOT NULL DEFAULT 0 CHECK (awaited IN (0, 1));
CREATE INDEX jobs_untold ON jobs (ended_at, id) WHERE awaited = 1 AND ended_at <> 0;
CREATE INDEX jobs_retried ON jobs (retry_of) WHERE retry_of <> '';

-- Which jobs a job waits for, in the order they were named. The parent's row may
-- be pruned first.
CREATE TABLE job_after (
    job     TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    account TEXT NOT NULL,
    n       INTEGER NOT NULL,
    parent  TEXT NOT NULL,
    -- 1: its end counts, however it ended.
    any_end INTEGER NOT NULL CHECK (any_end IN (0, 1)),
    -- Where its outputs are laid out, '' where they are not.
    folder  TEXT NOT NULL,
    -- How it ended, '' until the job was told, and its outputs where there is a folder.
    told    TEXT NOT NULL DEFAULT '' CHECK (told IN ('', 'succeeded', 'failed', 'cancelled')),
    output  TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (job, parent)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_after_parent ON job_after (parent, job) WHERE told = '';
CREATE INDEX job_after_output ON job_after (output) WHERE output <> '';

-- +goose StatementBegin
CREATE TRIGGER blobs_left_by_after AFTER DELETE ON job_after WHEN OLD.output <> '' BEGIN
    UPDATE blobs SET candidate = 1 WHERE hash = OLD.output AND account = OLD.account AND candidate = 0;
END;
-- +goose StatementEnd
