-- +goose Up

-- jobs.avoid says more from here on: node:reason:ended:times where attempts failed, the
-- node alone where they were interrupted.

-- What is held against the node, as JSON: attempts in a row that died there by its
-- fault, or the quarantine that these led to. '' is nothing.
ALTER TABLE nodes ADD COLUMN trial TEXT NOT NULL DEFAULT '';
