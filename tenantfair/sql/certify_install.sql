-- What a recording needs but its triggers: a journal of its own, the counters beside it, and the functions that
-- write into it. Nothing here is part of the schema; certify_drop takes all of it away again.
--
-- A row of the journal is what one statement of one transaction changed. `run` rows say how many runs of a scope
-- came to be (n > 0) or ceased to be (n < 0) in a state since or from a time on, so that bulk work is one row.
-- What rolls back is not in the journal; what it took from the counters is gone all the same.
--
-- A claim must never fail by its recorder: what goes wrong in it is swallowed and counted in
-- tenantfair_certify_lost, and a recording that has lost anything proves nothing. TG_ARGV[0] is the number of
-- statements after which nothing more is written, whoever forgot to stop.

CREATE UNLOGGED SEQUENCE tenantfair_certify_rows;
CREATE UNLOGGED SEQUENCE tenantfair_certify_steps;
CREATE UNLOGGED SEQUENCE tenantfair_certify_calls;
CREATE UNLOGGED SEQUENCE tenantfair_certify_lost;

CREATE UNLOGGED TABLE tenantfair_certify_journal (
    number        bigint NOT NULL DEFAULT nextval('tenantfair_certify_rows'),
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
    IF to_regclass('tenantfair_certify_lost') IS NOT NULL THEN
        PERFORM nextval('tenantfair_certify_lost');
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
    v_step := nextval('tenantfair_certify_steps');
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
    RETURN NULL;
EXCEPTION
    WHEN OTHERS THEN
        PERFORM tenantfair_certify_lose();
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
    v_step := nextval('tenantfair_certify_steps');
    IF v_step > TG_ARGV[0]::bigint THEN
        PERFORM tenantfair_certify_lose();
        RETURN NULL;
    END IF;
    INSERT INTO tenantfair_certify_journal (step, kind, scope_key, state, at, n)
    SELECT v_step, 'run', run.scope_key, run.state, run.at, sum(run.n)
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
    HAVING sum(run.n) <> 0;
    RETURN NULL;
EXCEPTION
    WHEN OTHERS THEN
        PERFORM tenantfair_certify_lose();
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
    v_step := nextval('tenantfair_certify_steps');
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
    RETURN NULL;
EXCEPTION
    WHEN OTHERS THEN
        PERFORM tenantfair_certify_lose();
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
    v_step := nextval('tenantfair_certify_steps');
    IF v_step > TG_ARGV[0]::bigint THEN
        PERFORM tenantfair_certify_lose();
        RETURN NULL;
    END IF;
    INSERT INTO tenantfair_certify_journal (step, kind, scope_key, n)
    SELECT v_step, 'epoch', part.scope_key, sum(part.epoch)
    FROM (
        SELECT was.scope_key, -was.admission_epoch AS epoch
        FROM old_partitions AS was
        UNION ALL
        SELECT become.scope_key, become.admission_epoch
        FROM new_partitions AS become
    ) AS part
    GROUP BY part.scope_key
    HAVING sum(part.epoch) <> 0;
    RETURN NULL;
EXCEPTION
    WHEN OTHERS THEN
        PERFORM tenantfair_certify_lose();
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
    INSERT INTO tenantfair_certify_journal (step, kind, scope_key, n)
    VALUES (nextval('tenantfair_certify_steps'), 'cap', NEW.scope_key, NEW.max_active);
    RETURN NULL;
EXCEPTION
    WHEN OTHERS THEN
        PERFORM tenantfair_certify_lose();
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
    INSERT INTO tenantfair_certify_journal (step, kind, scope_key, n)
    VALUES (
        nextval('tenantfair_certify_steps'),
        CASE WHEN NEW.unfinished_count > 0 THEN 'joined' ELSE 'left' END,
        NEW.scope_key,
        NEW.ring_position
    );
    RETURN NULL;
EXCEPTION
    WHEN OTHERS THEN
        PERFORM tenantfair_certify_lose();
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
    IF (NEW.scan_laps, NEW.scan_ring_position) IS DISTINCT FROM (OLD.scan_laps, OLD.scan_ring_position) THEN
        INSERT INTO tenantfair_certify_journal (
            step, kind, at, call, snapshot, laps_before, cursor_before, laps_after, cursor_after
        )
        VALUES (
            nextval('tenantfair_certify_steps'),
            'call',
            NEW.updated_at,
            nextval('tenantfair_certify_calls'),
            pg_current_snapshot(),
            OLD.scan_laps,
            OLD.scan_ring_position,
            NEW.scan_laps,
            NEW.scan_ring_position
        );
    END IF;
    IF (NEW.admission_mode, NEW.max_active, NEW.lease_seconds, NEW.max_attempts, NEW.scan_budget, NEW.policy_version)
        IS DISTINCT FROM
        (OLD.admission_mode, OLD.max_active, OLD.lease_seconds, OLD.max_attempts, OLD.scan_budget, OLD.policy_version)
    THEN
        INSERT INTO tenantfair_certify_journal (step, kind, cap, budget, lease)
        VALUES (
            nextval('tenantfair_certify_steps'),
            'policy',
            NEW.max_active,
            NEW.scan_budget,
            NEW.lease_seconds
        );
    END IF;
    RETURN NULL;
EXCEPTION
    WHEN OTHERS THEN
        PERFORM tenantfair_certify_lose();
        RETURN NULL;
END
$tenantfair_certify_policy$;

-- The deadline, for whoever finds the recording when its maker is gone.
DO $certify_install$
BEGIN
    EXECUTE format(
        'COMMENT ON TABLE tenantfair_certify_journal IS %L',
        current_setting('tenantfair.certify_until')
    );
END
$certify_install$;
