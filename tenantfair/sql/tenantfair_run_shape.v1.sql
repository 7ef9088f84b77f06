-- True for a run whose columns fit together; otherwise a check_violation that names the rule they break.
--
-- The one CHECK of tenantfair_run calls it. PostgreSQL parses the text of every CHECK again at each statement that
-- writes a row: nine of them were a tenth of a claim's time, and of a heartbeat's and a finish's (decision 0014).

CREATE OR REPLACE FUNCTION tenantfair_run_shape(
    p_tenant_id       text,
    p_status          text,
    p_wake_at         timestamptz,
    p_claim_token     uuid,
    p_claimed_at      timestamptz,
    p_admitted_at     timestamptz,
    p_poisoned_at     timestamptz,
    p_poison_reason   text,
    p_finished_at     timestamptz,
    p_claim_attempts  integer,
    p_claim_abandons  integer,
    p_failures        integer,
    p_checkpoint_seq  bigint,
    p_retry_limit     smallint
)
    RETURNS boolean
    LANGUAGE plpgsql
    IMMUTABLE
    PARALLEL SAFE
    SET search_path FROM CURRENT
AS $tenantfair_run_shape$
DECLARE
    v_broken CONSTANT text := CASE
        -- The full rule is checked once per inserted statement and scope (tenantfair_run_unfinished).
        WHEN p_tenant_id = '' THEN 'tenantfair_run_tenant'
        -- Names every status there is, so it also refuses any other.
        WHEN CASE
            WHEN p_status IN ('running', 'waiting') THEN p_finished_at IS NOT NULL
            WHEN p_status IN ('completed', 'failed', 'cancelled') THEN p_finished_at IS NULL
            ELSE true
        END THEN 'tenantfair_run_status'
        WHEN (p_claim_token IS NULL) <> (p_claimed_at IS NULL) THEN 'tenantfair_run_claim_pair'
        WHEN (p_poisoned_at IS NULL) <> (p_poison_reason IS NULL) THEN 'tenantfair_run_poison_pair'
        WHEN p_status <> 'running' AND num_nonnulls(p_wake_at, p_claim_token, p_admitted_at, p_poisoned_at) > 0
        THEN 'tenantfair_run_idle_shape'
        WHEN p_poisoned_at IS NOT NULL AND num_nonnulls(p_wake_at, p_claim_token, p_admitted_at) > 0
        THEN 'tenantfair_run_poisoned_shape'
        -- A healthy running row is due at a time or claimed, never both, never neither.
        WHEN p_status = 'running' AND p_poisoned_at IS NULL AND num_nonnulls(p_wake_at, p_claim_token) <> 1
        THEN 'tenantfair_run_running_shape'
        -- What psycopg cannot load must not be stored (decision 0003).
        WHEN p_wake_at NOT BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
        THEN 'tenantfair_run_wake_range'
        WHEN least(p_claim_attempts, p_claim_abandons, p_failures, p_checkpoint_seq, p_retry_limit) < 0
        THEN 'tenantfair_run_counters'
    END;
BEGIN
    IF v_broken IS NULL THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'the run violates the rule "%"', v_broken
        USING
            ERRCODE = 'check_violation',
            CONSTRAINT = v_broken,
            TABLE = 'tenantfair_run';
END
$tenantfair_run_shape$;
