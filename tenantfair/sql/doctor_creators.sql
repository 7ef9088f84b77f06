-- Who may create objects in the schema of our tables, besides its owner, the tables' owner and superusers. Functions of
-- ours find names there, so an overload of what they call, closer to its arguments, is called in its place.
WITH broken AS (
    SELECT DISTINCT
        CASE WHEN granted.grantee = 0 THEN 'PUBLIC' ELSE 'role ' || quote_literal(pg_get_userbyid(granted.grantee)) END
        || ' may create in schema ' || quote_literal(namespace.nspname) AS example
    FROM pg_class AS run
    JOIN pg_namespace AS namespace
        ON namespace.oid = run.relnamespace
    CROSS JOIN LATERAL aclexplode(namespace.nspacl) AS granted
    LEFT JOIN pg_roles AS grantee
        ON grantee.oid = granted.grantee
    WHERE run.oid = to_regclass('tenantfair_run')
        AND granted.privilege_type = 'CREATE'
        AND granted.grantee NOT IN (namespace.nspowner, run.relowner)
        AND grantee.rolsuper IS NOT TRUE
)
SELECT
    'schema_creators' AS kind,
    count(*) AS number,
    array_agg(broken.example ORDER BY broken.example) AS examples
FROM broken
HAVING count(*) > 0
