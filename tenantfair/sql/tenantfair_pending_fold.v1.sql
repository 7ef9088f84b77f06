-- A transaction's fold, queued by its first note behind whatever the host has deferred. In a file of its own: CREATE OR
-- REPLACE knows no constraint triggers, and to drop one waits for every transaction that has a note.

CREATE CONSTRAINT TRIGGER tenantfair_pending_fold
    AFTER INSERT ON tenantfair_pending
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW
    WHEN (NEW.opens)
    EXECUTE FUNCTION tenantfair_pending_fold();
