-- Arrays wait for jobs, and jobs wait for arrays.
-- +goose Up

-- Of how many jobs an array waits for the end, and of how many it was not told yet:
-- until then none of its members is written.
ALTER TABLE job_groups ADD COLUMN parents BIGINT NOT NULL DEFAULT 0 CHECK (parents >= 0);
ALTER TABLE job_groups ADD COLUMN waits BIGINT NOT NULL DEFAULT 0 CHECK (waits BETWEEN 0 AND parents);
-- 1: others wait, or waited, for the end of the whole. Open members know (jobs.awaited).
ALTER TABLE job_groups ADD COLUMN awaited BIGINT NOT NULL DEFAULT 0 CHECK (awaited IN (0, 1));
-- Why members that are not written yet won't begin, where nobody cancelled the whole:
-- they fail at cancelled_at.
ALTER TABLE job_groups ADD COLUMN reason TEXT COLLATE "C" NOT NULL DEFAULT '' CHECK (reason IN ('', 'dependency_failed') AND (reason = '' OR cancelled_at <> 0));

-- Either side may be a job or an array. Rows with n = -1 are no waits of their own:
-- outputs of an array's members, each in a folder of its index.
ALTER TABLE job_after DROP CONSTRAINT job_after_job_fkey;

-- The pipeline that it is a step of, and which; '' where of none.
ALTER TABLE job_groups ADD COLUMN pipe TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE job_groups ADD COLUMN step BIGINT NOT NULL DEFAULT 0;
CREATE INDEX job_groups_pipe ON job_groups (pipe) WHERE pipe <> '';

CREATE INDEX job_groups_retried ON job_groups (retry_of) WHERE retry_of <> '';

-- Older hubs know nothing of arrays that wait, and would write their members.
UPDATE grid SET oldest_hub = 7;
