-- A recording of tenantfair_certify whose deadline has passed, and that nobody took away: journal or triggers.
WITH recording AS (
    SELECT obj_description(to_regclass('tenantfair_certify_journal'), 'pg_class')::timestamptz AS until
),
broken AS (
    SELECT 'table tenantfair_certify_journal' AS example
    WHERE to_regclass('tenantfair_certify_journal') IS NOT NULL
    UNION ALL
    SELECT 'trigger ' || found.tgname || ' on ' || relation.relname
    FROM pg_trigger AS found
    JOIN pg_class AS relation
        ON relation.oid = found.tgrelid
    WHERE relation.oid IN (
        to_regclass('tenantfair_run'),
        to_regclass('tenantfair_schedule'),
        to_regclass('tenantfair_partition'),
        to_regclass('tenantfair_policy')
    )
        AND starts_with(found.tgname, 'tenantfair_certify_')
)
SELECT
    'recording_left' AS kind,
    count(*) AS number,
    array_agg(broken.example ORDER BY broken.example) AS examples
FROM broken
CROSS JOIN recording
WHERE recording.until IS NULL
    OR recording.until <= clock_timestamp()
HAVING count(*) > 0
