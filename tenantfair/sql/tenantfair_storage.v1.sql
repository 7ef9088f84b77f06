-- What Django's models cannot say about the tables.

-- The counts below and the triggers, which come later, must see the same runs.
LOCK TABLE tenantfair_run, tenantfair_partition, tenantfair_schedule IN SHARE ROW EXCLUSIVE MODE;

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
-- Of a row beyond 2 kB, payloads leave the row until 768 bytes are left, not 2 kB: what is in the row is written
-- again by each claim, heartbeat and outcome.
ALTER TABLE tenantfair_run
    SET (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.01, toast_tuple_target = 768);
-- Each claim and outcome adds an entry beside the run's others, for a row version that moved: without room there, a full
-- page is searched for dead ones again and again.
ALTER INDEX tenantfair_run_pkey SET (fillfactor = 50);
ALTER INDEX tenantfair_run_run_id_key SET (fillfactor = 50);

-- There are rows already when the install was reversed and comes forward again: positions go on after the
-- last one, and what changed without the triggers is counted anew.
SELECT setval(
    pg_get_serial_sequence('tenantfair_schedule', 'ring_position'),
    greatest((SELECT max(ring_position) FROM tenantfair_schedule), 1),
    EXISTS (SELECT FROM tenantfair_schedule)
);

INSERT INTO tenantfair_partition (scope_key)
SELECT DISTINCT run.scope_key
FROM tenantfair_run AS run
WHERE run.finished_at IS NULL
ON CONFLICT DO NOTHING;

INSERT INTO tenantfair_schedule (scope_key)
SELECT part.scope_key
FROM tenantfair_partition AS part
WHERE NOT EXISTS (SELECT FROM tenantfair_schedule AS ring WHERE ring.scope_key = part.scope_key)
ORDER BY part.scope_key;

UPDATE tenantfair_schedule AS ring
SET unfinished_count = (
    SELECT count(*)
    FROM tenantfair_run AS run
    WHERE run.scope_key = ring.scope_key AND run.finished_at IS NULL
);

INSERT INTO tenantfair_policy (id) VALUES (1) ON CONFLICT DO NOTHING;
