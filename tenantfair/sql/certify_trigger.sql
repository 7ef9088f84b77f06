-- Has one table tell the journal what changes, until the given time and statement count. Each table in a
-- transaction of its own: CREATE TRIGGER keeps writers out to the end of the transaction, so it must never
-- wait for one table while it holds another. The definitions are made from a setting, as DDL takes no parameters.
DO $certify_trigger$
DECLARE
    v_table  CONSTANT text := current_setting('tenantfair.certify_table');
    v_until  CONSTANT text := pg_catalog.format(
        'clock_timestamp() < %L::timestamptz',
        current_setting('tenantfair.certify_until')
    );
    v_most   CONSTANT text := quote_literal(current_setting('tenantfair.certify_most'));
BEGIN
    EXECUTE CASE v_table
        WHEN 'tenantfair_run' THEN pg_catalog.format(
            '
            CREATE TRIGGER tenantfair_certify_inserted
                AFTER INSERT ON tenantfair_run
                REFERENCING NEW TABLE AS new_runs
                FOR EACH STATEMENT
                WHEN (%1$s)
                EXECUTE FUNCTION tenantfair_certify_inserted(%2$s);
            CREATE TRIGGER tenantfair_certify_updated
                AFTER UPDATE ON tenantfair_run
                REFERENCING OLD TABLE AS old_runs NEW TABLE AS new_runs
                FOR EACH STATEMENT
                WHEN (%1$s)
                EXECUTE FUNCTION tenantfair_certify_updated(%2$s);
            CREATE TRIGGER tenantfair_certify_deleted
                AFTER DELETE ON tenantfair_run
                REFERENCING OLD TABLE AS old_runs
                FOR EACH STATEMENT
                WHEN (%1$s)
                EXECUTE FUNCTION tenantfair_certify_deleted(%2$s);
            ',
            v_until,
            v_most
        )
        WHEN 'tenantfair_schedule' THEN pg_catalog.format(
            '
            CREATE TRIGGER tenantfair_certify_ring
                AFTER UPDATE ON tenantfair_schedule
                FOR EACH ROW
                WHEN ((OLD.unfinished_count > 0) <> (NEW.unfinished_count > 0) AND %1$s)
                EXECUTE FUNCTION tenantfair_certify_ring();
            ',
            v_until
        )
        WHEN 'tenantfair_partition' THEN pg_catalog.format(
            '
            CREATE TRIGGER tenantfair_certify_epochs
                AFTER UPDATE ON tenantfair_partition
                REFERENCING OLD TABLE AS old_partitions NEW TABLE AS new_partitions
                FOR EACH STATEMENT
                WHEN (%1$s)
                EXECUTE FUNCTION tenantfair_certify_epochs(%2$s);
            CREATE TRIGGER tenantfair_certify_cap
                AFTER UPDATE ON tenantfair_partition
                FOR EACH ROW
                WHEN (OLD.max_active IS DISTINCT FROM NEW.max_active AND %1$s)
                EXECUTE FUNCTION tenantfair_certify_cap();
            CREATE TRIGGER tenantfair_certify_cap_given
                AFTER INSERT ON tenantfair_partition
                FOR EACH ROW
                WHEN (NEW.max_active IS NOT NULL AND %1$s)
                EXECUTE FUNCTION tenantfair_certify_cap();
            ',
            v_until,
            v_most
        )
        WHEN 'tenantfair_policy' THEN pg_catalog.format(
            '
            CREATE TRIGGER tenantfair_certify_policy
                AFTER UPDATE ON tenantfair_policy
                FOR EACH ROW
                WHEN (%1$s)
                EXECUTE FUNCTION tenantfair_certify_policy();
            ',
            v_until
        )
    END;
END
$certify_trigger$
