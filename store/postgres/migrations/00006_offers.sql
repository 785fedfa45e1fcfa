-- +goose Up

-- How the newest attempt of a job was placed, for who asks of one job.
CREATE INDEX events_offered ON events (job, cursor) WHERE type = 'lease.offered';
