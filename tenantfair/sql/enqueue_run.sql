-- Inserts one run, due from one reading of the database clock, and returns when it was enqueued. An id that is
-- there already is left out rather than raised, so that the caller's transaction lives on.

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
VALUES (
    %(run_id)s::uuid,
    %(tenant_id)s::text,
    %(task_path)s::text,
    %(args)s::jsonb,
    %(kwargs)s::jsonb,
    %(queue_name)s::text,
    %(backend)s::text,
    %(retry_limit)s::smallint,
    coalesce(
        %(run_after)s::timestamptz,
        -- Added in UTC: where the session's zone changes its clocks, a day is not always 24 hours.
        (statement_timestamp() AT TIME ZONE 'UTC' + coalesce(%(delay)s::interval, interval '0')) AT TIME ZONE 'UTC'
    ),
    statement_timestamp(),
    statement_timestamp()
)
ON CONFLICT (run_id) DO NOTHING
RETURNING enqueued_at
