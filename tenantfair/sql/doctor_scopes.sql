-- Scopes whose partition, ring position or count is not what their runs make necessary, by kind: how many, and
-- the first few. Counts every unfinished run. A count that is too low comes first where it is 0, because the
-- scope is off the ring then.
WITH unfinished AS (
    SELECT
        scope_key,
        count(*) AS number
    FROM tenantfair_run
    WHERE finished_at IS NULL
    GROUP BY scope_key
),
places AS (
    SELECT
        schedule.*,
        count(*) OVER (PARTITION BY schedule.ring_position) AS sharing
    FROM tenantfair_schedule AS schedule
),
scopes AS (
    SELECT
        coalesce(unfinished.scope_key, part.scope_key, places.scope_key) AS scope_key,
        quote_literal(coalesce(unfinished.scope_key, part.scope_key, places.scope_key)) AS label,
        coalesce(unfinished.number, 0) AS unfinished,
        part.scope_key IS NOT NULL AS has_partition,
        part.max_active,
        part.partition_version,
        part.admission_epoch,
        part.created_at,
        part.updated_at,
        places.scope_key IS NOT NULL AS has_place,
        places.ring_position,
        places.unfinished_count,
        places.sharing
    FROM unfinished
    FULL JOIN tenantfair_partition AS part
        ON part.scope_key = unfinished.scope_key
    FULL JOIN places
        ON places.scope_key = coalesce(unfinished.scope_key, part.scope_key)
),
broken AS (
    SELECT
        rule.kind,
        rule.rank,
        scopes.scope_key,
        rule.example
    FROM scopes
    CROSS JOIN LATERAL (
        VALUES
            (
                'count_too_low',
                (scopes.unfinished_count > 0)::integer,
                scopes.unfinished_count < scopes.unfinished,
                scopes.label || ' counts ' || scopes.unfinished_count || ' of ' || scopes.unfinished
                || ' unfinished runs'
                || CASE WHEN scopes.unfinished_count = 0 THEN ' and has left the ring' ELSE '' END
            ),
            (
                'count_too_high',
                0,
                scopes.unfinished_count > scopes.unfinished,
                scopes.label || ' counts ' || scopes.unfinished_count || ' and has ' || scopes.unfinished
                || ' unfinished runs'
            ),
            (
                'partition_missing',
                0,
                NOT scopes.has_partition,
                scopes.label || ' has ' || scopes.unfinished || ' unfinished runs'
            ),
            (
                'ring_position_missing',
                0,
                NOT scopes.has_place,
                scopes.label || ' has ' || scopes.unfinished || ' unfinished runs'
            ),
            (
                'ring_position_wrong',
                0,
                scopes.ring_position <= 0 OR scopes.sharing > 1,
                scopes.label || ' is at position ' || scopes.ring_position
            ),
            (
                'scope_malformed',
                0,
                NOT tenantfair_tenant_is_well_formed(nullif(scopes.scope_key, '')),
                scopes.label
            ),
            (
                'partition_shape',
                0,
                scopes.max_active < 1 OR least(scopes.partition_version, scopes.admission_epoch) < 0,
                scopes.label || ' has cap ' || coalesce(scopes.max_active::text, 'null')
                || ', version ' || scopes.partition_version
                || ', epoch ' || scopes.admission_epoch
            ),
            (
                'unreadable_time',
                0,
                least(scopes.created_at, scopes.updated_at) < '0001-01-01 00:00:00+00'
                OR greatest(scopes.created_at, scopes.updated_at) > '9999-12-31 23:59:59.999999+00',
                'partition ' || scopes.label
            )
    ) AS rule (kind, rank, is_broken, example)
    WHERE rule.is_broken
),
numbered AS (
    SELECT
        broken.*,
        row_number() OVER (PARTITION BY broken.kind ORDER BY broken.rank, broken.scope_key) AS place
    FROM broken
)
SELECT
    kind,
    count(*) AS number,
    array_agg(example ORDER BY place) FILTER (WHERE place <= %(most)s::integer) AS examples
FROM numbered
GROUP BY kind
