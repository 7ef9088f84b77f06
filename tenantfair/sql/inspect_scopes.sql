-- Caps and counts of the scopes asked for, one row each, known or not, from one snapshot.
--
-- Every count walks one partial index of tenantfair_run from the scope's first entry: finished runs are in
-- none of them. A run with a wake time is healthy, and so is a run with a token (CHECKs of the table).
SELECT
    wanted.scope_key,
    coalesce(partition.max_active, policy.max_active) AS cap,
    partition.max_active IS NOT NULL AS overridden,
    coalesce(policy.policy_version, 0) AS default_version,
    coalesce(partition.partition_version, 0) AS override_version,
    queued.due AS queued,
    ready.due AS admitted_ready,
    claimed.admitted AS admitted_claimed,
    -- Without a cap there is no debt: greatest() passes over the null.
    greatest(
        ready.due + ready.early + claimed.admitted - coalesce(partition.max_active, policy.max_active),
        0
    ) AS debt,
    coalesce(schedule.unfinished_count, 0) AS unfinished,
    statement_timestamp() - least(queued.oldest, ready.oldest) AS oldest_due_wait,
    schedule.ring_position,
    coalesce(partition.admission_epoch, 0) AS admission_epoch,
    coalesce(policy.admission_mode, 'legacy') AS mode,
    policy.initialized_at IS NOT NULL AS initialized
FROM unnest(%(scope_keys)s::text[]) AS wanted (scope_key)
LEFT JOIN tenantfair_policy AS policy
    ON policy.id = 1
LEFT JOIN tenantfair_partition AS partition
    ON partition.scope_key = wanted.scope_key
LEFT JOIN tenantfair_schedule AS schedule
    ON schedule.scope_key = wanted.scope_key
CROSS JOIN LATERAL (
    SELECT
        count(*) AS due,
        min(wake_at) AS oldest
    FROM tenantfair_run
    WHERE scope_key = wanted.scope_key
        AND wake_at IS NOT NULL
        AND tenant_admitted_at IS NULL
        AND wake_at <= statement_timestamp()
) AS queued
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE wake_at <= statement_timestamp()) AS due,
        -- Admitted and not yet due: in no count of its own, but in the cap.
        count(*) FILTER (WHERE wake_at > statement_timestamp()) AS early,
        min(wake_at) FILTER (WHERE wake_at <= statement_timestamp()) AS oldest
    FROM tenantfair_run
    WHERE scope_key = wanted.scope_key
        AND wake_at IS NOT NULL
        AND tenant_admitted_at IS NOT NULL
) AS ready
CROSS JOIN LATERAL (
    SELECT count(*) AS admitted
    FROM tenantfair_run
    WHERE scope_key = wanted.scope_key
        AND claim_token IS NOT NULL
        AND tenant_admitted_at IS NOT NULL
) AS claimed
