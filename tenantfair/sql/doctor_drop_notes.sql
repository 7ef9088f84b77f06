-- Removes the notes of transactions that have ended: nobody folds them any more, and a recount has taken
-- their place.
WITH gone AS (
    DELETE FROM tenantfair_pending
    WHERE xid <> pg_current_xact_id()
    RETURNING scope_key
)
SELECT
    gone.scope_key,
    count(*) AS before,
    0::bigint AS after
FROM gone
GROUP BY gone.scope_key
ORDER BY gone.scope_key
