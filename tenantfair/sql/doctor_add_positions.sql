-- Adds the ring positions that partitions lack, after all that were ever handed out.
INSERT INTO tenantfair_schedule (scope_key)
SELECT part.scope_key
FROM tenantfair_partition AS part
WHERE NOT EXISTS (
    SELECT
    FROM tenantfair_schedule AS schedule
    WHERE schedule.scope_key = part.scope_key
)
ORDER BY part.scope_key
ON CONFLICT (scope_key) DO NOTHING
RETURNING scope_key, NULL::bigint, ring_position
