-- Notes how a statement changes the number of unfinished runs per scope. Nothing is locked here: the note
-- waits in tenantfair_pending until the transaction's fold (tenantfair_fold), which the first note opens.
--
-- INSERT and DELETE are noted once per statement and scope. UPDATE is noted per row, behind a WHEN that is true
-- only when a run finishes, is revived or changes hands, so claims and heartbeats pass without a note. Rows that
-- follow one of the same scope are added up and noted together: a note for each would be half the cost of a mass
-- finish.
-- Runs as the owner, so that a role that may only enqueue needs no rights on the counts; and for no other table, since
-- anybody can create a trigger on a table of their own. What has parameters of any type is called by its schema, as in
-- tenantfair_fold.

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
    v_scopes     text[];
    v_deltas     bigint[];
    v_well_named boolean;
BEGIN
    IF TG_RELID <> 'tenantfair_run'::regclass::oid THEN
        RAISE EXCEPTION '% fires for tenantfair_run alone', TG_NAME
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    SELECT
        pg_catalog.array_agg(inserted.scope_key) FILTER (WHERE inserted.unfinished > 0),
        pg_catalog.array_agg(inserted.unfinished) FILTER (WHERE inserted.unfinished > 0),
        bool_and(tenantfair_tenant_is_well_formed(nullif(inserted.scope_key, '')))
    INTO v_scopes, v_deltas, v_well_named
    FROM (
        SELECT
            scope_key,
            count(*) FILTER (WHERE finished_at IS NULL) AS unfinished
        FROM new_runs
        GROUP BY scope_key
    ) AS inserted;
    IF NOT v_well_named THEN
        RAISE EXCEPTION 'a tenant id is in form NFC, has 1..255 bytes, no control characters, no white space at its ends'
            USING
                ERRCODE = 'check_violation',
                CONSTRAINT = 'tenantfair_run_tenant',
                TABLE = 'tenantfair_run',
                COLUMN = 'tenant_id';
    END IF;
    IF v_scopes IS NOT NULL THEN
        INSERT INTO tenantfair_pending (scope_key, delta)
        SELECT note.scope_key, note.delta
        -- Of several arrays: PostgreSQL's own whatever the path.
        FROM unnest(v_scopes, v_deltas) AS note (scope_key, delta);
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
BEGIN
    IF TG_RELID <> 'tenantfair_run'::regclass::oid THEN
        RAISE EXCEPTION '% fires for tenantfair_run alone', TG_NAME
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    INSERT INTO tenantfair_pending (scope_key, delta)
    SELECT scope_key, - count(*)
    FROM old_runs
    WHERE finished_at IS NULL
    GROUP BY scope_key;
    RETURN NULL;
END
$tenantfair_run_deleted$;

-- Called for each row that counts, then for the statement. What is added up is in two transaction-local settings of the
-- domain, which a rollback to a savepoint takes back together with the rows: the scope noted last, behind a colon, and
-- what came for it since. That is noted when another scope comes or the statement ends; where a host's trigger
-- finishes runs in a statement that does not name finished_at, the fold finds it.
CREATE OR REPLACE FUNCTION tenantfair_run_updated()
    RETURNS trigger
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
AS $tenantfair_run_updated$
DECLARE
    c_noted_scope CONSTANT text := 'tenantfair.noted_scope_' || 'tenantfair_run'::regclass::oid::text;
    c_delta_since CONSTANT text := 'tenantfair.delta_since_' || 'tenantfair_run'::regclass::oid::text;
    v_scope CONSTANT text := current_setting(c_noted_scope, true);
    v_since CONSTANT bigint := nullif(current_setting(c_delta_since, true), '')::bigint;
    v_delta bigint;
    v_set   text;
BEGIN
    IF TG_RELID <> 'tenantfair_run'::regclass::oid THEN
        RAISE EXCEPTION '% fires for tenantfair_run alone', TG_NAME
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF TG_LEVEL = 'ROW' THEN
        IF NEW.tenant_id IS DISTINCT FROM OLD.tenant_id THEN
            RAISE EXCEPTION 'a run never changes its tenant'
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        v_delta := CASE WHEN NEW.finished_at IS NULL THEN 1 ELSE -1 END;
        IF ':' || NEW.scope_key = v_scope THEN
            v_set := set_config(c_delta_since, (coalesce(v_since, 0) + v_delta)::text, true);
            RETURN NULL;
        END IF;
        v_set := set_config(c_noted_scope, ':' || NEW.scope_key, true);
    END IF;

    -- Settings first: an immediate constraint folds a note on the spot.
    IF v_since IS NOT NULL THEN
        v_set := set_config(c_delta_since, '', true);
        INSERT INTO tenantfair_pending (scope_key, delta)
        SELECT substr(v_scope, 2), v_since
        WHERE v_since <> 0;
    END IF;
    IF TG_LEVEL = 'ROW' THEN
        INSERT INTO tenantfair_pending (scope_key, delta, gathers)
        VALUES (NEW.scope_key, v_delta, true);
    END IF;
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

CREATE OR REPLACE TRIGGER tenantfair_run_updated_end
    AFTER UPDATE OF finished_at ON tenantfair_run
    FOR EACH STATEMENT
    EXECUTE FUNCTION tenantfair_run_updated();
