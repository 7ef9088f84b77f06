-- Adds the partitions that unfinished runs lack; a trigger adds their ring positions. A scope that no partition
-- may have is left out.
INSERT INTO tenantfair_partition (scope_key)
SELECT wanted.scope_key
FROM (SELECT DISTINCT scope_key FROM tenantfair_run WHERE finished_at IS NULL) AS wanted
WHERE tenantfair_tenant_is_well_formed(nullif(wanted.scope_key, ''))
    AND NOT EXISTS (
        SELECT
        FROM tenantfair_partition AS part
        WHERE part.scope_key = wanted.scope_key
    )
ORDER BY wanted.scope_key
ON CONFLICT DO NOTHING
RETURNING scope_key, NULL::bigint, NULL::bigint
