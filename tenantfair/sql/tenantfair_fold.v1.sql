-- Moves a transaction's noted deltas into tenantfair_schedule, once, at its commit: no lock on a count is
-- held while a transaction stays open, and scopes are always taken in one order, so no two commits wait
-- for each other in a circle.
--
-- Lock order: new partitions by scope, then schedule rows by scope. Never clamps: a count below zero is
-- 23514 and the transaction fails. A claim inside the transaction calls tenantfair_fold() first, so that it
-- sees the transaction's own work; what comes later is folded again.
--
-- The constraint trigger fires for the note that opened the fold. Its first firing only queues a second
-- one, behind every deferred trigger of the host's own that is waiting already; what those write is folded
-- with the rest.

CREATE OR REPLACE FUNCTION tenantfair_fold()
    RETURNS void
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
AS $tenantfair_fold$
DECLARE
    v_scopes text[];
    v_deltas bigint[];
    v_locked integer;
BEGIN
    WITH taken AS (
        DELETE FROM tenantfair_pending
        WHERE xid = pg_current_xact_id()
        RETURNING scope_key, delta
    ),
    totals AS (
        SELECT scope_key, sum(delta)::bigint AS delta
        FROM taken
        GROUP BY scope_key
        HAVING sum(delta) <> 0
    )
    SELECT array_agg(scope_key ORDER BY scope_key), array_agg(delta ORDER BY scope_key)
    INTO v_scopes, v_deltas
    FROM totals;

    IF v_scopes IS NULL THEN
        RETURN;
    END IF;

    LOOP
        -- Before any schedule row is locked, so that nobody waits for a new partition while holding a count.
        -- Looked for first: ON CONFLICT alone would wait for whoever is updating an existing partition.
        INSERT INTO tenantfair_partition (scope_key)
        SELECT wanted.scope_key
        FROM unnest(v_scopes) AS wanted (scope_key)
        WHERE NOT EXISTS (
            SELECT FROM tenantfair_partition AS existing WHERE existing.scope_key = wanted.scope_key
        )
        ORDER BY wanted.scope_key
        ON CONFLICT DO NOTHING;

        SELECT count(*) INTO v_locked
        FROM (
            SELECT
            FROM tenantfair_schedule
            WHERE scope_key = ANY (v_scopes)
            ORDER BY scope_key
            FOR NO KEY UPDATE
        ) AS locked;
        EXIT WHEN v_locked = cardinality(v_scopes);

        -- An idle partition was deleted in between and is made anew. One that lost its ring position for good
        -- would come here for ever.
        IF EXISTS (
            SELECT
            FROM tenantfair_partition AS existing
            WHERE existing.scope_key = ANY (v_scopes)
                AND NOT EXISTS (
                    SELECT FROM tenantfair_schedule AS ring WHERE ring.scope_key = existing.scope_key
                )
        ) THEN
            RAISE EXCEPTION 'a partition has no ring position'
                USING
                    ERRCODE = 'foreign_key_violation',
                    HINT = 'Its row in tenantfair_schedule was removed with triggers disabled.';
        END IF;
    END LOOP;

    PERFORM set_config('tenantfair.folding', pg_current_xact_id()::text, true);
    UPDATE tenantfair_schedule AS schedule
    SET unfinished_count = schedule.unfinished_count + folded.delta
    FROM unnest(v_scopes, v_deltas) AS folded (scope_key, delta)
    WHERE schedule.scope_key = folded.scope_key;
    PERFORM set_config('tenantfair.folding', '', true);
END
$tenantfair_fold$;

CREATE OR REPLACE FUNCTION tenantfair_pending_fold()
    RETURNS trigger
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
AS $tenantfair_pending_fold$
BEGIN
    IF NEW.delta = 0 THEN
        PERFORM tenantfair_fold();
    ELSE
        INSERT INTO tenantfair_pending (xid, opens, scope_key, delta)
        VALUES (NEW.xid, true, NEW.scope_key, 0);
    END IF;
    RETURN NULL;
END
$tenantfair_pending_fold$;

-- CREATE OR REPLACE knows no constraint triggers; this one is created once, with its table.
CREATE CONSTRAINT TRIGGER tenantfair_pending_fold
    AFTER INSERT ON tenantfair_pending
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW
    WHEN (NEW.opens)
    EXECUTE FUNCTION tenantfair_pending_fold();
