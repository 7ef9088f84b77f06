-- What the schema that the search path leads to has of tenantfair: one row per object. `fault` is null, or
-- what keeps the object from doing its work. Objects of the host in the same schema come along unasked.
--
-- quote_all_identifiers changes what quote_ident and format_type print, and what an install or a restore stores as
-- a function's path. So a path is right in every spelling that leads to the same place, and names are spelled here.
WITH home AS (
    SELECT
        namespace.oid,
        ARRAY(
            SELECT 'search_path=' || schema.spelling || ', ' || temporary.spelling
            FROM (
                VALUES
                    ('"' || replace(namespace.nspname, '"', '""') || '"'),
                    (CASE WHEN namespace.nspname ~ '^[a-z_][a-z0-9_]*$' THEN namespace.nspname END)
            ) AS schema (spelling)
            CROSS JOIN (VALUES ('pg_temp'), ('"pg_temp"')) AS temporary (spelling)
            WHERE schema.spelling IS NOT NULL
        ) AS pinned_paths
    FROM pg_class AS run
    JOIN pg_namespace AS namespace
        ON namespace.oid = run.relnamespace
    WHERE run.oid = to_regclass('tenantfair_run')
),
ours AS (
    SELECT
        relation.oid,
        relation.relname
    FROM pg_class AS relation
    JOIN home
        ON home.oid = relation.relnamespace
    WHERE relation.relkind = 'r'
        AND starts_with(relation.relname, 'tenantfair_')
)
SELECT
    'column' AS kind,
    ours.relname || '.' || attribute.attname AS name,
    '' AS detail,
    NULL AS fault
FROM pg_attribute AS attribute
JOIN ours
    ON ours.oid = attribute.attrelid
WHERE attribute.attnum > 0
    AND NOT attribute.attisdropped
UNION ALL
SELECT
    'constraint',
    found.conname,
    '',
    CASE
        WHEN NOT found.convalidated THEN 'not validated'
        -- A restore with --disable-triggers that was broken off leaves even those of a foreign key off.
        WHEN EXISTS (SELECT FROM pg_trigger AS own WHERE own.tgconstraint = found.oid AND own.tgenabled NOT IN ('O', 'A'))
        THEN 'disabled'
    END
FROM pg_constraint AS found
JOIN ours
    ON ours.oid = found.conrelid
WHERE found.contype IN ('c', 'f')
UNION ALL
SELECT
    'index',
    relation.relname,
    '',
    CASE WHEN NOT found.indisvalid THEN 'not valid' END
FROM pg_index AS found
JOIN ours
    ON ours.oid = found.indrelid
JOIN pg_class AS relation
    ON relation.oid = found.indexrelid
UNION ALL
SELECT
    'trigger',
    ours.relname || '.' || found.tgname,
    CASE WHEN found.tginitdeferred THEN 'deferred' ELSE '' END,
    CASE WHEN found.tgenabled NOT IN ('O', 'A') THEN 'disabled' END
FROM pg_trigger AS found
JOIN ours
    ON ours.oid = found.tgrelid
WHERE NOT found.tgisinternal
UNION ALL
SELECT
    'function',
    found.proname,
    (
        SELECT
            coalesce(
                string_agg(
                    CASE
                        WHEN type.typnamespace = 'pg_catalog'::regnamespace
                            THEN replace(format_type(type.oid, NULL), '"', '')
                        ELSE namespace.nspname || '.' || type.typname
                    END,
                    ', '
                    ORDER BY argument.place
                ),
                ''
            )
        FROM unnest(found.proargtypes::oid[]) WITH ORDINALITY AS argument (type, place)
        JOIN pg_type AS type
            ON type.oid = argument.type
        JOIN pg_namespace AS namespace
            ON namespace.oid = type.typnamespace
    ),
    CASE
        WHEN found.proname = 'tenantfair_claim_lap' THEN
            CASE
                WHEN found.prokind <> 'p' THEN 'not a procedure'
                WHEN found.proconfig IS NOT NULL OR found.prosecdef THEN 'bound, so it cannot commit'
            END
        WHEN found.prokind <> 'f' THEN 'not a plain function'
        WHEN found.prosecdef <> (found.proname IN (
            'tenantfair_fold',
            'tenantfair_partition_schedule',
            'tenantfair_pending_fold',
            'tenantfair_run_deleted',
            'tenantfair_run_inserted',
            'tenantfair_run_updated',
            'tenantfair_truncate_guard'
        ))
        THEN CASE WHEN found.prosecdef THEN 'run with the rights of its owner' ELSE 'not run with the rights of its owner' END
        WHEN found.proname IN ('tenantfair_claim', 'tenantfair_fold')
            AND NOT coalesce(
                found.proconfig
                    @> '{plan_cache_mode=force_generic_plan,enable_seqscan=off,enable_bitmapscan=off}'::text[],
                false
            )
            THEN 'without the settings of its plans'
        -- An immutable function looks nothing up, and unbound it can be inlined.
        WHEN found.provolatile <> 'i' AND NOT coalesce(found.proconfig && home.pinned_paths, false)
            THEN 'not bound to its schema'
    END
FROM pg_proc AS found
JOIN home
    ON home.oid = found.pronamespace
WHERE starts_with(found.proname, 'tenantfair_')
