-- What Django's models cannot say about the tables.

-- Positions are handed out by the database alone, in order, for life.
ALTER TABLE tenantfair_schedule
    ALTER COLUMN ring_position ADD GENERATED ALWAYS AS IDENTITY;

ALTER TABLE tenantfair_schedule
    ADD CONSTRAINT tenantfair_schedule_partition
    FOREIGN KEY (scope_key) REFERENCES tenantfair_partition (scope_key) ON DELETE CASCADE;

-- Rows that are rewritten at every claim or commit: room for HOT updates, and an eager vacuum.
ALTER TABLE tenantfair_policy SET (fillfactor = 10, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
ALTER TABLE tenantfair_partition SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE tenantfair_schedule SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
-- Claimed rows leave dead entries at the head of their queue; each later claim steps over them until vacuum.
ALTER TABLE tenantfair_run SET (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.01);

INSERT INTO tenantfair_policy (id) VALUES (1);
