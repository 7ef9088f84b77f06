-- Takes in many runs, one a line in COPY's text format, an empty field for NULL.

COPY tenantfair_run (
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
FROM STDIN
WITH (NULL '')
