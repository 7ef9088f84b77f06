-- The last resort for an outcome that the database refuses: ends the run failed, storing constants only and
-- reading nothing that could be refused again. It waits for nobody and answers as finish_runs does.

WITH clock AS MATERIALIZED (
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
    SELECT id
    FROM tenantfair_run
    WHERE run_id = %(run_id)s::uuid
        AND claim_token = %(claim_token)s::uuid
    FOR NO KEY UPDATE SKIP LOCKED
),
accepted AS (
    UPDATE tenantfair_run AS run
    SET
        status = 'failed',
        wake_at = NULL,
        claim_token = NULL,
        claimed_at = NULL,
        claimed_by = NULL,
        tenant_admitted_at = NULL,
        claim_attempts = 0,
        claim_abandons = 0,
        failures = run.failures + 1,
        errors = jsonb_build_array(
            jsonb_build_object(
                'exception_class_path', 'tenantfair.exceptions.InvalidPayload',
                'traceback', 'the database refused to store the outcome of this run'
            )
        ),
        finished_at = clock.now,
        updated_at = clock.now
    FROM held
    CROSS JOIN clock
    WHERE run.id = held.id
    RETURNING run.run_id
)
SELECT
    run.run_id,
    accepted.run_id IS NOT NULL AS is_accepted,
    FALSE AS is_due
FROM tenantfair_run AS run
LEFT JOIN accepted
    ON accepted.run_id = run.run_id
WHERE run.run_id = %(run_id)s::uuid
    AND run.claim_token = %(claim_token)s::uuid
