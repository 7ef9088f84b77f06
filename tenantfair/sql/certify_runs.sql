-- How many runs of a scope are in a state since or from a time on, in microseconds. Due times before the
-- recording are one (null), those after it are left out.
SELECT
    run.scope_key,
    run.state,
    (extract(epoch FROM run.at) * 1000000)::bigint AS at,
    count(*) AS n
FROM (
    SELECT
        queued.scope_key,
        'queued' AS state,
        CASE WHEN queued.wake_at > %(due)s::timestamptz THEN queued.wake_at END AS at
    FROM tenantfair_run AS queued
    WHERE queued.wake_at <= %(until)s::timestamptz
        AND queued.tenant_admitted_at IS NULL
    UNION ALL
    SELECT
        ready.scope_key,
        'ready',
        CASE WHEN ready.wake_at > %(due)s::timestamptz THEN ready.wake_at END
    FROM tenantfair_run AS ready
    WHERE ready.wake_at IS NOT NULL
        AND ready.tenant_admitted_at IS NOT NULL
    UNION ALL
    SELECT
        claimed.scope_key,
        'claimed',
        claimed.claimed_at
    FROM tenantfair_run AS claimed
    WHERE claimed.claim_token IS NOT NULL
        AND claimed.tenant_admitted_at IS NOT NULL
) AS run
GROUP BY run.scope_key, run.state, run.at
