-- Claims going on around the ring to the place (laps, cursor), each in a transaction of its own: a claim that a
-- statement makes alone is claim.sql.
CALL tenantfair_claim_lap(
    %(now)s::timestamptz,
    %(demand)s::integer,
    %(preference)s::text,
    %(laps)s::bigint,
    %(cursor)s::bigint,
    '{}'
)
