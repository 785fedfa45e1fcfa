-- Arrays wait for jobs, and jobs wait for arrays.
-- +goose Up

-- Of how many jobs an array waits for the end, and of how many it was not told yet:
-- until then none of its members is written.
ALTER TABLE job_groups ADD COLUMN parents INTEGER NOT NULL DEFAULT 0 CHECK (parents >= 0);
ALTER TABLE job_groups ADD COLUMN waits INTEGER NOT NULL DEFAULT 0 CHECK (waits BETWEEN 0 AND parents);
-- 1: others wait, or waited, for the end of the whole. Open members know (jobs.awaited).
ALTER TABLE job_groups ADD COLUMN awaited INTEGER NOT NULL DEFAULT 0 CHECK (awaited IN (0, 1));
-- Why members that are not written yet won't begin, where nobody cancelled the whole:
-- they fail at cancelled_at.
ALTER TABLE job_groups ADD COLUMN reason TEXT NOT NULL DEFAULT '' CHECK (reason IN ('', 'dependency_failed') AND (reason = '' OR cancelled_at <> 0));

-- Either side may be a job or an array. Rows with n = -1 are no waits of their own:
-- outputs of an array's members, each in a folder of its index.
CREATE TABLE new_after (
    job     TEXT NOT NULL,
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
INSERT INTO new_after SELECT job, account, n, parent, any_end, folder, told, output FROM job_after;
DROP TRIGGER blobs_left_by_after;
DROP TABLE job_after;
ALTER TABLE new_after RENAME TO job_after;
CREATE INDEX job_after_parent ON job_after (parent, job) WHERE told = '';
CREATE INDEX job_after_output ON job_after (output) WHERE output <> '';

-- +goose StatementBegin
CREATE TRIGGER blobs_left_by_after AFTER DELETE ON job_after WHEN OLD.output <> '' BEGIN
    UPDATE blobs SET candidate = 1 WHERE hash = OLD.output AND account = OLD.account AND candidate = 0;
END;
-- +goose StatementEnd

-- The pipeline that it is a step of, and which; '' where of none.
ALTER TABLE job_groups ADD COLUMN pipe TEXT NOT NULL DEFAULT '';
ALTER TABLE job_groups ADD COLUMN step INTEGER NOT NULL DEFAULT 0;
CREATE INDEX job_groups_pipe ON job_groups (pipe) WHERE pipe <> '';

CREATE INDEX job_groups_retried ON job_groups (retry_of) WHERE retry_of <> '';
