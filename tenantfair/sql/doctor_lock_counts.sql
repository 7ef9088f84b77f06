-- Locks the counts of the given scopes, in the order in which commits take them. Whoever moves such a count
-- holds its row until the end of the transaction, so under these locks the runs that a new statement sees are
-- exactly those that are in the count.
SELECT schedule.scope_key
FROM tenantfair_schedule AS schedule
WHERE schedule.scope_key = ANY (%(scopes)s::text[])
ORDER BY schedule.scope_key
FOR NO KEY UPDATE
