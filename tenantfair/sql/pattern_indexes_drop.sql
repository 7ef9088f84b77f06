-- Django adds these to every text key. In collation "C" the key's own index serves LIKE as well.
DROP INDEX IF EXISTS tenantfair_partition_scope_key_3a074b37_like;
DROP INDEX IF EXISTS tenantfair_schedule_scope_key_c367b2e8_like;
