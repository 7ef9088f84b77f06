-- Records a mixed batch of outcomes, each fenced on its own, and says of each whether it was accepted or is
-- busy: its fence holds, but another session has the row locked. What is neither has lost its fence. Also
-- whether the run is due again at once, so that workers should be woken.
--
-- Rows are locked SKIP LOCKED, so one open transaction on one run strands none of its neighbours and two
-- batches never wait for each other. Markers (tenant_admitted_at) are kept by yielding and releasing, and
-- cleared by everything else in the same row change.

WITH outcome AS MATERIALIZED (
    SELECT *
    FROM unnest(
        %(run_id)s::uuid[],
        %(claim_token)s::uuid[],
        %(kind)s::text[],
        %(checkpoint_seq)s::bigint[],
        %(saved_state)s::text[],
        %(result)s::text[],
        %(error)s::text[],
        %(due_at)s::timestamptz[],
        %(delay)s::interval[],
        %(consumed)s::integer[]
    ) AS outcome (
        run_id,
        claim_token,
        kind,
        checkpoint_seq,
        saved_state,
        result,
        error,
        due_at,
        delay,
        consumed
    )
),
clock AS MATERIALIZED (
    SELECT
        clock_timestamp() AS now,
        -- Nor is a lock waited for at the commit, where the counts move: 250 ms, or less if the session says so.
        CASE
            WHEN %(bounded)s::boolean THEN set_config(
                'lock_timeout',
                CASE
                    WHEN current_setting('lock_timeout')::interval BETWEEN interval '1 ms' AND interval '250 ms'
                        THEN current_setting('lock_timeout')
                    ELSE '250ms'
                END,
                true
            )
        END AS lock_timeout
),
-- step is the kind after the two decisions that need the row: a retry past the limit fails, a wait that
-- already has its signal is woken.
held AS MATERIALIZED (
    SELECT
        run.id,
        outcome.*,
        CASE
            WHEN outcome.kind = 'retry' AND run.failures >= run.retry_limit THEN 'failed'
            WHEN outcome.kind = 'waiting' AND jsonb_array_length(run.pending_signals) > outcome.consumed THEN 'woken'
            ELSE outcome.kind
        END AS step
    FROM outcome
    JOIN tenantfair_run AS run
        ON run.run_id = outcome.run_id
        AND run.claim_token = outcome.claim_token
        AND (outcome.checkpoint_seq IS NULL OR run.checkpoint_seq = outcome.checkpoint_seq)
    FOR NO KEY UPDATE OF run SKIP LOCKED
),
accepted AS (
    UPDATE tenantfair_run AS run
    SET
        status = CASE
            WHEN held.step IN ('completed', 'failed', 'waiting') THEN held.step
            ELSE 'running'
        END,
        wake_at = CASE
            WHEN held.step IN ('completed', 'failed', 'waiting') THEN NULL
            WHEN held.step IN ('retry', 'snoozed', 'abandoned')
            -- Added in UTC: where the session's zone changes its clocks, a day is not always 24 hours.
            THEN coalesce(held.due_at, (clock.now AT TIME ZONE 'UTC' + held.delay) AT TIME ZONE 'UTC')
            ELSE clock.now
        END,
        claim_token = NULL,
        claimed_at = NULL,
        claimed_by = NULL,
        tenant_admitted_at = CASE
            WHEN held.step IN ('yielded', 'released', 'returned') THEN run.tenant_admitted_at
        END,
        claim_attempts = CASE
            WHEN held.step = 'released' THEN run.claim_attempts
            WHEN held.step IN ('returned', 'abandoned') THEN greatest(run.claim_attempts - 1, 0)
            ELSE 0
        END,
        claim_abandons = CASE
            WHEN held.step IN ('released', 'returned') THEN run.claim_abandons
            WHEN held.step = 'abandoned' THEN run.claim_abandons + 1
            ELSE 0
        END,
        failures = run.failures + CASE WHEN held.kind IN ('retry', 'failed') THEN 1 ELSE 0 END,
        checkpoint_seq = run.checkpoint_seq + CASE WHEN held.saved_state IS NULL THEN 0 ELSE 1 END,
        state = CASE
            WHEN held.saved_state IS NULL THEN run.state
            ELSE held.saved_state::jsonb
        END,
        result = held.result::jsonb,
        pending_signals = CASE
            WHEN held.consumed = 0 THEN run.pending_signals
            ELSE (
                SELECT coalesce(jsonb_agg(signal.payload ORDER BY signal.place), '[]'::jsonb)
                FROM jsonb_array_elements(run.pending_signals) WITH ORDINALITY AS signal (payload, place)
                WHERE signal.place > held.consumed
            )
        END,
        -- The last ten; a host that abandons again and again for one reason says it once.
        errors = CASE
            WHEN held.error IS NULL OR (held.step = 'abandoned' AND run.errors -> -1 = held.error::jsonb)
                THEN run.errors
            WHEN jsonb_array_length(run.errors) >= 10
                THEN (run.errors - 0) || jsonb_build_array(held.error::jsonb)
            ELSE run.errors || jsonb_build_array(held.error::jsonb)
        END,
        -- What the claim noted for a start that was not made.
        worker_ids = CASE
            WHEN held.step IN ('returned', 'abandoned') THEN run.worker_ids - -1
            ELSE run.worker_ids
        END,
        started_at = CASE
            WHEN held.step IN ('returned', 'abandoned') AND jsonb_array_length(run.worker_ids) <= 1 THEN NULL
            ELSE run.started_at
        END,
        last_attempted_at = CASE
            WHEN held.step IN ('returned', 'abandoned') AND jsonb_array_length(run.worker_ids) <= 1 THEN NULL
            ELSE run.last_attempted_at
        END,
        finished_at = CASE
            WHEN held.step IN ('completed', 'failed') THEN clock.now
        END,
        updated_at = CASE
            WHEN held.step IN ('released', 'returned', 'abandoned') THEN run.updated_at
            ELSE clock.now
        END
    FROM held
    CROSS JOIN clock
    WHERE run.id = held.id
    RETURNING
        run.run_id,
        -- A worker that gives a run back leaves it to the next poll, wherever that is.
        run.wake_at <= clock.now AND held.step NOT IN ('released', 'returned') AS is_due
)
SELECT
    outcome.run_id,
    accepted.run_id IS NOT NULL AS is_accepted,
    coalesce(accepted.is_due, FALSE) AS is_due
FROM outcome
LEFT JOIN accepted
    ON accepted.run_id = outcome.run_id
WHERE accepted.run_id IS NOT NULL
    OR EXISTS (
        SELECT
        FROM tenantfair_run AS run
        WHERE run.run_id = outcome.run_id
            AND run.claim_token = outcome.claim_token
            AND (outcome.checkpoint_seq IS NULL OR run.checkpoint_seq = outcome.checkpoint_seq)
    )
