SELECT
    seq,
    xid::text::bigint,
    scope_key,
    kind,
    cap
FROM example_journal_scope
ORDER BY seq
