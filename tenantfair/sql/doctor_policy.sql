-- What is wrong with the policy row, with identities that would hand out a number twice, and with notes that
-- no transaction is left to fold, by kind. A cursor is possible at 0 and wherever a position was handed out.
WITH identity AS (
    SELECT
        numbered.name,
        numbered.highest,
        numbered.sequence IS NOT NULL AS exists,
        has_sequence_privilege(numbered.sequence, 'USAGE, SELECT') AS is_readable,
        CASE
            WHEN has_sequence_privilege(numbered.sequence, 'USAGE, SELECT')
                THEN pg_sequence_last_value(numbered.sequence::regclass)
        END AS last
    FROM (
        SELECT
            'tenantfair_schedule.ring_position' AS name,
            pg_get_serial_sequence('tenantfair_schedule', 'ring_position') AS sequence,
            (SELECT coalesce(max(ring_position), 0) FROM tenantfair_schedule) AS highest
        UNION ALL
        SELECT
            'tenantfair_run.id',
            pg_get_serial_sequence('tenantfair_run', 'id'),
            (SELECT coalesce(max(id), 0) FROM tenantfair_run)
    ) AS numbered
),
broken AS (
    SELECT
        'policy_missing' AS kind,
        'no row has id 1' AS example
    WHERE NOT EXISTS (SELECT FROM tenantfair_policy WHERE id = 1)
    UNION ALL
    SELECT
        'policy_extra',
        count(*) || ' rows'
    FROM tenantfair_policy
    HAVING count(*) > 1
    UNION ALL
    SELECT
        'policy_shape',
        'mode ' || policy.admission_mode
        || ', cap ' || coalesce(policy.max_active::text, 'null')
        || ', configured ' || coalesce(policy.configured_max_active::text, 'null')
        || ', version ' || policy.policy_version
        || ', lease ' || policy.lease_seconds
        || ', attempts ' || policy.max_attempts
        || ', budget ' || policy.scan_budget
        || CASE WHEN policy.initialized_at IS NULL THEN ', not initialised' ELSE ', initialised' END
    FROM tenantfair_policy AS policy
    WHERE (
        policy.admission_mode IN ('legacy', 'tenant_fair')
        AND CASE
            WHEN policy.initialized_at IS NULL
                THEN policy.max_active IS NULL
                    AND policy.policy_version = 0
                    AND policy.admission_mode = 'legacy'
            ELSE policy.max_active >= 1 AND policy.policy_version >= 1
        END
        AND coalesce(policy.configured_max_active, 1) >= 1
        AND policy.lease_seconds BETWEEN 1 AND 86400
        AND policy.max_attempts BETWEEN 1 AND 32767
        AND policy.scan_budget BETWEEN 32 AND 4096
    ) IS NOT TRUE
    UNION ALL
    SELECT
        'cursor_impossible',
        'cursor ' || policy.scan_ring_position || ', laps ' || policy.scan_laps
        || ', highest position ' || greatest(identity.highest, identity.last)
    FROM tenantfair_policy AS policy
    JOIN identity
        ON identity.name = 'tenantfair_schedule.ring_position'
    WHERE least(policy.scan_laps, policy.scan_ring_position, policy.scan_fruitless) < 0
        OR (
            identity.is_readable IS NOT FALSE
            AND policy.scan_ring_position > greatest(identity.highest, identity.last)
        )
    UNION ALL
    SELECT
        'unreadable_time',
        'policy'
    FROM tenantfair_policy AS policy
    WHERE least(policy.initialized_at, policy.updated_at) < '0001-01-01 00:00:00+00'
        OR greatest(policy.initialized_at, policy.updated_at) > '9999-12-31 23:59:59.999999+00'
    UNION ALL
    SELECT
        'identity_missing',
        identity.name
    FROM identity
    WHERE NOT identity.exists
    UNION ALL
    SELECT
        'identity_behind',
        identity.name || ' goes on at ' || coalesce(identity.last + 1, 1) || ' and has ' || identity.highest
    FROM identity
    WHERE identity.is_readable
        AND coalesce(identity.last, 0) < identity.highest
    UNION ALL
    -- Notes of open transactions are visible to nobody else.
    SELECT
        'notes_left',
        count(*) || ' notes of transaction ' || note.xid || ' for ' || quote_literal(note.scope_key)
    FROM tenantfair_pending AS note
    GROUP BY note.xid, note.scope_key
)
SELECT
    kind,
    count(*) AS number,
    (array_agg(example ORDER BY example))[1:%(most)s::integer] AS examples
FROM broken
GROUP BY kind
