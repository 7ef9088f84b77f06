SELECT
    seq,
    xid::text::bigint,
    at,
    statement,
    scope_key,
    run_id,
    state_before,
    state_after,
    due_at
FROM example_journal_run
ORDER BY seq
