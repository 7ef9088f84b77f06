-- The database's own record of who was served when, for the demo and the replay to be judged by. It is made in
-- databases that they throw away; the package neither needs nor knows it.
--
-- Claims and policy changes are serialised by the policy row, so `example_journal_turn` has them in the order of
-- their commits. Each keeps the snapshot of its end: whatever else was committed by then is visible in it, and so
-- the other two tables are put in order by their transaction ids.

CREATE TABLE example_journal_turn (
    seq           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid           xid8 NOT NULL DEFAULT pg_current_xact_id(),
    snapshot      pg_snapshot NOT NULL,
    is_call       boolean NOT NULL,
    at            timestamptz NOT NULL,
    laps_before   bigint NOT NULL,
    cursor_before bigint NOT NULL,
    laps_after    bigint NOT NULL,
    cursor_after  bigint NOT NULL,
    cap           integer,
    budget        integer NOT NULL
);

CREATE SEQUENCE example_journal_statement;

CREATE TABLE example_journal_run (
    seq           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid           xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    statement     bigint NOT NULL,
    scope_key     text NOT NULL,
    run_id        uuid NOT NULL,
    state_before  text NOT NULL,
    state_after   text NOT NULL,
    due_at        timestamptz
);

-- A scope that joined the ring or left it, or whose own cap was set (`cap`) or taken away (null).
CREATE TABLE example_journal_scope (
    seq           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid           xid8 NOT NULL DEFAULT pg_current_xact_id(),
    scope_key     text NOT NULL,
    kind          text NOT NULL,
    cap           integer
);

CREATE FUNCTION example_journal_state(p_status text, p_poisoned_at timestamptz, p_token uuid, p_admitted_at timestamptz)
    RETURNS text
    LANGUAGE sql
    IMMUTABLE
AS $example_journal_state$
    SELECT CASE
        WHEN p_status <> 'running' OR p_poisoned_at IS NOT NULL THEN 'gone'
        WHEN p_token IS NOT NULL THEN 'claimed'
        WHEN p_admitted_at IS NOT NULL THEN 'ready'
        ELSE 'queued'
    END
$example_journal_state$;

CREATE FUNCTION example_journal_policy()
    RETURNS trigger
    LANGUAGE plpgsql
AS $example_journal_policy$
BEGIN
    INSERT INTO example_journal_turn (
        snapshot, is_call, at, laps_before, cursor_before, laps_after, cursor_after, cap, budget
    )
    VALUES (
        pg_current_snapshot(),
        (NEW.scan_laps, NEW.scan_ring_position) IS DISTINCT FROM (OLD.scan_laps, OLD.scan_ring_position),
        NEW.updated_at,
        OLD.scan_laps,
        OLD.scan_ring_position,
        NEW.scan_laps,
        NEW.scan_ring_position,
        NEW.max_active,
        NEW.scan_budget
    );
    RETURN NULL;
END
$example_journal_policy$;

CREATE TRIGGER example_journal_policy
    AFTER UPDATE ON tenantfair_policy
    FOR EACH ROW
    EXECUTE FUNCTION example_journal_policy();

CREATE FUNCTION example_journal_inserted()
    RETURNS trigger
    LANGUAGE plpgsql
AS $example_journal_inserted$
BEGIN
    INSERT INTO example_journal_run (statement, scope_key, run_id, state_before, state_after, due_at)
    SELECT
        0,
        scope_key,
        run_id,
        'gone',
        example_journal_state(status, poisoned_at, claim_token, tenant_admitted_at),
        wake_at
    FROM new_runs
    ORDER BY id;
    RETURN NULL;
END
$example_journal_inserted$;

CREATE TRIGGER example_journal_inserted
    AFTER INSERT ON tenantfair_run
    REFERENCING NEW TABLE AS new_runs
    FOR EACH STATEMENT
    EXECUTE FUNCTION example_journal_inserted();

-- A claim writes the outcomes of one plan in one statement, and a plan walks the ring upwards: ordered by ring
-- position, the rows stand in the order of the visits. One scope in one statement is one grant.
CREATE FUNCTION example_journal_updated()
    RETURNS trigger
    LANGUAGE plpgsql
    SET enable_hashjoin = on
AS $example_journal_updated$
DECLARE
    v_statement CONSTANT bigint := nextval('example_journal_statement');
BEGIN
    INSERT INTO example_journal_run (statement, scope_key, run_id, state_before, state_after, due_at)
    SELECT
        v_statement,
        moved.scope_key,
        moved.run_id,
        example_journal_state(was.status, was.poisoned_at, was.claim_token, was.tenant_admitted_at),
        example_journal_state(moved.status, moved.poisoned_at, moved.claim_token, moved.tenant_admitted_at),
        moved.wake_at
    FROM old_runs AS was
    JOIN new_runs AS moved ON moved.id = was.id
    LEFT JOIN tenantfair_schedule AS place ON place.scope_key = moved.scope_key
    WHERE (moved.status, moved.poisoned_at, moved.claim_token, moved.tenant_admitted_at, moved.wake_at)
        IS DISTINCT FROM (was.status, was.poisoned_at, was.claim_token, was.tenant_admitted_at, was.wake_at)
    ORDER BY place.ring_position, was.wake_at, was.id;
    RETURN NULL;
END
$example_journal_updated$;

CREATE TRIGGER example_journal_updated
    AFTER UPDATE ON tenantfair_run
    REFERENCING OLD TABLE AS old_runs NEW TABLE AS new_runs
    FOR EACH STATEMENT
    EXECUTE FUNCTION example_journal_updated();

CREATE FUNCTION example_journal_ring()
    RETURNS trigger
    LANGUAGE plpgsql
AS $example_journal_ring$
BEGIN
    INSERT INTO example_journal_scope (scope_key, kind)
    VALUES (NEW.scope_key, CASE WHEN NEW.unfinished_count > 0 THEN 'joined' ELSE 'left' END);
    RETURN NULL;
END
$example_journal_ring$;

CREATE TRIGGER example_journal_ring
    AFTER UPDATE ON tenantfair_schedule
    FOR EACH ROW
    WHEN ((OLD.unfinished_count > 0) <> (NEW.unfinished_count > 0))
    EXECUTE FUNCTION example_journal_ring();

CREATE FUNCTION example_journal_override()
    RETURNS trigger
    LANGUAGE plpgsql
AS $example_journal_override$
BEGIN
    INSERT INTO example_journal_scope (scope_key, kind, cap)
    VALUES (NEW.scope_key, 'cap', NEW.max_active);
    RETURN NULL;
END
$example_journal_override$;

CREATE TRIGGER example_journal_override
    AFTER UPDATE ON tenantfair_partition
    FOR EACH ROW
    WHEN (OLD.max_active IS DISTINCT FROM NEW.max_active)
    EXECUTE FUNCTION example_journal_override();

CREATE TRIGGER example_journal_override_given
    AFTER INSERT ON tenantfair_partition
    FOR EACH ROW
    WHEN (NEW.max_active IS NOT NULL)
    EXECUTE FUNCTION example_journal_override();
