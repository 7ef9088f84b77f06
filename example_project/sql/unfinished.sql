-- How many runs are not over yet. The counts are exact, so nobody has to look at the runs themselves.
SELECT coalesce(sum(unfinished_count), 0)::bigint
FROM tenantfair_schedule
