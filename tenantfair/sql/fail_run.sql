-- The last resort for an outcome that the database refuses: ends the run failed, storing constants only and
-- reading nothing that could be refused again.

UPDATE tenantfair_run
SET
    status = 'failed',
    wake_at = NULL,
    claim_token = NULL,
    claimed_at = NULL,
    claimed_by = NULL,
    tenant_admitted_at = NULL,
    claim_attempts = 0,
    claim_abandons = 0,
    failures = failures + 1,
    errors = jsonb_build_array(
        jsonb_build_object(
            'exception_class_path', 'tenantfair.exceptions.InvalidPayload',
            'traceback', 'the database refused to store the outcome of this run'
        )
    ),
    finished_at = clock_timestamp(),
    updated_at = clock_timestamp()
WHERE run_id = %(run_id)s::uuid
    AND claim_token = %(claim_token)s::uuid
RETURNING run_id, true
