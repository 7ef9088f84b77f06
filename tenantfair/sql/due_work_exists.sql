-- Could a claim be granted anything? Read only, no lock, bounded: it looks at no more than 64 scopes with due
-- queued work and says yes when there are more. A wrong yes costs one claim call, a wrong no would cost work,
-- so every doubt is a yes.

WITH RECURSIVE clock AS (
    SELECT
        clock_timestamp() AS now,
        clock_timestamp() - make_interval(secs => policy.lease_seconds) AS expired_before,
        policy.max_active
    FROM tenantfair_policy AS policy
    WHERE policy.id = 1
),
-- Hops from scope to scope over the index of queued runs.
queued (scope_key, place) AS (
    SELECT first.scope_key, 1
    FROM (
        SELECT min(run.scope_key) AS scope_key
        FROM tenantfair_run AS run
        WHERE run.wake_at IS NOT NULL AND run.tenant_admitted_at IS NULL
    ) AS first
    WHERE first.scope_key IS NOT NULL
    UNION ALL
    SELECT next.scope_key, queued.place + 1
    FROM queued
    CROSS JOIN LATERAL (
        SELECT min(run.scope_key) AS scope_key
        FROM tenantfair_run AS run
        WHERE run.wake_at IS NOT NULL
            AND run.tenant_admitted_at IS NULL
            AND run.scope_key > queued.scope_key
    ) AS next
    WHERE next.scope_key IS NOT NULL AND queued.place <= 64
)
SELECT
    EXISTS (
        SELECT
        FROM tenantfair_run AS run
        WHERE run.claim_token IS NOT NULL AND run.claimed_at < (SELECT clock.expired_before FROM clock)
    )
    OR (
        EXISTS (
            SELECT
            FROM tenantfair_run AS run
            WHERE run.status = 'running' AND run.wake_at <= (SELECT clock.now FROM clock)
        )
        AND (
            EXISTS (
                SELECT
                FROM tenantfair_run AS run
                WHERE run.tenant_admitted_at IS NOT NULL AND run.wake_at <= (SELECT clock.now FROM clock)
            )
            OR EXISTS (
                SELECT
                FROM queued
                CROSS JOIN clock
                LEFT JOIN tenantfair_partition AS part ON part.scope_key = queued.scope_key
                CROSS JOIN LATERAL (SELECT coalesce(part.max_active, clock.max_active, 1)::bigint AS n) AS cap
                WHERE queued.place > 64
                    OR EXISTS (
                        SELECT
                        FROM tenantfair_run AS run
                        WHERE run.scope_key = queued.scope_key
                            AND run.tenant_admitted_at IS NULL
                            AND run.wake_at <= clock.now
                    )
                    AND cap.n > (
                        SELECT count(*)
                        FROM (
                            SELECT
                            FROM tenantfair_run AS run
                            WHERE run.scope_key = queued.scope_key
                                AND run.claim_token IS NOT NULL
                                AND run.tenant_admitted_at IS NOT NULL
                            LIMIT cap.n
                        ) AS admitted
                    )
            )
        )
    )
