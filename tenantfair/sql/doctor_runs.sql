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
        unnest(found.kinds) AS kind,
        found.id,
        found.run_id,
        found.scope_key
    FROM (
        SELECT
            run.id,
            run.run_id,
            run.scope_key,
            array_remove(
                ARRAY[
                    CASE
                        WHEN run.status = 'running'
                            AND run.poisoned_at IS NULL
                            AND run.wake_at IS NULL
                            AND run.claim_token IS NULL
                        THEN 'run_unreachable'
                    END,
                    CASE
                        WHEN run.wake_at IS NOT NULL AND run.claim_token IS NOT NULL THEN 'run_due_and_claimed'
                    END,
                    CASE
                        WHEN (run.claim_token IS NULL) <> (run.claimed_at IS NULL) THEN 'run_claim_pair'
                    END,
                    CASE
                        WHEN (run.status <> 'running' OR run.poisoned_at IS NOT NULL)
                            AND num_nonnulls(run.wake_at, run.claim_token, run.claimed_at, run.tenant_admitted_at) > 0
                        THEN 'run_inert_holds'
                    END,
                    CASE
                        WHEN (run.poisoned_at IS NULL) <> (run.poison_reason IS NULL)
                            OR (run.status <> 'running' AND run.poisoned_at IS NOT NULL)
                        THEN 'run_poison_shape'
                    END,
                    CASE
                        WHEN run.status IN ('running', 'waiting') AND run.finished_at IS NULL THEN NULL
                        WHEN run.status IN ('completed', 'failed', 'cancelled') AND run.finished_at IS NOT NULL THEN NULL
                        ELSE 'run_status'
                    END,
                    CASE WHEN run.tenant_id = '' THEN 'run_tenant' END,
                    CASE
                        WHEN least(
                            run.claim_attempts,
                            run.claim_abandons,
                            run.failures,
                            run.checkpoint_seq,
                            run.retry_limit
                        ) < 0
                        THEN 'run_counters'
                    END,
                    -- No run is ever started more often than the policy allows at that moment.
                    CASE
                        WHEN run.finished_at IS NULL AND run.claim_attempts > policy.max_attempts THEN 'run_attempts'
                    END,
                    CASE
                        WHEN policy.admission_mode = 'tenant_fair'
                            AND run.status = 'running'
                            AND run.claim_token IS NOT NULL
                            AND run.tenant_admitted_at IS NULL
                        THEN 'claim_unmarked'
                    END,
                    CASE
                        WHEN run.status = 'running'
                            AND run.tenant_admitted_at IS NOT NULL
                            AND run.claim_token IS NULL
                            AND run.wake_at > clock_timestamp() + interval '5 seconds'
                        THEN 'admission_parked'
                    END,
                    CASE
                        WHEN jsonb_typeof(run.worker_ids) <> 'array'
                            OR jsonb_typeof(run.errors) <> 'array'
                            OR jsonb_typeof(run.pending_signals) <> 'array'
                        THEN 'run_lists'
                    END,
                    CASE
                        WHEN run.finished_at IS NULL
                            AND (jsonb_typeof(run.args) <> 'array' OR jsonb_typeof(run.kwargs) <> 'object')
                        THEN 'run_arguments'
                    END,
                    -- What Python refuses to load: numbers of more than 4,300 digits, values nested very deep.
                    CASE
                        WHEN run.finished_at IS NULL AND octet_length(documents.all_of_them::text) > 1000
                        THEN CASE
                            WHEN jsonb_path_exists(documents.all_of_them, '$.** ? (@ >= 1e4300 || @ <= -1e4300)')
                                OR jsonb_path_exists(documents.all_of_them, '$.**{500 to last}')
                            THEN 'unreadable_json'
                        END
                    END,
                    CASE
                        WHEN least(
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
                        THEN 'unreadable_time'
                    END
                ],
                NULL
            ) AS kinds
        FROM tenantfair_run AS run
        CROSS JOIN policy
        CROSS JOIN LATERAL (
            SELECT
                jsonb_build_array(
                    run.args,
                    run.kwargs,
                    run.state,
                    run.pending_signals,
                    run.errors,
                    run.worker_ids
                ) AS all_of_them
        ) AS documents
        -- Judged once per run, and before anything is multiplied.
        OFFSET 0
    ) AS found
    WHERE found.kinds <> '{}'
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
