-- Adds the partitions that unfinished runs of the given scopes lack, of all where none are given; a trigger adds
-- their ring positions, so a scope that has one is left out, and one that no partition may have.
INSERT INTO tenantfair_partition (scope_key)
SELECT wanted.scope_key
FROM (SELECT DISTINCT scope_key FROM tenantfair_run WHERE finished_at IS NULL) AS wanted
WHERE tenantfair_tenant_is_well_formed(nullif(wanted.scope_key, ''))
    AND NOT EXISTS (
        SELECT
        FROM tenantfair_partition AS part
        WHERE part.scope_key = wanted.scope_key
    )
    AND NOT EXISTS (
        SELECT
        FROM tenantfair_schedule AS schedule
        WHERE schedule.scope_key = wanted.scope_key
    )
    AND (%(scopes)s::text[] IS NULL OR wanted.scope_key = ANY (%(scopes)s::text[]))
ORDER BY wanted.scope_key
ON CONFLICT DO NOTHING
RETURNING scope_key, NULL::bigint, NULL::bigint
