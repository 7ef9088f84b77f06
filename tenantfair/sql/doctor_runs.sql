-- Runs whose row breaks a rule, by kind: how many, and the first few. One pass over tenantfair_run, finished
-- runs included, since a rule may be broken anywhere once a constraint or a trigger was off.
WITH policy AS (
    SELECT
        max(admission_mode) AS admission_mode,
        max(max_attempts) AS max_attempts
    FROM tenantfair_policy
    WHERE id = 1
),
broken AS (
    SELECT
        rule.kind,
        run.id,
        run.run_id,
        run.scope_key
    FROM tenantfair_run AS run
    CROSS JOIN policy
    CROSS JOIN LATERAL (
        VALUES
            (
                'run_unreachable',
                run.status = 'running'
                AND run.poisoned_at IS NULL
                AND run.wake_at IS NULL
                AND run.claim_token IS NULL
            ),
            ('run_due_and_claimed', run.wake_at IS NOT NULL AND run.claim_token IS NOT NULL),
            ('run_claim_pair', (run.claim_token IS NULL) <> (run.claimed_at IS NULL)),
            (
                'run_inert_holds',
                (run.status <> 'running' OR run.poisoned_at IS NOT NULL)
                AND num_nonnulls(run.wake_at, run.claim_token, run.claimed_at, run.tenant_admitted_at) > 0
            ),
            (
                'run_poison_shape',
                (run.poisoned_at IS NULL) <> (run.poison_reason IS NULL)
                OR (run.status <> 'running' AND run.poisoned_at IS NOT NULL)
            ),
            (
                'run_status',
                CASE
                    WHEN run.status IN ('running', 'waiting') THEN run.finished_at IS NOT NULL
                    WHEN run.status IN ('completed', 'failed', 'cancelled') THEN run.finished_at IS NULL
                    ELSE true
                END
            ),
            ('run_tenant', run.tenant_id = ''),
            (
                'run_counters',
                least(
                    run.claim_attempts,
                    run.claim_abandons,
                    run.failures,
                    run.checkpoint_seq,
                    run.retry_limit
                ) < 0
            ),
            -- No run is ever started more often than the policy allows at that moment.
            ('run_attempts', run.finished_at IS NULL AND run.claim_attempts > policy.max_attempts),
            (
                'claim_unmarked',
                policy.admission_mode = 'tenant_fair'
                AND run.status = 'running'
                AND run.claim_token IS NOT NULL
                AND run.tenant_admitted_at IS NULL
            ),
            (
                'admission_parked',
                run.status = 'running'
                AND run.tenant_admitted_at IS NOT NULL
                AND run.claim_token IS NULL
                AND run.wake_at > clock_timestamp() + interval '5 seconds'
            ),
            (
                'run_lists',
                jsonb_typeof(run.worker_ids) <> 'array'
                OR jsonb_typeof(run.errors) <> 'array'
                OR jsonb_typeof(run.pending_signals) <> 'array'
            ),
            (
                'run_arguments',
                run.finished_at IS NULL
                AND (jsonb_typeof(run.args) <> 'array' OR jsonb_typeof(run.kwargs) <> 'object')
            ),
            (
                'unreadable_time',
                least(
                    run.wake_at,
                    run.claimed_at,
                    run.tenant_admitted_at,
                    run.poisoned_at,
                    run.enqueued_at,
                    run.started_at,
                    run.last_attempted_at,
                    run.finished_at,
                    run.updated_at
                ) < '0001-01-01 00:00:00+00'
                OR greatest(
                    run.wake_at,
                    run.claimed_at,
                    run.tenant_admitted_at,
                    run.poisoned_at,
                    run.enqueued_at,
                    run.started_at,
                    run.last_attempted_at,
                    run.finished_at,
                    run.updated_at
                ) > '9999-12-31 23:59:59.999999+00'
            )
    ) AS rule (kind, is_broken)
    WHERE rule.is_broken
    UNION ALL
    SELECT
        'claim_shared',
        claimed.id,
        claimed.run_id,
        claimed.scope_key
    FROM (
        SELECT
            run.id,
            run.run_id,
            run.scope_key,
            count(*) OVER (PARTITION BY run.claim_token) AS holders
        FROM tenantfair_run AS run
        WHERE run.claim_token IS NOT NULL
    ) AS claimed
    WHERE claimed.holders > 1
),
numbered AS (
    SELECT
        broken.*,
        row_number() OVER (PARTITION BY broken.kind ORDER BY broken.id) AS place
    FROM broken
)
SELECT
    kind,
    count(*) AS number,
    array_agg('run ' || run_id || ' of ' || quote_literal(scope_key) ORDER BY place)
        FILTER (WHERE place <= %(most)s::integer) AS examples
FROM numbered
GROUP BY kind
