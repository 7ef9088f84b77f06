-- Could a claim be granted anything? Read only, no lock, bounded: it looks at no more than 64 scopes with due
-- queued work and says yes when there are more. A wrong yes costs one claim call, a wrong no would cost work,
-- so every doubt is a yes.
--
-- Each lookup is a first row in the order of one index; a plain EXISTS would be read from the table's start
-- while statistics lag behind it.

WITH RECURSIVE clock AS (
    SELECT
        clock_timestamp() AS now,
        clock_timestamp() - make_interval(secs => policy.lease_seconds) AS expired_before,
        policy.max_active
    FROM tenantfair_policy AS policy
    -- From the end, where the newest version of the row is.
    WHERE policy.id >= 1
    ORDER BY policy.id DESC
    LIMIT 1
),
-- Hops from scope to scope over the index of queued runs.
queued (scope_key, place) AS (
    (
        SELECT run.scope_key, 1
        FROM tenantfair_run AS run
        WHERE run.wake_at IS NOT NULL AND run.tenant_admitted_at IS NULL
        ORDER BY run.scope_key, run.wake_at, run.id
        LIMIT 1
    )
    UNION ALL
    SELECT next.scope_key, queued.place + 1
    FROM queued
    CROSS JOIN LATERAL (
        SELECT run.scope_key
        FROM tenantfair_run AS run
        WHERE run.wake_at IS NOT NULL
            AND run.tenant_admitted_at IS NULL
            AND run.scope_key > queued.scope_key
        ORDER BY run.scope_key, run.wake_at, run.id
        LIMIT 1
    ) AS next
    WHERE queued.place <= 64
)
SELECT
    -- Without its row the domain cannot be judged; the claim says what is wrong with it.
    NOT EXISTS (SELECT FROM clock)
    OR (
        SELECT run.id
        FROM tenantfair_run AS run
        WHERE run.claim_token IS NOT NULL AND run.claimed_at < (SELECT clock.expired_before FROM clock)
        ORDER BY run.scope_key, run.claimed_at, run.id
        LIMIT 1
    ) IS NOT NULL
    OR (
        (
            SELECT run.id
            FROM tenantfair_run AS run
            WHERE run.status = 'running' AND run.wake_at <= (SELECT clock.now FROM clock)
            ORDER BY run.wake_at, run.id
            LIMIT 1
        ) IS NOT NULL
        AND (
            (
                SELECT run.id
                FROM tenantfair_run AS run
                WHERE run.tenant_admitted_at IS NOT NULL AND run.wake_at <= (SELECT clock.now FROM clock)
                ORDER BY run.scope_key, run.wake_at, run.id
                LIMIT 1
            ) IS NOT NULL
            OR EXISTS (
                SELECT
                FROM queued
                CROSS JOIN clock
                CROSS JOIN LATERAL (
                    SELECT
                        coalesce(
                            (
                                SELECT part.max_active
                                FROM tenantfair_partition AS part
                                WHERE part.scope_key = queued.scope_key
                            ),
                            clock.max_active,
                            1
                        )::bigint AS n
                ) AS cap
                WHERE queued.place > 64
                    OR (
                        SELECT run.id
                        FROM tenantfair_run AS run
                        WHERE run.scope_key = queued.scope_key
                            AND run.tenant_admitted_at IS NULL
                            AND run.wake_at <= clock.now
                        ORDER BY run.wake_at, run.id
                        LIMIT 1
                    ) IS NOT NULL
                    AND cap.n > (
                        SELECT count(*)
                        FROM (
                            SELECT
                            FROM tenantfair_run AS run
                            WHERE run.scope_key = queued.scope_key
                                AND run.claim_token IS NOT NULL
                                AND run.tenant_admitted_at IS NOT NULL
                            ORDER BY run.claimed_at, run.id
                            LIMIT cap.n
                        ) AS admitted
                    )
            )
        )
    )
