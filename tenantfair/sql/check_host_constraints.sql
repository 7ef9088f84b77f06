-- Has the host's deferred foreign keys speak now about the rows that a pruning deletes, and defers them again.
--
-- Not all constraints: that would fold, and lock the counts that the caller's transaction has moved until its end. Names
-- are unique for a table only, and one that is not deferrable must not be named; who bears such a name speaks at the commit.

DO $check_host_constraints$
DECLARE
    v_names text;
BEGIN
    WITH RECURSIVE reached AS (
        SELECT 'tenantfair_run'::regclass::oid AS relation
        UNION
        SELECT reference.conrelid
        FROM pg_constraint AS reference
        JOIN reached
            ON reached.relation = reference.confrelid
        WHERE reference.contype = 'f'
    )
    SELECT string_agg(DISTINCT format('%I.%I', namespace.nspname, found.conname), ', ')
    INTO v_names
    FROM pg_constraint AS found
    JOIN reached
        ON reached.relation = found.confrelid
    JOIN pg_namespace AS namespace
        ON namespace.oid = found.connamespace
    WHERE found.contype = 'f'
        AND found.condeferred
        AND has_schema_privilege(namespace.oid, 'USAGE')
        AND NOT EXISTS (
            SELECT
            FROM pg_constraint AS namesake
            WHERE namesake.conname = found.conname
                AND namesake.connamespace = found.connamespace
                AND NOT namesake.condeferrable
        );

    IF v_names IS NOT NULL THEN
        EXECUTE 'SET CONSTRAINTS ' || v_names || ' IMMEDIATE';
        EXECUTE 'SET CONSTRAINTS ' || v_names || ' DEFERRED';
    END IF;
END
$check_host_constraints$
