-- Sets the counts of the given, locked scopes to their unfinished runs, and to 0 where the partition is gone;
-- returns what changed. Nobody may write a count (tenantfair_schedule_guard) but the fold at commit, which sets
-- the transaction-local marker tenantfair.folding_N to its transaction's id. This is the one other place that sets
-- it; the marker dies with the repair's transaction, which writes no count in any other way.
WITH marker AS MATERIALIZED (
    SELECT
        set_config('tenantfair.folding_' || 'tenantfair_run'::regclass::oid::text, pg_current_xact_id()::text, true) AS folding
),
recount AS MATERIALIZED (
    SELECT
        schedule.scope_key,
        schedule.unfinished_count AS before,
        CASE WHEN part.scope_key IS NULL THEN 0 ELSE coalesce(unfinished.number, 0) END AS after
    FROM tenantfair_schedule AS schedule
    LEFT JOIN tenantfair_partition AS part
        ON part.scope_key = schedule.scope_key
    LEFT JOIN (
        SELECT
            scope_key,
            count(*) AS number
        FROM tenantfair_run
        WHERE finished_at IS NULL
            AND scope_key = ANY (%(scopes)s::text[])
        GROUP BY scope_key
    ) AS unfinished
        ON unfinished.scope_key = schedule.scope_key
    WHERE schedule.scope_key = ANY (%(scopes)s::text[])
)
UPDATE tenantfair_schedule AS schedule
SET unfinished_count = recount.after
FROM recount, marker
WHERE schedule.scope_key = recount.scope_key
    AND recount.before <> recount.after
    AND marker.folding IS NOT NULL
RETURNING schedule.scope_key, recount.before, recount.after
