-- What admins set of placement. A version is never changed; placements name it.
-- +goose Up

CREATE TABLE weights (
    version BIGINT PRIMARY KEY CHECK (version >= 1),
    at      BIGINT NOT NULL,
    account TEXT COLLATE "C" NOT NULL,
    member  TEXT COLLATE "C" NOT NULL,
    text    TEXT COLLATE "C" NOT NULL
);
