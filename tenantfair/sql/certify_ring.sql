-- The scopes that are on the ring or have a cap of their own.
SELECT
    schedule.ring_position,
    schedule.scope_key,
    schedule.unfinished_count > 0 AS on_ring,
    part.max_active
FROM tenantfair_schedule AS schedule
JOIN tenantfair_partition AS part
    ON part.scope_key = schedule.scope_key
WHERE schedule.unfinished_count > 0
    OR part.max_active IS NOT NULL
