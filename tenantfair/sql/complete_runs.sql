-- finish_runs for a batch in which every run has completed, as almost all have: the same fence, locks and
-- answer, with nothing to decide from row to row.
--
-- IS NOT DISTINCT FROM, so that no index on claimed rows can serve the lookups: a plan made while few rows were
-- claimed would read all of them for good.

WITH outcome AS MATERIALIZED (
    SELECT *
    FROM unnest(
        %(run_id)s::uuid[],
        %(claim_token)s::uuid[],
        %(result)s::text[]
    ) AS outcome (
        run_id,
        claim_token,
        result
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
held AS MATERIALIZED (
    SELECT
        found.id,
        outcome.result
    FROM outcome
    CROSS JOIN LATERAL (
        SELECT run.id
        FROM tenantfair_run AS run
        WHERE run.run_id = outcome.run_id
            AND run.claim_token IS NOT DISTINCT FROM outcome.claim_token
        LIMIT 1
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS found
),
accepted AS (
    UPDATE tenantfair_run AS run
    SET
        status = 'completed',
        wake_at = NULL,
        claim_token = NULL,
        claimed_at = NULL,
        claimed_by = NULL,
        tenant_admitted_at = NULL,
        claim_attempts = 0,
        claim_abandons = 0,
        result = held.result::jsonb,
        finished_at = clock.now,
        updated_at = clock.now
    FROM held
    CROSS JOIN clock
    WHERE run.id = held.id
    RETURNING run.run_id
)
SELECT
    outcome.run_id,
    accepted.run_id IS NOT NULL AS is_accepted,
    FALSE AS is_due
FROM outcome
LEFT JOIN accepted
    ON accepted.run_id = outcome.run_id
WHERE accepted.run_id IS NOT NULL
    OR (
        SELECT run.id
        FROM tenantfair_run AS run
        WHERE run.run_id = outcome.run_id
            AND run.claim_token IS NOT DISTINCT FROM outcome.claim_token
        LIMIT 1
    ) IS NOT NULL
