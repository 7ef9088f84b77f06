-- The bodies of tenantfair's functions in the schema that the search path leads to.
SELECT
    found.proname,
    found.prosrc
FROM pg_proc AS found
JOIN pg_class AS run
    ON run.relnamespace = found.pronamespace
WHERE run.oid = to_regclass('tenantfair_run')
    AND starts_with(found.proname, 'tenantfair_')
ORDER BY found.proname
