-- Who holds what everybody needs, by kind: the policy row or the door in front of it, and old snapshots that
-- keep vacuum from the rows that every claim rewrites. What other roles' sessions do is seen only with the
-- rights of pg_read_all_stats. The door's number is the one in tenantfair_claim; a session can hold it without a
-- transaction, and then the time since its last statement counts.
WITH held AS (
    SELECT
        lock.pid,
        lock.virtualtransaction,
        split_part(lock.virtualtransaction, '/', 2) = '0' AS outside_transaction
    FROM pg_locks AS lock
    WHERE lock.granted
        AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (
            (
                lock.locktype = 'relation'
                AND lock.relation = to_regclass('tenantfair_policy')
                AND lock.mode IN (
                    'RowShareLock',
                    'RowExclusiveLock',
                    'ShareLock',
                    'ShareRowExclusiveLock',
                    'ExclusiveLock',
                    'AccessExclusiveLock'
                )
            )
            OR (
                lock.locktype = 'advisory'
                AND lock.objsubid = 1
                AND (lock.classid::bigint << 32 | lock.objid::bigint)
                    = (8386095534873608192 | to_regclass('tenantfair_policy')::oid::bigint)
            )
        )
),
session AS (
    SELECT
        activity.pid,
        activity.datname,
        activity.backend_xmin,
        activity.backend_xid,
        activity.backend_type,
        extract(epoch FROM clock_timestamp() - activity.xact_start) AS transaction_age,
        extract(epoch FROM clock_timestamp() - coalesce(activity.xact_start, activity.state_change)) AS age,
        'pid ' || activity.pid
        || ', application ' || quote_literal(coalesce(activity.application_name, ''))
        || ', ' || coalesce(activity.state, 'state unknown')
        || CASE WHEN activity.xact_start IS NULL THEN ', outside a transaction for ' ELSE ', in a transaction for ' END
        || extract(epoch FROM clock_timestamp() - coalesce(activity.xact_start, activity.state_change))::integer
        || ' s' AS label
    FROM pg_stat_activity AS activity
    WHERE activity.pid <> pg_backend_pid()
),
prepared AS (
    SELECT
        -- A prepared transaction has no process; its locks are those beside the lock on its own id.
        own.virtualtransaction,
        extract(epoch FROM clock_timestamp() - found.prepared) AS age,
        'prepared transaction ' || quote_literal(found.gid)
        || ' for ' || extract(epoch FROM clock_timestamp() - found.prepared)::integer || ' s' AS label
    FROM pg_prepared_xacts AS found
    LEFT JOIN pg_locks AS own
        ON own.locktype = 'transactionid'
        AND own.transactionid = found.transaction
        AND own.pid IS NULL
    WHERE found.database = current_database()
),
broken AS (
    SELECT DISTINCT
        'policy_locked' AS kind,
        session.label AS example
    FROM held
    JOIN session
        ON session.pid = held.pid
    WHERE session.age > %(locked_after)s::double precision
        -- Locks and sessions are not read at one moment: who was idle may have begun a claim in between.
        AND (session.transaction_age IS NOT NULL OR held.outside_transaction)
    UNION ALL
    SELECT DISTINCT
        'policy_locked',
        prepared.label
    FROM held
    JOIN prepared
        ON prepared.virtualtransaction = held.virtualtransaction
    WHERE held.pid IS NULL
        AND prepared.age > %(locked_after)s::double precision
    UNION ALL
    SELECT
        'old_snapshot',
        session.label
    FROM session
    WHERE session.transaction_age > %(snapshot_after)s::double precision
        AND coalesce(session.backend_xmin, session.backend_xid) IS NOT NULL
        AND session.backend_type IN ('client backend', 'walsender')
        AND coalesce(session.datname, current_database()) = current_database()
    UNION ALL
    SELECT
        'old_snapshot',
        prepared.label
    FROM prepared
    WHERE prepared.age > %(snapshot_after)s::double precision
    UNION ALL
    SELECT
        'old_snapshot',
        'replication slot ' || quote_literal(slot.slot_name) || ', not in use, '
        || age(slot.xmin) || ' transactions behind'
    FROM pg_replication_slots AS slot
    WHERE slot.xmin IS NOT NULL
        AND NOT slot.active
)
SELECT
    kind,
    count(*) AS number,
    (array_agg(example ORDER BY example))[1:%(most)s::integer] AS examples
FROM broken
GROUP BY kind
