SELECT
    xid::text::bigint,
    snapshot::text,
    is_call,
    at,
    laps_before,
    cursor_before,
    laps_after,
    cursor_after,
    cap,
    budget
FROM example_journal_turn
ORDER BY seq
