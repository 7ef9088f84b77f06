-- Extends the leases whose fence holds and returns the runs it holds for, each with whether it was extended.
--
-- Rows that somebody else has locked are skipped, not waited for: one open transaction on one run must not
-- let the other leases of the batch expire. They are still returned, as not extended, when the committed token
-- is the holder's: their holder tries again soon. claimed_at never moves back.

WITH held AS MATERIALIZED (
    SELECT lease.run_id, lease.claim_token
    FROM unnest(%(run_id)s::uuid[], %(claim_token)s::uuid[]) AS lease (run_id, claim_token)
),
renewable AS MATERIALIZED (
    SELECT run.id
    FROM held
    JOIN tenantfair_run AS run
        ON run.run_id = held.run_id
        AND run.claim_token = held.claim_token
    FOR NO KEY UPDATE OF run SKIP LOCKED
),
renewed AS (
    UPDATE tenantfair_run AS run
    SET claimed_at = greatest(run.claimed_at, clock_timestamp())
    FROM renewable
    WHERE run.id = renewable.id
)
SELECT
    run.run_id,
    EXISTS (SELECT FROM renewable WHERE renewable.id = run.id) AS extended
FROM held
JOIN tenantfair_run AS run
    ON run.run_id = held.run_id
    AND run.claim_token = held.claim_token
