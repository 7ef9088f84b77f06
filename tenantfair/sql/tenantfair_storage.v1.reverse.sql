ALTER INDEX tenantfair_run_run_id_key RESET (fillfactor);
ALTER INDEX tenantfair_run_pkey RESET (fillfactor);
ALTER TABLE tenantfair_run RESET (autovacuum_vacuum_threshold, autovacuum_vacuum_scale_factor, toast_tuple_target);
ALTER TABLE tenantfair_schedule RESET (fillfactor, autovacuum_vacuum_scale_factor);
ALTER TABLE tenantfair_partition RESET (fillfactor, autovacuum_vacuum_scale_factor);
ALTER TABLE tenantfair_policy RESET (fillfactor, autovacuum_vacuum_threshold, autovacuum_vacuum_scale_factor);
ALTER TABLE tenantfair_schedule DROP CONSTRAINT tenantfair_schedule_partition;
ALTER TABLE tenantfair_schedule ALTER COLUMN ring_position DROP IDENTITY;
