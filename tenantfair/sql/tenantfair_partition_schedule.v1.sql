-- A new partition gets its place on the ring: one schedule row, count 0, the next position. Its key is checked here,
-- since it never changes and a CHECK would be evaluated at every grant.
-- Runs as the owner, so that a role that may only enqueue needs no rights on the ring; and for no other table, since
-- anybody can create a trigger on a table of their own.

CREATE OR REPLACE FUNCTION tenantfair_partition_schedule()
    RETURNS trigger
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
AS $tenantfair_partition_schedule$
BEGIN
    IF TG_RELID <> 'tenantfair_partition'::regclass::oid THEN
        RAISE EXCEPTION '% fires for tenantfair_partition alone', TG_NAME
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF NEW.scope_key <> '' AND NOT tenantfair_tenant_is_well_formed(NEW.scope_key) THEN
        RAISE EXCEPTION 'a scope key is in form NFC, has 1..255 bytes, no control characters, no white space at its ends'
            USING
                ERRCODE = 'check_violation',
                CONSTRAINT = 'tenantfair_partition_scope',
                TABLE = 'tenantfair_partition',
                COLUMN = 'scope_key';
    END IF;
    INSERT INTO tenantfair_schedule (scope_key) VALUES (NEW.scope_key);
    RETURN NULL;
END
$tenantfair_partition_schedule$;

CREATE OR REPLACE TRIGGER tenantfair_partition_schedule
    AFTER INSERT ON tenantfair_partition
    FOR EACH ROW
    EXECUTE FUNCTION tenantfair_partition_schedule();
