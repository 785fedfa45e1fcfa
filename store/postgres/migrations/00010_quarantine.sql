-- +goose Up

-- What is held against the node, as JSON: attempts in a row that died there by its
-- fault, or the quarantine that these led to. '' is nothing.
ALTER TABLE nodes ADD COLUMN trial TEXT COLLATE "C" NOT NULL DEFAULT '';
