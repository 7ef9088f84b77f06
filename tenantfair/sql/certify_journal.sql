-- What has been recorded since a snapshot, times in microseconds.
SELECT
    step,
    xid::text::bigint AS xid,
    kind,
    scope_key,
    state,
    (extract(epoch FROM at) * 1000000)::bigint AS at,
    n,
    call,
    snapshot::text AS snapshot,
    laps_before,
    cursor_before,
    laps_after,
    cursor_after,
    cap,
    budget,
    lease
FROM tenantfair_certify_journal
WHERE NOT pg_visible_in_snapshot(xid, %(seen)s::pg_snapshot)
ORDER BY step
