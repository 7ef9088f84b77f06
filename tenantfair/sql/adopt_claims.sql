-- Marks what the legacy engine has claimed as admitted, so that tenant-fair claims count it and recover it.
-- Runs under the policy lock that switches the mode; no legacy claim is in flight then.
UPDATE tenantfair_run
SET tenant_admitted_at = claimed_at
WHERE claim_token IS NOT NULL
    AND tenant_admitted_at IS NULL
