-- One claim under the domain's own lease and attempts, by the database's clock. The left join lets the
-- function itself report a missing policy row.

SELECT claimed.*
FROM (SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS now) AS at
LEFT JOIN tenantfair_policy AS policy ON policy.id = 1
CROSS JOIN LATERAL tenantfair_claim(
    at.now,
    at.now - make_interval(secs => coalesce(policy.lease_seconds, 60)),
    %(demand)s::integer,
    coalesce(policy.max_attempts, 5),
    %(preference)s::text,
    %(trace)s::boolean
) AS claimed
