-- A new partition gets its place on the ring: one schedule row, count 0, the next position.
-- Runs as the owner, so that a role that may only enqueue needs no rights on the ring.

CREATE OR REPLACE FUNCTION tenantfair_partition_schedule()
    RETURNS trigger
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
AS $tenantfair_partition_schedule$
BEGIN
    INSERT INTO tenantfair_schedule (scope_key) VALUES (NEW.scope_key);
    RETURN NULL;
END
$tenantfair_partition_schedule$;

CREATE OR REPLACE TRIGGER tenantfair_partition_schedule
    AFTER INSERT ON tenantfair_partition
    FOR EACH ROW
    EXECUTE FUNCTION tenantfair_partition_schedule();
