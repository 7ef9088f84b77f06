-- The legacy engine: whatever is due or expired, oldest first, whoever it belongs to. Never admits: a marker
-- it finds is kept, a poisoned run loses it, no run ever gets one. Shares the policy row with other legacy
-- claims and with nobody else, so both engines never claim at once. Returns the columns of an outcome row
-- of tenantfair_claim, or one error row. With `unflushed` the commit of this transaction, the claim's own, is
-- not waited for (decision 0010).

WITH gate AS MATERIALIZED (
    SELECT admission_mode, lease_seconds, max_attempts
    FROM tenantfair_policy
    WHERE id = 1
    FOR SHARE SKIP LOCKED
),
clock AS MATERIALIZED (
    SELECT
        at.now,
        at.now - make_interval(secs => gate.lease_seconds) AS expired_before,
        gate.max_attempts,
        CASE
            WHEN %(unflushed)s::boolean THEN set_config('synchronous_commit', 'off', true)
        END AS durability
    FROM gate
    CROSS JOIN (SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS now) AS at
    WHERE gate.admission_mode = 'legacy'
        AND current_setting('transaction_isolation') = 'read committed'
),
candidate AS (
    SELECT due.*
    FROM (
        SELECT
            run.id,
            CASE WHEN run.tenant_admitted_at IS NULL THEN 'queued_ready' ELSE 'admitted_ready' END AS class,
            run.wake_at AS eligible
        FROM tenantfair_run AS run
        WHERE run.status = 'running' AND run.wake_at <= (SELECT clock.now FROM clock)
        ORDER BY run.wake_at, run.id
        LIMIT %(demand)s::integer
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS due
    UNION ALL
    SELECT expired.*
    FROM (
        SELECT run.id, 'expired', run.claimed_at
        FROM tenantfair_run AS run
        WHERE run.claim_token IS NOT NULL AND run.claimed_at < (SELECT clock.expired_before FROM clock)
        ORDER BY run.claimed_at, run.id
        LIMIT %(demand)s::integer
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS expired
),
chosen AS MATERIALIZED (
    SELECT
        candidate.*,
        row_number() OVER (ORDER BY candidate.eligible, candidate.id)::integer AS ordinal
    FROM candidate
    ORDER BY candidate.eligible, candidate.id
    LIMIT %(demand)s::integer
),
claimed AS (
    UPDATE tenantfair_run AS run
    SET
        wake_at = NULL,
        claim_token = CASE WHEN run.claim_attempts < clock.max_attempts THEN gen_random_uuid() END,
        claimed_at = CASE WHEN run.claim_attempts < clock.max_attempts THEN clock.now END,
        claimed_by = CASE WHEN run.claim_attempts < clock.max_attempts THEN current_setting('application_name') END,
        tenant_admitted_at = CASE WHEN run.claim_attempts < clock.max_attempts THEN run.tenant_admitted_at END,
        claim_attempts = run.claim_attempts + (run.claim_attempts < clock.max_attempts)::integer,
        poisoned_at = CASE WHEN run.claim_attempts >= clock.max_attempts THEN clock.now END,
        poison_reason = CASE WHEN run.claim_attempts >= clock.max_attempts THEN 'max_claim_attempts_exceeded' END,
        started_at = CASE
            WHEN run.claim_attempts < clock.max_attempts THEN coalesce(run.started_at, clock.now)
            ELSE run.started_at
        END,
        last_attempted_at = CASE
            WHEN run.claim_attempts < clock.max_attempts THEN clock.now
            ELSE run.last_attempted_at
        END,
        worker_ids = CASE
            WHEN run.claim_attempts >= clock.max_attempts THEN run.worker_ids
            -- Written past the package: one such row must not fail the whole call.
            WHEN jsonb_typeof(run.worker_ids) <> 'array'
            THEN jsonb_build_array(current_setting('application_name'))
            WHEN jsonb_array_length(run.worker_ids) < 32
            THEN run.worker_ids || to_jsonb(current_setting('application_name'))
            ELSE run.worker_ids - 0 || to_jsonb(current_setting('application_name'))
        END
    FROM chosen, clock
    WHERE run.id = chosen.id
    RETURNING run.*, chosen.class, chosen.eligible, chosen.ordinal
)
SELECT
    'error' AS row_kind,
    CASE
        WHEN current_setting('transaction_isolation') <> 'read committed' THEN 'unsupported_isolation'
        WHEN EXISTS (SELECT FROM gate) THEN 'inactive_engine'
        WHEN EXISTS (SELECT FROM tenantfair_policy WHERE id = 1) THEN 'lock_contention'
        ELSE 'malformed_policy'
    END AS error_reason,
    NULL::uuid AS run_id,
    NULL::text AS tenant_id,
    NULL::text AS task_path,
    NULL::text AS args,
    NULL::text AS kwargs,
    NULL::text AS state,
    NULL::text AS signals,
    NULL::bigint AS checkpoint_seq,
    NULL::integer AS failures,
    NULL::integer AS retry_limit,
    NULL::integer AS abandons,
    NULL::text AS queue_name,
    NULL::text AS backend,
    NULL::timestamptz AS enqueued_at,
    NULL::timestamptz AS started_at,
    NULL::text AS errors,
    NULL::text AS worker_ids,
    NULL::uuid AS claim_token,
    NULL::timestamptz AS claimed_at,
    NULL::integer AS claim_attempt,
    NULL::timestamptz AS poisoned_at,
    NULL::text AS poison_reason,
    NULL::text AS work_class,
    NULL::timestamptz AS eligible_at,
    NULL::integer AS visit_ordinal,
    NULL::integer AS outcome_ordinal,
    CASE
        WHEN current_setting('transaction_isolation') = 'read committed'
            AND NOT EXISTS (SELECT FROM gate)
            AND EXISTS (SELECT FROM tenantfair_policy WHERE id = 1)
        THEN 'policy_cursor'
    END AS disposition
WHERE NOT EXISTS (SELECT FROM clock)
UNION ALL
SELECT
    'outcome',
    NULL,
    claimed.run_id,
    claimed.tenant_id,
    claimed.task_path,
    claimed.args::text,
    claimed.kwargs::text,
    claimed.state::text,
    claimed.pending_signals::text,
    claimed.checkpoint_seq,
    claimed.failures,
    claimed.retry_limit,
    claimed.claim_abandons,
    claimed.queue_name,
    claimed.backend,
    claimed.enqueued_at,
    claimed.started_at,
    claimed.errors::text,
    claimed.worker_ids::text,
    claimed.claim_token,
    claimed.claimed_at,
    claimed.claim_attempts,
    claimed.poisoned_at,
    claimed.poison_reason,
    claimed.class,
    claimed.eligible,
    1,
    claimed.ordinal,
    NULL
FROM claimed
