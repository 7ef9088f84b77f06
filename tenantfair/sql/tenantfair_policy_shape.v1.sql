-- True for a policy row whose columns fit together; otherwise a check_violation that names the rule they break.
--
-- The one CHECK of tenantfair_policy calls it: every claim writes the cursor, and PostgreSQL would parse the text
-- of every single CHECK again each time (decision 0014).

CREATE OR REPLACE FUNCTION tenantfair_policy_shape(
    p_id                    smallint,
    p_admission_mode        text,
    p_max_active            integer,
    p_configured_max_active integer,
    p_lease_seconds         integer,
    p_max_attempts          integer,
    p_scan_budget           integer,
    p_policy_version        bigint,
    p_scan_ring_position    bigint,
    p_scan_laps             bigint,
    p_scan_fruitless        smallint,
    p_initialized_at        timestamptz
)
    RETURNS boolean
    LANGUAGE plpgsql
    IMMUTABLE
    PARALLEL SAFE
    SET search_path FROM CURRENT
AS $tenantfair_policy_shape$
DECLARE
    v_broken CONSTANT text := CASE
        WHEN p_id <> 1 THEN 'tenantfair_policy_single'
        WHEN p_admission_mode NOT IN ('legacy', 'tenant_fair') THEN 'tenantfair_policy_mode'
        -- Pristine, or initialised with a cap.
        WHEN CASE
            WHEN p_initialized_at IS NULL THEN p_max_active IS NOT NULL OR p_policy_version <> 0
            ELSE p_max_active IS NULL OR p_max_active < 1 OR p_policy_version < 1
        END THEN 'tenantfair_policy_shape'
        WHEN p_configured_max_active < 1 THEN 'tenantfair_policy_configured'
        WHEN p_lease_seconds NOT BETWEEN 1 AND 86400 THEN 'tenantfair_policy_lease'
        WHEN p_max_attempts NOT BETWEEN 1 AND 32767 THEN 'tenantfair_policy_attempts'
        WHEN p_scan_budget NOT BETWEEN 32 AND 4096 THEN 'tenantfair_policy_budget'
        WHEN least(p_scan_ring_position, p_scan_laps, p_scan_fruitless) < 0 THEN 'tenantfair_policy_cursor'
    END;
BEGIN
    IF v_broken IS NULL THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'the policy violates the rule "%"', v_broken
        USING
            ERRCODE = 'check_violation',
            CONSTRAINT = v_broken,
            TABLE = 'tenantfair_policy';
END
$tenantfair_policy_shape$;
