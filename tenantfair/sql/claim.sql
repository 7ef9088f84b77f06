-- One claim under the domain's own lease and attempts, by the database's clock. The left join lets the
-- function itself report a missing policy row. With `unflushed` the commit of this transaction, the claim's
-- own, is not waited for; with `own` it is not where nothing was granted and only the cursor moved, nor where
-- another claim was under way: those that come behind would wait for the disk too (decision 0010). A row of
-- the answer says so, for whoever is to wait before a run starts.

SELECT
    claimed.row_kind,
    claimed.error_reason,
    claimed.disposition,
    claimed.visit_ordinal,
    claimed.outcome_ordinal,
    -- a lease, or a poisoned run
    claimed.run_id,
    claimed.tenant_id,
    claimed.task_path,
    claimed.args::text AS args,
    claimed.kwargs::text AS kwargs,
    claimed.state::text AS state,
    claimed.signals::text AS signals,
    claimed.checkpoint_seq,
    claimed.failures,
    claimed.retry_limit,
    claimed.abandons,
    claimed.queue_name,
    claimed.backend,
    claimed.enqueued_at,
    claimed.started_at,
    claimed.errors::text AS errors,
    claimed.worker_ids::text AS worker_ids,
    claimed.claim_token,
    claimed.claimed_at,
    claimed.claim_attempt,
    claimed.poisoned_at,
    claimed.poison_reason,
    claimed.work_class,
    claimed.eligible_at,
    -- the call
    claimed.inspections,
    claimed.outcome_count,
    claimed.denials::text AS denials,
    claimed.laps_before,
    claimed.cursor_before,
    claimed.laps_after,
    claimed.cursor_after,
    at.unflushed
FROM (
    SELECT
        coalesce(%(now)s::timestamptz, clock_timestamp()) AS now,
        CASE
            WHEN %(unflushed)s::boolean
                -- The claim's own door: taken here already when nobody is there.
                OR %(own)s::boolean AND NOT pg_try_advisory_xact_lock(
                    8386095534873608192 | 'tenantfair_policy'::regclass::oid::bigint
                )
            THEN set_config('synchronous_commit', 'off', true) = 'off'
            ELSE false
        END AS unflushed
) AS at
LEFT JOIN LATERAL (
    SELECT found.lease_seconds, found.max_attempts
    FROM tenantfair_policy AS found
    -- From the end, where the newest version of the row is.
    WHERE found.id >= 1
    ORDER BY found.id DESC
    LIMIT 1
) AS policy ON true
CROSS JOIN LATERAL tenantfair_claim(
    at.now,
    at.now - make_interval(secs => coalesce(policy.lease_seconds, 60)),
    %(demand)s::integer,
    coalesce(policy.max_attempts, 5),
    %(preference)s::text,
    %(trace)s::boolean
) AS claimed
WHERE CASE
    WHEN %(own)s::boolean AND claimed.row_kind = 'call' AND claimed.outcome_count = 0
    THEN set_config('synchronous_commit', 'off', true) IS NOT NULL
    ELSE true
END
