-- The identity of each function of ours: replaced, even by itself, it has another.
SELECT found.oid::text || ' ' || found.xmin::text || ' ' || found.proname AS identity
FROM pg_proc AS found
WHERE found.pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('tenantfair_run'))
    AND starts_with(found.proname, 'tenantfair_')
    AND NOT starts_with(found.proname, 'tenantfair_certify_')
ORDER BY 1
