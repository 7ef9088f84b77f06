-- How the work moves, by kind: debt, claims that nobody recovers, due work that nobody starts although it may.
-- Work is due, and slots are free, as a claim would judge it; a start counts whoever made it.
WITH policy AS (
    SELECT
        admission_mode,
        max_active,
        clock_timestamp() - make_interval(secs => lease_seconds * %(leases)s::double precision) AS expired_before,
        clock_timestamp() - make_interval(secs => %(stalled_after)s::double precision) AS stalled_before
    FROM tenantfair_policy
    WHERE id = 1
),
load AS (
    SELECT
        run.scope_key,
        count(*) FILTER (WHERE run.wake_at <= policy.stalled_before) AS due,
        count(*) FILTER (WHERE run.wake_at <= policy.stalled_before AND run.tenant_admitted_at IS NOT NULL)
            AS due_admitted,
        count(*) FILTER (WHERE run.tenant_admitted_at IS NOT NULL) AS admitted,
        count(*) FILTER (WHERE run.claimed_at < policy.expired_before) AS expired,
        min(run.wake_at) AS due_since
    FROM tenantfair_run AS run
    CROSS JOIN policy
    WHERE run.status = 'running'
        AND run.poisoned_at IS NULL
    GROUP BY run.scope_key
),
judged AS (
    SELECT
        load.*,
        policy.admission_mode = 'tenant_fair' AS is_fair,
        policy.stalled_before,
        coalesce(part.max_active, policy.max_active) AS cap
    FROM load
    CROSS JOIN policy
    LEFT JOIN tenantfair_partition AS part
        ON part.scope_key = load.scope_key
),
broken AS (
    SELECT
        'debt' AS kind,
        judged.admitted - judged.cap AS rank,
        judged.scope_key,
        quote_literal(judged.scope_key) || ' has ' || judged.admitted || ' admitted runs and a cap of ' || judged.cap
            AS example
    FROM judged
    WHERE judged.is_fair
        AND judged.admitted > judged.cap
    UNION ALL
    SELECT
        'claim_expired',
        judged.expired,
        judged.scope_key,
        quote_literal(judged.scope_key) || ' has ' || judged.expired
    FROM judged
    WHERE judged.expired > 0
    UNION ALL
    SELECT
        'stalled',
        judged.due,
        judged.scope_key,
        quote_literal(judged.scope_key) || ' has ' || judged.due || ' due runs, the first since '
        || date_trunc('second', judged.due_since)
        || CASE WHEN judged.is_fair THEN ', and ' || judged.admitted || ' of ' || judged.cap || ' slots in use' ELSE '' END
    FROM judged
    WHERE judged.due > 0
        AND (NOT judged.is_fair OR judged.due_admitted > 0 OR judged.admitted < judged.cap)
        AND NOT EXISTS (
            SELECT
            FROM tenantfair_run AS run
            WHERE run.last_attempted_at > judged.stalled_before
        )
),
numbered AS (
    SELECT
        broken.*,
        row_number() OVER (PARTITION BY broken.kind ORDER BY broken.rank DESC, broken.scope_key) AS place
    FROM broken
)
SELECT
    kind,
    count(*) AS number,
    array_agg(example ORDER BY place) FILTER (WHERE place <= %(most)s::integer) AS examples
FROM numbered
GROUP BY kind
