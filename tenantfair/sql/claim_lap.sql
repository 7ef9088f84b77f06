-- Claims that go on around the ring to the place (laps, cursor), each in a transaction of its own. A single claim is
-- claim.sql.
CALL tenantfair_claim_lap(
    %(now)s::timestamptz,
    %(demand)s::integer,
    %(preference)s::text,
    %(laps)s::bigint,
    %(cursor)s::bigint,
    %(time)s::interval,
    '{}'
)
