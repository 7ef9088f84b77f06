-- What an open transaction has done to the unfinished counts and nobody else can see yet: one row per
-- scope and statement, read and removed by the same transaction's fold. Unlogged, since no row outlives
-- the transaction that wrote it; a crash empties the table together with those transactions.
--
-- A transaction's first note opens its fold. That the fold is open is remembered in the transaction-local setting
-- tenantfair.fold_opened_N, which a rollback to a savepoint takes back together with the note; a setting lost
-- otherwise opens a second fold that finds nothing. It is set before the note is there, because an immediate
-- constraint folds it on the spot. N is the object id of the run table: one transaction may write in several
-- domains, and each has a fold of its own.

CREATE UNLOGGED TABLE tenantfair_pending (
    xid       xid8 NOT NULL DEFAULT pg_current_xact_id(),
    opens     boolean NOT NULL DEFAULT CASE
        WHEN current_setting('tenantfair.fold_opened_' || 'tenantfair_run'::regclass::oid::text, true) = pg_current_xact_id()::text
        THEN false
        ELSE set_config('tenantfair.fold_opened_' || 'tenantfair_run'::regclass::oid::text, pg_current_xact_id()::text, true)
            IS NOT NULL
    END,
    scope_key text COLLATE "C" NOT NULL,
    delta     bigint NOT NULL,
    -- Whether what follows it of the same scope is added up beside it (tenantfair_run_updated).
    gathers   boolean NOT NULL DEFAULT false
)
WITH (
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 2147483647,
    vacuum_truncate = off
);

CREATE INDEX tenantfair_pending_xid ON tenantfair_pending (xid);

COMMENT ON TABLE tenantfair_pending IS 'deltas of open transactions, folded into tenantfair_schedule at commit';
