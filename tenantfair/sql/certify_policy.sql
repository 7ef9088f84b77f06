-- The policy, and the snapshot that everything else of this transaction is read in.
SELECT
    pg_current_snapshot()::text AS seen,
    policy.admission_mode,
    policy.max_active,
    policy.scan_budget,
    policy.lease_seconds,
    policy.scan_laps,
    policy.scan_ring_position
FROM tenantfair_policy AS policy
WHERE policy.id = 1
