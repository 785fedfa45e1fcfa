-- What admins set of placement. A version is never changed; placements name it.
-- +goose Up

CREATE TABLE weights (
    version INTEGER PRIMARY KEY CHECK (version >= 1),
    at      INTEGER NOT NULL,
    account TEXT NOT NULL,
    member  TEXT NOT NULL,
    text    TEXT NOT NULL
) STRICT;
