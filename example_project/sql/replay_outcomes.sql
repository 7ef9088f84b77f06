-- Every job's run: whose it was, how long it waited and ran (seconds), and whether it did what it should. The
-- run that only warms the worker up belongs to nobody.
SELECT
    args ->> 0,
    extract(epoch FROM started_at - enqueued_at)::float,
    extract(epoch FROM finished_at - started_at)::float,
    status = 'completed'
FROM tenantfair_run
WHERE args ->> 0 <> ''
