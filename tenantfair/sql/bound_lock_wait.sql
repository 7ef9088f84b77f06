-- Bounds the waits for locks in this transaction to 250 ms, or to less if the caller's bound is lower, and
-- returns the setting that was in force, for its restoration.

WITH previous AS MATERIALIZED (
    SELECT current_setting('lock_timeout') AS lock_timeout
)
SELECT
    lock_timeout,
    set_config(
        'lock_timeout',
        CASE
            WHEN lock_timeout::interval BETWEEN interval '1 ms' AND interval '250 ms' THEN lock_timeout
            ELSE '250ms'
        END,
        true
    )
FROM previous
