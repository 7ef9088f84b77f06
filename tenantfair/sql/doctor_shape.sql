-- Keys that are gone and row security that would hide runs, by kind. The rest of the schema's shape is
-- schema_shape's. A unique index counts when it is valid, covers every row and has the column as its only key.
WITH needed (relation, attribute) AS (
    VALUES
        ('tenantfair_policy', 'id'),
        ('tenantfair_partition', 'scope_key'),
        ('tenantfair_schedule', 'scope_key'),
        ('tenantfair_schedule', 'ring_position'),
        ('tenantfair_run', 'id'),
        ('tenantfair_run', 'run_id')
),
broken AS (
    SELECT
        'schema' AS kind,
        'no unique index on ' || needed.relation || '.' || needed.attribute AS example
    FROM needed
    WHERE NOT EXISTS (
        SELECT
        FROM pg_index AS found
        JOIN pg_attribute AS attribute
            ON attribute.attrelid = found.indrelid
            AND attribute.attnum = found.indkey[0]
        WHERE found.indrelid = to_regclass(needed.relation)
            AND attribute.attname = needed.attribute
            AND found.indnkeyatts = 1
            AND found.indisunique
            AND found.indisvalid
            AND found.indpred IS NULL
    )
    UNION ALL
    SELECT
        'row_security',
        relation.relname
    FROM pg_class AS relation
    WHERE relation.oid IN (SELECT to_regclass(needed.relation) FROM needed)
        AND relation.relrowsecurity
)
SELECT
    kind,
    count(*) AS number,
    array_agg(example ORDER BY example) AS examples
FROM broken
GROUP BY kind
