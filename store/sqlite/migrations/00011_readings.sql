-- What nodes' devices do now.
-- +goose Up

-- JSON, as the node's agent last said it; '' before it did.
ALTER TABLE nodes ADD COLUMN readings TEXT NOT NULL DEFAULT '';
