-- Collecting looks only at blobs that may be unused: a look that finds one in use
-- takes it off the list, and whatever ceases to refer to it puts it back.
-- +goose Up

ALTER TABLE blobs ADD COLUMN candidate INTEGER NOT NULL DEFAULT 1 CHECK (candidate IN (0, 1));
DROP INDEX blobs_protected;
CREATE INDEX blobs_candidates ON blobs (protected_until) WHERE candidate = 1;

-- +goose StatementBegin
CREATE TRIGGER blobs_left_by_input AFTER DELETE ON jobs WHEN OLD.input <> '' BEGIN
    UPDATE blobs SET candidate = 1 WHERE hash = OLD.input AND account = OLD.account AND candidate = 0;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER blobs_left_by_output AFTER DELETE ON jobs WHEN OLD.output <> '' BEGIN
    UPDATE blobs SET candidate = 1 WHERE hash = OLD.output AND account = OLD.account AND candidate = 0;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER blobs_left_by_new_output AFTER UPDATE OF output ON jobs WHEN OLD.output <> '' AND OLD.output <> NEW.output BEGIN
    UPDATE blobs SET candidate = 1 WHERE hash = OLD.output AND account = OLD.account AND candidate = 0;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER blobs_left_by_lease AFTER DELETE ON leases WHEN OLD.output <> '' BEGIN
    UPDATE blobs SET candidate = 1 WHERE hash = OLD.output AND account = OLD.account AND candidate = 0;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER blobs_left_by_lease_output AFTER UPDATE OF output ON leases WHEN OLD.output <> '' AND OLD.output <> NEW.output BEGIN
    UPDATE blobs SET candidate = 1 WHERE hash = OLD.output AND account = OLD.account AND candidate = 0;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER blobs_left_by_checkpoint AFTER DELETE ON checkpoints BEGIN
    UPDATE blobs SET candidate = 1 WHERE hash = OLD.tree AND account = OLD.account AND candidate = 0;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER blobs_left_by_tree AFTER DELETE ON tree_chunks BEGIN
    UPDATE blobs SET candidate = 1 WHERE hash = OLD.chunk AND account = OLD.account AND candidate = 0;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER blobs_left_by_log AFTER DELETE ON log_segments WHEN OLD.blob <> '' BEGIN
    UPDATE blobs SET candidate = 1 WHERE hash = OLD.blob AND account = OLD.account AND candidate = 0;
END;
-- +goose StatementEnd
