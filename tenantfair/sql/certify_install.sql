-- What a recording needs but its triggers: a journal of its own, the counters beside it, and the functions that
-- write into it. Nothing here is part of the schema; certify_drop takes all of it away again.
--
-- A row of the journal is what one statement of one transaction changed. `run` rows say how many runs of a scope
-- came to be (n > 0) or ceased to be (n < 0) in a state since or from a time on, so that bulk work is one row.
-- `touch` rows say that some were updated and came out as many as before, or, without a state, that the partition was
-- updated by something else than a grant: nothing has changed for the bound, but until the commit they were locked.
-- What rolls back is not in the journal; what it took from the counters is gone all the same.
--
-- A claim must never fail by its recorder: what goes wrong in it is swallowed and counted in
-- tenantfair_certify_lost, and a recording that has lost anything proves nothing. TG_ARGV[0] is the number of
-- statements after which nothing more is written, whoever forgot to stop.
--
-- The functions run as the owner, so that a role that may only enqueue needs no rights on the journal; and for no other
-- table than their own, since anybody can create a trigger on a table of theirs. That refusal is not swallowed. What an
-- overload in this schema could fit better than PostgreSQL's own is called by its schema or given the exact types.

CREATE UNLOGGED SEQUENCE tenantfair_certify_rows;
CREATE UNLOGGED SEQUENCE tenantfair_certify_steps;
CREATE UNLOGGED SEQUENCE tenantfair_certify_calls;
CREATE UNLOGGED SEQUENCE tenantfair_certify_lost;

CREATE UNLOGGED TABLE tenantfair_certify_journal (
    number        bigint NOT NULL DEFAULT pg_catalog.nextval('tenantfair_certify_rows'::regclass),
    step          bigint NOT NULL,
    xid           xid8 NOT NULL DEFAULT pg_current_xact_id(),
    kind          text NOT NULL,
    scope_key     text,
    state         text,
    at            timestamptz,
    n             bigint,
    -- a claim call, which holds the policy row to its end
    call          bigint,
    snapshot      pg_snapshot,
    laps_before   bigint,
    cursor_before bigint,
    laps_after    bigint,
    cursor_after  bigint,
    -- the policy from then on
    cap           bigint,
    budget        bigint,
    lease         bigint
);

CREATE FUNCTION tenantfair_certify_lose()
    RETURNS void
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
AS $tenantfair_certify_lose$
BEGIN
    IF pg_catalog.to_regclass('tenantfair_certify_lost') IS NOT NULL THEN
        PERFORM pg_catalog.nextval('tenantfair_certify_lost'::regclass);
    END IF;
END
$tenantfair_certify_lose$;

-- Null for a run that occupies nothing and cannot be granted. Unbound, so that it can be inlined.
CREATE FUNCTION tenantfair_certify_state(
    p_status      text,
    p_poisoned_at timestamptz,
    p_token       uuid,
    p_admitted_at timestamptz
)
    RETURNS text
    LANGUAGE sql
    IMMUTABLE
AS $tenantfair_certify_state$
    SELECT CASE
        WHEN p_status <> 'running' THEN NULL
        WHEN p_poisoned_at IS NOT NULL THEN 'poisoned'
        WHEN p_token IS NOT NULL AND p_admitted_at IS NULL THEN 'unmarked'
        WHEN p_token IS NOT NULL THEN 'claimed'
        WHEN p_admitted_at IS NOT NULL THEN 'ready'
        ELSE 'queued'
    END
$tenantfair_certify_state$;

CREATE FUNCTION tenantfair_certify_inserted()
    RETURNS trigger
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
AS $tenantfair_certify_inserted$
DECLARE
    v_step bigint;
BEGIN
    IF TG_RELID <> 'tenantfair_run'::regclass::oid THEN
        RAISE EXCEPTION '% fires for tenantfair_run alone', TG_NAME
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    BEGIN
        v_step := pg_catalog.nextval('tenantfair_certify_steps'::regclass);
        IF v_step > TG_ARGV[0]::bigint THEN
            PERFORM tenantfair_certify_lose();
            RETURN NULL;
        END IF;
        INSERT INTO tenantfair_certify_journal (step, kind, scope_key, state, at, n)
        SELECT v_step, 'run', run.scope_key, run.state, run.at, count(*)
        FROM (
            SELECT
                scope_key,
                tenantfair_certify_state(status, poisoned_at, claim_token, tenant_admitted_at) AS state,
                coalesce(claimed_at, wake_at) AS at
            FROM new_runs
        ) AS run
        WHERE run.state IS NOT NULL
        GROUP BY run.scope_key, run.state, run.at;
    EXCEPTION
        WHEN OTHERS THEN
            PERFORM tenantfair_certify_lose();
    END;
    RETURN NULL;
END
$tenantfair_certify_inserted$;

CREATE FUNCTION tenantfair_certify_updated()
    RETURNS trigger
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
AS $tenantfair_certify_updated$
DECLARE
    v_step bigint;
BEGIN
    IF TG_RELID <> 'tenantfair_run'::regclass::oid THEN
        RAISE EXCEPTION '% fires for tenantfair_run alone', TG_NAME
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    BEGIN
        v_step := pg_catalog.nextval('tenantfair_certify_steps'::regclass);
        IF v_step > TG_ARGV[0]::bigint THEN
            PERFORM tenantfair_certify_lose();
            RETURN NULL;
        END IF;
        INSERT INTO tenantfair_certify_journal (step, kind, scope_key, state, at, n)
        SELECT
            v_step,
            CASE WHEN sum(run.n) = 0 THEN 'touch' ELSE 'run' END,
            run.scope_key,
            run.state,
            run.at,
            sum(run.n)
        FROM (
            SELECT
                scope_key,
                tenantfair_certify_state(status, poisoned_at, claim_token, tenant_admitted_at) AS state,
                coalesce(claimed_at, wake_at) AS at,
                -1 AS n
            FROM old_runs
            UNION ALL
            SELECT
                scope_key,
                tenantfair_certify_state(status, poisoned_at, claim_token, tenant_admitted_at),
                coalesce(claimed_at, wake_at),
                1
            FROM new_runs
        ) AS run
        WHERE run.state IS NOT NULL
        GROUP BY run.scope_key, run.state, run.at
        HAVING sum(run.n) <> 0 OR run.state IN ('queued', 'ready', 'claimed');
    EXCEPTION
        WHEN OTHERS THEN
            PERFORM tenantfair_certify_lose();
    END;
    RETURN NULL;
END
$tenantfair_certify_updated$;

CREATE FUNCTION tenantfair_certify_deleted()
    RETURNS trigger
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
AS $tenantfair_certify_deleted$
DECLARE
    v_step bigint;
BEGIN
    IF TG_RELID <> 'tenantfair_run'::regclass::oid THEN
        RAISE EXCEPTION '% fires for tenantfair_run alone', TG_NAME
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    BEGIN
        v_step := pg_catalog.nextval('tenantfair_certify_steps'::regclass);
        IF v_step > TG_ARGV[0]::bigint THEN
            PERFORM tenantfair_certify_lose();
            RETURN NULL;
        END IF;
        INSERT INTO tenantfair_certify_journal (step, kind, scope_key, state, at, n)
        SELECT v_step, 'run', run.scope_key, run.state, run.at, -count(*)
        FROM (
            SELECT
                scope_key,
                tenantfair_certify_state(status, poisoned_at, claim_token, tenant_admitted_at) AS state,
                coalesce(claimed_at, wake_at) AS at
            FROM old_runs
        ) AS run
        WHERE run.state IS NOT NULL
        GROUP BY run.scope_key, run.state, run.at;
    EXCEPTION
        WHEN OTHERS THEN
            PERFORM tenantfair_certify_lose();
    END;
    RETURN NULL;
END
$tenantfair_certify_deleted$;

CREATE FUNCTION tenantfair_certify_epochs()
    RETURNS trigger
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
AS $tenantfair_certify_epochs$
DECLARE
    v_step bigint;
BEGIN
    IF TG_RELID <> 'tenantfair_partition'::regclass::oid THEN
        RAISE EXCEPTION '% fires for tenantfair_partition alone', TG_NAME
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    BEGIN
        v_step := pg_catalog.nextval('tenantfair_certify_steps'::regclass);
        IF v_step > TG_ARGV[0]::bigint THEN
            PERFORM tenantfair_certify_lose();
            RETURN NULL;
        END IF;
        INSERT INTO tenantfair_certify_journal (step, kind, scope_key, n)
        SELECT
            v_step,
            CASE WHEN sum(part.epoch)::bigint = 0 THEN 'touch' ELSE 'epoch' END,
            part.scope_key,
            sum(part.epoch)::bigint
        FROM (
            SELECT was.scope_key, -was.admission_epoch AS epoch
            FROM old_partitions AS was
            UNION ALL
            SELECT become.scope_key, become.admission_epoch
            FROM new_partitions AS become
        ) AS part
        GROUP BY part.scope_key;
    EXCEPTION
        WHEN OTHERS THEN
            PERFORM tenantfair_certify_lose();
    END;
    RETURN NULL;
END
$tenantfair_certify_epochs$;

CREATE FUNCTION tenantfair_certify_cap()
    RETURNS trigger
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
AS $tenantfair_certify_cap$
BEGIN
    IF TG_RELID <> 'tenantfair_partition'::regclass::oid THEN
        RAISE EXCEPTION '% fires for tenantfair_partition alone', TG_NAME
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    BEGIN
        INSERT INTO tenantfair_certify_journal (step, kind, scope_key, n)
        VALUES (pg_catalog.nextval('tenantfair_certify_steps'::regclass), 'cap', NEW.scope_key, NEW.max_active);
    EXCEPTION
        WHEN OTHERS THEN
            PERFORM tenantfair_certify_lose();
    END;
    RETURN NULL;
END
$tenantfair_certify_cap$;

CREATE FUNCTION tenantfair_certify_ring()
    RETURNS trigger
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
AS $tenantfair_certify_ring$
BEGIN
    IF TG_RELID <> 'tenantfair_schedule'::regclass::oid THEN
        RAISE EXCEPTION '% fires for tenantfair_schedule alone', TG_NAME
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    BEGIN
        INSERT INTO tenantfair_certify_journal (step, kind, scope_key, n)
        VALUES (
            pg_catalog.nextval('tenantfair_certify_steps'::regclass),
            CASE WHEN NEW.unfinished_count > 0 THEN 'joined' ELSE 'left' END,
            NEW.scope_key,
            NEW.ring_position
        );
    EXCEPTION
        WHEN OTHERS THEN
            PERFORM tenantfair_certify_lose();
    END;
    RETURN NULL;
END
$tenantfair_certify_ring$;

CREATE FUNCTION tenantfair_certify_policy()
    RETURNS trigger
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
AS $tenantfair_certify_policy$
BEGIN
    IF TG_RELID <> 'tenantfair_policy'::regclass::oid THEN
        RAISE EXCEPTION '% fires for tenantfair_policy alone', TG_NAME
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    BEGIN
        IF (NEW.scan_laps, NEW.scan_ring_position) IS DISTINCT FROM (OLD.scan_laps, OLD.scan_ring_position) THEN
            INSERT INTO tenantfair_certify_journal (
                step, kind, at, call, snapshot, laps_before, cursor_before, laps_after, cursor_after
            )
            VALUES (
                pg_catalog.nextval('tenantfair_certify_steps'::regclass),
                'call',
                NEW.updated_at,
                pg_catalog.nextval('tenantfair_certify_calls'::regclass),
                pg_current_snapshot(),
                OLD.scan_laps,
                OLD.scan_ring_position,
                NEW.scan_laps,
                NEW.scan_ring_position
            );
        END IF;
        IF (NEW.admission_mode::text, NEW.max_active, NEW.lease_seconds, NEW.max_attempts, NEW.scan_budget, NEW.policy_version)
            IS DISTINCT FROM
            (OLD.admission_mode::text, OLD.max_active, OLD.lease_seconds, OLD.max_attempts, OLD.scan_budget, OLD.policy_version)
        THEN
            INSERT INTO tenantfair_certify_journal (step, kind, cap, budget, lease)
            VALUES (
                pg_catalog.nextval('tenantfair_certify_steps'::regclass),
                'policy',
                NEW.max_active,
                NEW.scan_budget,
                NEW.lease_seconds
            );
        END IF;
    EXCEPTION
        WHEN OTHERS THEN
            PERFORM tenantfair_certify_lose();
    END;
    RETURN NULL;
END
$tenantfair_certify_policy$;

-- Only for the functions above: a trigger calls as the owner.
REVOKE EXECUTE
    ON FUNCTION
        tenantfair_certify_lose(),
        tenantfair_certify_state(text, timestamptz, uuid, timestamptz)
    FROM PUBLIC;

-- The deadline, for whoever finds the recording when its maker is gone.
DO $certify_install$
BEGIN
    EXECUTE pg_catalog.format(
        'COMMENT ON TABLE tenantfair_certify_journal IS %L',
        current_setting('tenantfair.certify_until')
    );
END
$certify_install$;
