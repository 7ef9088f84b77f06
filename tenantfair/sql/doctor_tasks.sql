-- The tasks of unfinished runs with the number of their runs, the most frequent first, and one more than asked
-- for when there are more.
SELECT
    run.task_path,
    run.backend,
    count(*) AS number
FROM tenantfair_run AS run
WHERE run.finished_at IS NULL
GROUP BY run.task_path, run.backend
ORDER BY number DESC, run.task_path, run.backend
LIMIT %(most_tasks)s::integer + 1
