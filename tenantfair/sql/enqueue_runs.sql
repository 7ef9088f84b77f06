-- Inserts runs in the order given, due from one reading of the database clock, and returns what was inserted.
-- An id that is there already is left out rather than raised, so that the caller's transaction lives on.

INSERT INTO tenantfair_run (
    run_id,
    tenant_id,
    task_path,
    args,
    kwargs,
    queue_name,
    backend,
    retry_limit,
    wake_at,
    enqueued_at,
    updated_at
)
SELECT
    new_run.run_id,
    new_run.tenant_id,
    new_run.task_path,
    new_run.args::jsonb,
    new_run.kwargs::jsonb,
    new_run.queue_name,
    new_run.backend,
    new_run.retry_limit,
    coalesce(new_run.run_after, clock.now + coalesce(new_run.delay, interval '0')),
    clock.now,
    clock.now
FROM unnest(
    %(run_id)s::uuid[],
    %(tenant_id)s::text[],
    %(task_path)s::text[],
    %(args)s::text[],
    %(kwargs)s::text[],
    %(queue_name)s::text[],
    %(backend)s::text[],
    %(retry_limit)s::smallint[],
    %(run_after)s::timestamptz[],
    %(delay)s::interval[]
) WITH ORDINALITY AS new_run (
    run_id,
    tenant_id,
    task_path,
    args,
    kwargs,
    queue_name,
    backend,
    retry_limit,
    run_after,
    delay,
    place
)
-- OFFSET 0 keeps the clock from being read once per row.
CROSS JOIN (SELECT clock_timestamp() AS now OFFSET 0) AS clock
ORDER BY new_run.place
ON CONFLICT (run_id) DO NOTHING
RETURNING run_id, enqueued_at
