-- Scopes whose count differs from their unfinished runs, and scopes on the ring without a partition. Only a
-- suspicion: commits go on, so each is counted again under its lock.
SELECT
    schedule.scope_key,
    NOT EXISTS (
        SELECT
        FROM tenantfair_partition AS part
        WHERE part.scope_key = schedule.scope_key
    ) AS is_orphan
FROM tenantfair_schedule AS schedule
LEFT JOIN (
    SELECT
        scope_key,
        count(*) AS number
    FROM tenantfair_run
    WHERE finished_at IS NULL
    GROUP BY scope_key
) AS unfinished
    ON unfinished.scope_key = schedule.scope_key
WHERE schedule.unfinished_count <> coalesce(unfinished.number, 0)
    OR NOT EXISTS (
        SELECT
        FROM tenantfair_partition AS part
        WHERE part.scope_key = schedule.scope_key
    )
ORDER BY schedule.scope_key
