-- Whether this role may put triggers on our tables and take them off again, and make objects beside them.
SELECT
    bool_and(pg_has_role(relation.relowner, 'USAGE')),
    bool_and(has_schema_privilege(relation.relnamespace, 'CREATE'))
FROM pg_class AS relation
WHERE relation.oid IN (
    to_regclass('tenantfair_run'),
    to_regclass('tenantfair_schedule'),
    to_regclass('tenantfair_partition'),
    to_regclass('tenantfair_policy')
)
