-- What is there of a recording: its deadline (null when that is gone) and whether it still records.
SELECT
    recording.until,
    coalesce(recording.until > clock_timestamp(), false) AS records
FROM (
    SELECT obj_description(to_regclass('tenantfair_certify_journal'), 'pg_class')::timestamptz AS until
) AS recording
WHERE to_regclass('tenantfair_certify_journal') IS NOT NULL
    OR EXISTS (
        SELECT
        FROM pg_trigger AS found
        WHERE found.tgrelid IN (
            to_regclass('tenantfair_run'),
            to_regclass('tenantfair_schedule'),
            to_regclass('tenantfair_partition'),
            to_regclass('tenantfair_policy')
        )
            AND starts_with(found.tgname, 'tenantfair_certify_')
    )
