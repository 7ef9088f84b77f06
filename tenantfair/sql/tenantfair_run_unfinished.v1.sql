-- Notes how a statement changes the number of unfinished runs per scope. Nothing is locked here: the note
-- waits in tenantfair_pending until the transaction's fold (tenantfair_fold), which the first note opens. That it
-- is open is remembered in the transaction-local setting tenantfair.fold_opened, which a rollback to a savepoint
-- takes back together with the note; a setting lost otherwise opens a second fold that finds nothing.
--
-- INSERT and DELETE are noted once per statement and scope. UPDATE is noted per row, behind a WHEN that is
-- true only when a run finishes, is revived or changes hands, so claims and heartbeats pass without a call.
-- Runs as the owner, so that a role that may only enqueue needs no rights on the counts.

-- The rule of tenantfair.tenants.validate_tenant; NULL, the tenantless scope, is well formed.
CREATE OR REPLACE FUNCTION tenantfair_tenant_is_well_formed(p_tenant_id text)
    RETURNS boolean
    LANGUAGE sql
    IMMUTABLE
    PARALLEL SAFE
AS $tenantfair_tenant_is_well_formed$
    SELECT p_tenant_id IS NULL
        OR (
            octet_length(p_tenant_id) <= 255
            AND p_tenant_id IS NFC NORMALIZED
            AND p_tenant_id COLLATE "C"
                ~ '^(?!.*[\u0001-\u001f\u007f-\u009f])[^\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000](.*[^\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000])?$'
        )
$tenantfair_tenant_is_well_formed$;

CREATE OR REPLACE FUNCTION tenantfair_run_inserted()
    RETURNS trigger
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
AS $tenantfair_run_inserted$
DECLARE
    v_opens  CONSTANT boolean := current_setting('tenantfair.fold_opened', true)
        IS DISTINCT FROM pg_current_xact_id()::text;
    v_opened text;
BEGIN
    IF EXISTS (
        SELECT
        FROM (SELECT DISTINCT tenant_id FROM new_runs) AS inserted
        WHERE NOT tenantfair_tenant_is_well_formed(inserted.tenant_id)
    ) THEN
        RAISE EXCEPTION 'a tenant id is in form NFC, has 1..255 bytes, no control characters, no white space at its ends'
            USING
                ERRCODE = 'check_violation',
                CONSTRAINT = 'tenantfair_run_tenant',
                TABLE = 'tenantfair_run',
                COLUMN = 'tenant_id';
    END IF;
    -- Before the note, because an immediate constraint folds it on the spot.
    IF v_opens THEN
        v_opened := set_config('tenantfair.fold_opened', pg_current_xact_id()::text, true);
    END IF;
    INSERT INTO tenantfair_pending (xid, opens, scope_key, delta)
    SELECT
        pg_current_xact_id(),
        v_opens AND row_number() OVER () = 1,
        scope_key,
        count(*)
    FROM new_runs
    WHERE finished_at IS NULL
    GROUP BY scope_key;
    IF v_opens AND NOT FOUND THEN
        v_opened := set_config('tenantfair.fold_opened', '', true);
    END IF;
    RETURN NULL;
END
$tenantfair_run_inserted$;

CREATE OR REPLACE FUNCTION tenantfair_run_deleted()
    RETURNS trigger
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
AS $tenantfair_run_deleted$
DECLARE
    v_opens  CONSTANT boolean := current_setting('tenantfair.fold_opened', true)
        IS DISTINCT FROM pg_current_xact_id()::text;
    v_opened text;
BEGIN
    IF v_opens THEN
        v_opened := set_config('tenantfair.fold_opened', pg_current_xact_id()::text, true);
    END IF;
    INSERT INTO tenantfair_pending (xid, opens, scope_key, delta)
    SELECT
        pg_current_xact_id(),
        v_opens AND row_number() OVER () = 1,
        scope_key,
        - count(*)
    FROM old_runs
    WHERE finished_at IS NULL
    GROUP BY scope_key;
    IF v_opens AND NOT FOUND THEN
        v_opened := set_config('tenantfair.fold_opened', '', true);
    END IF;
    RETURN NULL;
END
$tenantfair_run_deleted$;

CREATE OR REPLACE FUNCTION tenantfair_run_updated()
    RETURNS trigger
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
AS $tenantfair_run_updated$
DECLARE
    v_opens  CONSTANT boolean := current_setting('tenantfair.fold_opened', true)
        IS DISTINCT FROM pg_current_xact_id()::text;
    v_opened text;
BEGIN
    IF NEW.tenant_id IS DISTINCT FROM OLD.tenant_id THEN
        RAISE EXCEPTION 'a run never changes its tenant'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF v_opens THEN
        v_opened := set_config('tenantfair.fold_opened', pg_current_xact_id()::text, true);
    END IF;
    INSERT INTO tenantfair_pending (xid, opens, scope_key, delta)
    VALUES (
        pg_current_xact_id(),
        v_opens,
        NEW.scope_key,
        CASE WHEN NEW.finished_at IS NULL THEN 1 ELSE -1 END
    );
    RETURN NULL;
END
$tenantfair_run_updated$;

CREATE OR REPLACE TRIGGER tenantfair_run_inserted
    AFTER INSERT ON tenantfair_run
    REFERENCING NEW TABLE AS new_runs
    FOR EACH STATEMENT
    EXECUTE FUNCTION tenantfair_run_inserted();

CREATE OR REPLACE TRIGGER tenantfair_run_deleted
    AFTER DELETE ON tenantfair_run
    REFERENCING OLD TABLE AS old_runs
    FOR EACH STATEMENT
    EXECUTE FUNCTION tenantfair_run_deleted();

CREATE OR REPLACE TRIGGER tenantfair_run_updated
    AFTER UPDATE ON tenantfair_run
    FOR EACH ROW
    WHEN (
        (NEW.finished_at IS NULL) <> (OLD.finished_at IS NULL)
        OR NEW.tenant_id IS DISTINCT FROM OLD.tenant_id
    )
    EXECUTE FUNCTION tenantfair_run_updated();
