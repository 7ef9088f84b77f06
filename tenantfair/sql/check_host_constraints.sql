-- Has the host's deferred constraints speak now, and defers them again.
--
-- All but the fold, which would lock the counts that the caller's transaction has moved until its end.

DO $check_host_constraints$
DECLARE
    v_names text;
BEGIN
    SELECT string_agg(DISTINCT format('%I.%I', namespace.nspname, found.conname), ', ')
    INTO v_names
    FROM pg_constraint AS found
    JOIN pg_namespace AS namespace
        ON namespace.oid = found.connamespace
    WHERE found.condeferred
        AND found.conname <> 'tenantfair_pending_fold'
        AND has_schema_privilege(namespace.oid, 'USAGE')
        AND NOT pg_is_other_temp_schema(namespace.oid);

    IF v_names IS NOT NULL THEN
        EXECUTE 'SET CONSTRAINTS ' || v_names || ' IMMEDIATE';
        EXECUTE 'SET CONSTRAINTS ' || v_names || ' DEFERRED';
    END IF;
END
$check_host_constraints$
