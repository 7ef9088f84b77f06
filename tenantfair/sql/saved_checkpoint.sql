-- The number of the last checkpoint of a run, as long as the claim holds.
SELECT checkpoint_seq
FROM tenantfair_run
WHERE run_id = %(run_id)s::uuid
    AND claim_token = %(claim_token)s::uuid
