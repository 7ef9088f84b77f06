-- The pristine policy row, where there is none. Looked for first: ON CONFLICT alone would wait for whoever
-- is writing an existing row.
INSERT INTO tenantfair_policy (id)
SELECT 1
WHERE NOT EXISTS (
    SELECT
    FROM tenantfair_policy
    WHERE id = 1
)
ON CONFLICT DO NOTHING
