-- Takes away what certify_install made. No trigger uses it any more, so nobody waits for these locks.
DROP FUNCTION IF EXISTS
    tenantfair_certify_inserted(),
    tenantfair_certify_updated(),
    tenantfair_certify_deleted(),
    tenantfair_certify_epochs(),
    tenantfair_certify_cap(),
    tenantfair_certify_ring(),
    tenantfair_certify_policy(),
    tenantfair_certify_lose(),
    tenantfair_certify_state(text, timestamptz, uuid, timestamptz);
DROP TABLE IF EXISTS tenantfair_certify_journal;
DROP SEQUENCE IF EXISTS
    tenantfair_certify_rows,
    tenantfair_certify_steps,
    tenantfair_certify_calls,
    tenantfair_certify_lost;
