-- What nobody may do to the ring, raw SQL included. Scope and position are for life; the count moves only
-- by the fold, which alone sets the transaction-local marker tenantfair.folding_N. Trigger depth would not do
-- as a guard: a write from anybody's trigger has depth too.

CREATE OR REPLACE FUNCTION tenantfair_schedule_guard()
    RETURNS trigger
    LANGUAGE plpgsql
    SET search_path FROM CURRENT
AS $tenantfair_schedule_guard$
BEGIN
    IF TG_OP = 'INSERT' THEN
        RAISE EXCEPTION 'a new ring position starts with a count of 0'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;

    IF TG_OP = 'UPDATE' THEN
        IF NEW.scope_key IS DISTINCT FROM OLD.scope_key OR NEW.ring_position IS DISTINCT FROM OLD.ring_position THEN
            RAISE EXCEPTION 'scope and ring position never change'
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        RAISE EXCEPTION 'unfinished_count moves only with the runs it counts'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;

    IF OLD.unfinished_count > 0 THEN
        RAISE EXCEPTION 'the partition has % unfinished runs', OLD.unfinished_count
            USING ERRCODE = 'foreign_key_violation';
    END IF;
    IF EXISTS (SELECT FROM tenantfair_partition WHERE scope_key = OLD.scope_key) THEN
        RAISE EXCEPTION 'a ring position goes only with its partition'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN OLD;
END
$tenantfair_schedule_guard$;

CREATE OR REPLACE TRIGGER tenantfair_schedule_guard_insert
    BEFORE INSERT ON tenantfair_schedule
    FOR EACH ROW
    WHEN (NEW.unfinished_count <> 0)
    EXECUTE FUNCTION tenantfair_schedule_guard();

CREATE OR REPLACE TRIGGER tenantfair_schedule_guard_update
    BEFORE UPDATE ON tenantfair_schedule
    FOR EACH ROW
    WHEN (
        NEW.scope_key IS DISTINCT FROM OLD.scope_key
        OR NEW.ring_position IS DISTINCT FROM OLD.ring_position
        OR (
            NEW.unfinished_count IS DISTINCT FROM OLD.unfinished_count
            AND current_setting('tenantfair.folding_' || 'tenantfair_run'::regclass::oid::text, true)
                IS DISTINCT FROM pg_current_xact_id()::text
        )
    )
    EXECUTE FUNCTION tenantfair_schedule_guard();

CREATE OR REPLACE TRIGGER tenantfair_schedule_guard_delete
    BEFORE DELETE ON tenantfair_schedule
    FOR EACH ROW
    EXECUTE FUNCTION tenantfair_schedule_guard();
