-- The identities of ours that would hand out a number that is taken: table, sequence, the last number handed
-- out, the highest in use.
SELECT
    numbered.relation,
    numbered.sequence,
    pg_sequence_last_value(numbered.sequence::regclass) AS last,
    numbered.highest
FROM (
    SELECT
        'tenantfair_schedule' AS relation,
        pg_get_serial_sequence('tenantfair_schedule', 'ring_position') AS sequence,
        (SELECT max(ring_position) FROM tenantfair_schedule) AS highest
    UNION ALL
    SELECT
        'tenantfair_run',
        pg_get_serial_sequence('tenantfair_run', 'id'),
        (SELECT max(id) FROM tenantfair_run)
) AS numbered
WHERE coalesce(pg_sequence_last_value(numbered.sequence::regclass), 0) < numbered.highest
ORDER BY numbered.relation
