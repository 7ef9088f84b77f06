-- Scopes whose admitted runs are at or over their cap, most over it first.
--
-- Reads the admitted runs alone, over the two partial indexes that hold them; caps bound their number.
WITH admitted AS (
    SELECT
        scope_key,
        count(*) AS runs
    FROM (
        SELECT scope_key
        FROM tenantfair_run
        WHERE wake_at IS NOT NULL
            AND tenant_admitted_at IS NOT NULL
        UNION ALL
        SELECT scope_key
        FROM tenantfair_run
        WHERE claim_token IS NOT NULL
            AND tenant_admitted_at IS NOT NULL
    ) AS ready_or_claimed
    GROUP BY scope_key
)
SELECT
    scope_key,
    admitted.runs > coalesce(partition.max_active, policy.max_active) AS in_debt
FROM admitted
JOIN tenantfair_partition AS partition USING (scope_key)
JOIN tenantfair_policy AS policy
    ON policy.id = 1
WHERE admitted.runs >= coalesce(partition.max_active, policy.max_active)
ORDER BY admitted.runs - coalesce(partition.max_active, policy.max_active) DESC, scope_key
