-- A TRUNCATE may empty the domain, never contradict it. AFTER triggers see the outcome of the whole statement,
-- so Django's flush, which truncates every table at once, passes; a TRUNCATE that leaves counts without their
-- runs, or partitions without their ring positions, is refused.

CREATE OR REPLACE FUNCTION tenantfair_truncate_guard()
    RETURNS trigger
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
AS $tenantfair_truncate_guard$
DECLARE
    -- A snapshot older than the locks does not show what others committed meanwhile; an empty file cannot lie.
    v_blind CONSTANT boolean := current_setting('transaction_isolation') <> 'read committed';
BEGIN
    IF TG_RELID NOT IN ('tenantfair_run'::regclass::oid, 'tenantfair_schedule'::regclass::oid) THEN
        RAISE EXCEPTION '% fires for tenantfair_run and tenantfair_schedule alone', TG_NAME
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;

    IF TG_RELID = 'tenantfair_run'::regclass::oid THEN
        -- The runs this transaction noted are gone with the rest.
        DELETE FROM tenantfair_pending WHERE xid = pg_current_xact_id();
        PERFORM
            set_config('tenantfair.noted_scope_' || 'tenantfair_run'::regclass::oid::text, '', true),
            set_config('tenantfair.delta_since_' || 'tenantfair_run'::regclass::oid::text, '', true);
        IF EXISTS (SELECT FROM tenantfair_schedule WHERE in_ring)
            OR (v_blind AND pg_relation_size('tenantfair_schedule'::regclass) > 0)
        THEN
            RAISE EXCEPTION 'TRUNCATE of runs would leave their counts behind'
                USING
                    ERRCODE = 'integrity_constraint_violation',
                    HINT = 'DELETE the runs, or TRUNCATE all tables of tenantfair in one statement.';
        END IF;
        RETURN NULL;
    END IF;

    IF EXISTS (SELECT FROM tenantfair_partition)
        OR EXISTS (SELECT FROM tenantfair_run WHERE finished_at IS NULL)
        OR (
            v_blind
            AND pg_relation_size('tenantfair_partition'::regclass) + pg_relation_size('tenantfair_run'::regclass) > 0
        )
    THEN
        RAISE EXCEPTION 'TRUNCATE of the ring would leave partitions or unfinished runs without it'
            USING
                ERRCODE = 'integrity_constraint_violation',
                HINT = 'TRUNCATE all tables of tenantfair in one statement.';
    END IF;
    RETURN NULL;
END
$tenantfair_truncate_guard$;

CREATE OR REPLACE TRIGGER tenantfair_run_truncate_guard
    AFTER TRUNCATE ON tenantfair_run
    FOR EACH STATEMENT
    EXECUTE FUNCTION tenantfair_truncate_guard();

CREATE OR REPLACE TRIGGER tenantfair_schedule_truncate_guard
    AFTER TRUNCATE ON tenantfair_schedule
    FOR EACH STATEMENT
    EXECUTE FUNCTION tenantfair_truncate_guard();
