-- Deletes the ring positions, locked and counted down to 0, that have no partition to belong to. A scope among
-- them that has runs gets a partition and with it a new position.
DELETE FROM tenantfair_schedule AS schedule
WHERE schedule.scope_key = ANY (%(scopes)s::text[])
    AND schedule.unfinished_count = 0
    AND NOT EXISTS (
        SELECT
        FROM tenantfair_partition AS part
        WHERE part.scope_key = schedule.scope_key
    )
RETURNING schedule.scope_key, schedule.ring_position, NULL::bigint
