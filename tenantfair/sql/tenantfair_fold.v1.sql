-- Moves a transaction's noted deltas into tenantfair_schedule, once, at its commit: no lock on a count is
-- held while a transaction stays open, and scopes are always taken in one order, so no two commits wait
-- for each other in a circle.
--
-- Runs as the owner. What has parameters of any type is called by its schema, and operands are of one type: who may
-- create in this schema could otherwise give either a form that fits better, and have it run as the owner, too.
--
-- Lock order: new partitions by scope, then schedule rows by scope, one at a time. Never clamps: a count below zero is
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
    c_fold_opened CONSTANT text := 'tenantfair.fold_opened_' || 'tenantfair_run'::regclass::oid::text;
    c_noted_scope CONSTANT text := 'tenantfair.noted_scope_' || 'tenantfair_run'::regclass::oid::text;
    c_delta_since CONSTANT text := 'tenantfair.delta_since_' || 'tenantfair_run'::regclass::oid::text;
    c_folding     CONSTANT text := 'tenantfair.folding_' || 'tenantfair_run'::regclass::oid::text;
    v_scopes text[];
    v_deltas bigint[];
    v_marker text;
BEGIN
    -- What updates have added up and not noted yet (tenantfair_run_updated). They start afresh after this fold, so
    -- that the next one notes its row and opens another. Anybody can write a setting, so it counts only beside the
    -- note that the adding up began with: to make that takes the right to update runs.
    IF current_setting(c_delta_since, true) <> '' THEN
        INSERT INTO tenantfair_pending (xid, opens, scope_key, delta)
        SELECT note.xid, false, note.scope_key, current_setting(c_delta_since)::bigint
        FROM tenantfair_pending AS note
        WHERE note.xid = pg_current_xact_id()
            AND note.gathers
            AND ':' || note.scope_key = current_setting(c_noted_scope, true)
        LIMIT 1;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the setting % is not for hands', c_delta_since
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        v_marker := set_config(c_delta_since, '', true);
    END IF;
    v_marker := set_config(c_noted_scope, '', true);
    v_marker := set_config(c_fold_opened, '', true);

    WITH taken AS (
        DELETE FROM tenantfair_pending
        WHERE xid = pg_current_xact_id()
        RETURNING scope_key, delta
    ),
    totals AS (
        SELECT scope_key, sum(delta)::bigint AS delta
        FROM taken
        GROUP BY scope_key
        HAVING sum(delta)::bigint <> 0
    )
    SELECT pg_catalog.array_agg(scope_key ORDER BY scope_key), pg_catalog.array_agg(delta ORDER BY scope_key)
    INTO v_scopes, v_deltas
    FROM totals;

    IF v_scopes IS NULL THEN
        RETURN;
    END IF;

    -- Before any count is locked, so that nobody waits for a new partition while holding one; with a single
    -- scope there is none to hold. The subquery, unlike a join, is looked up by key whatever the plan assumes
    -- about the size of the ring. Looked for first, because ON CONFLICT alone would wait for whoever updates it.
    IF pg_catalog.cardinality(v_scopes) > 1 THEN
        INSERT INTO tenantfair_partition (scope_key)
        SELECT wanted.scope_key
        FROM pg_catalog.unnest(v_scopes) AS wanted (scope_key)
        WHERE (
            SELECT TRUE FROM tenantfair_partition AS existing WHERE existing.scope_key = wanted.scope_key
        ) IS NULL
        ORDER BY wanted.scope_key
        ON CONFLICT DO NOTHING;
    END IF;

    v_marker := set_config(c_folding, pg_current_xact_id()::text, true);
    FOR i IN 1..pg_catalog.cardinality(v_scopes) LOOP
        UPDATE tenantfair_schedule
        SET unfinished_count = unfinished_count + v_deltas[i]
        WHERE scope_key = v_scopes[i];
        CONTINUE WHEN FOUND;

        -- New, or deleted by somebody while this commit waited for it.
        INSERT INTO tenantfair_partition (scope_key)
        VALUES (v_scopes[i])
        ON CONFLICT DO NOTHING;
        UPDATE tenantfair_schedule
        SET unfinished_count = unfinished_count + v_deltas[i]
        WHERE scope_key = v_scopes[i];
        IF NOT FOUND THEN
            RAISE EXCEPTION 'partition % has no ring position', quote_literal(v_scopes[i])
                USING ERRCODE = 'foreign_key_violation';
        END IF;
    END LOOP;
    v_marker := set_config(c_folding, '', true);
END
$tenantfair_fold$;

CREATE OR REPLACE FUNCTION tenantfair_pending_fold()
    RETURNS trigger
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path FROM CURRENT
AS $tenantfair_pending_fold$
BEGIN
    IF TG_RELID <> 'tenantfair_pending'::regclass::oid THEN
        RAISE EXCEPTION '% fires for tenantfair_pending alone', TG_NAME
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF NEW.delta = 0 THEN
        PERFORM tenantfair_fold();
    ELSE
        INSERT INTO tenantfair_pending (xid, opens, scope_key, delta)
        VALUES (NEW.xid, true, NEW.scope_key, 0);
    END IF;
    RETURN NULL;
END
$tenantfair_pending_fold$;
