-- One scope's override, its partition created if need be. Returns the new version, or no row when the stored
-- version is not the expected one. Only for an expected version of null or 0, which a new scope has.
INSERT INTO tenantfair_partition AS existing (scope_key, max_active, partition_version)
VALUES (%(scope_key)s::text, %(cap)s::integer, 1)
ON CONFLICT (scope_key) DO UPDATE
SET
    max_active = excluded.max_active,
    partition_version = existing.partition_version + 1,
    updated_at = statement_timestamp()
WHERE %(expected)s::bigint IS NULL
    OR existing.partition_version = %(expected)s::bigint
RETURNING partition_version
