-- Claims up to p_demand runs: the only way to admission.
--
-- Returns one `outcome` row per leased or poisoned run, one `call` row per call that reached the ring, with
-- p_trace one `inspection` row per visit, and instead of all these one `error` row when the call is refused.
--
-- Lock order: the FIFO door, the policy row (held to the end of the transaction: one claim at a time in a
-- domain), partitions, runs. Partitions and runs are only ever taken SKIP LOCKED. FOR NO KEY UPDATE, because
-- a host's own foreign keys to a run take key-share locks. Schedule rows are read, never locked.
--
-- A call works in plans. A plan looks at the ring ahead of the cursor, up to the end of the lap, in a fresh
-- snapshot, and in another one for each further stretch that it needs; picks the positions that can be granted
-- something and the quantum of each; then serves them all in a few set-based statements, whose outcomes, epochs,
-- cursor and trace are those of visits made one by one. Positions with expired or poisoned candidates are decided
-- one by one, since their order depends on what the call has served before.
--
-- Never: admits above a cap, bypasses a queue's head, retries within a visit, re-reads p_now.

CREATE OR REPLACE FUNCTION tenantfair_claim(
    p_now            timestamptz,
    p_expired_before timestamptz,
    p_demand         integer,
    p_max_attempts   integer,
    p_preference     text,
    p_trace          boolean
)
    RETURNS TABLE (
        row_kind        text,
        error_reason    text,
        -- a lease, or a poisoned run
        run_id          uuid,
        tenant_id       text,
        task_path       text,
        args            jsonb,
        kwargs          jsonb,
        state           jsonb,
        signals         jsonb,
        checkpoint_seq  bigint,
        failures        integer,
        retry_limit     integer,
        abandons        integer,
        queue_name      text,
        backend         text,
        enqueued_at     timestamptz,
        started_at      timestamptz,
        errors          jsonb,
        worker_ids      jsonb,
        claim_token     uuid,
        claimed_at      timestamptz,
        claim_attempt   integer,
        poisoned_at     timestamptz,
        poison_reason   text,
        work_class      text,
        eligible_at     timestamptz,
        -- the call, and where in its walk the row belongs
        call_token      uuid,
        transaction_id  bigint,
        demand          integer,
        visit_ordinal   integer,
        outcome_ordinal integer,
        laps_before     bigint,
        cursor_before   bigint,
        laps_after      bigint,
        cursor_after    bigint,
        ring_position   bigint,
        scope_key       text,
        disposition     text,
        outcome_count   integer,
        epoch_delta     bigint,
        inspections     integer,
        denials         jsonb
    )
    LANGUAGE plpgsql
    SET search_path FROM CURRENT
    -- Every lookup is an ordered index probe; these make another plan impossible, whatever the statistics say.
    -- So do the LATERAL lookups by key with a LIMIT 1, and the keys given twice (once as an array) to an UPDATE:
    -- joined plainly, a plan made while a table had one row would read all of it for good.
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET enable_memoize = off
    SET jit = off
AS $tenantfair_claim$
#variable_conflict use_column
DECLARE
    c_quantum   CONSTANT integer := 8;
    c_page      CONSTANT integer := 16;
    c_grants    CONSTANT integer := 32;
    c_workers   CONSTANT integer := 32;
    c_unlimited CONSTANT integer := 2147483647;
    c_places    CONSTANT integer[] :=
        '{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32}';

    -- What the probe finds at a position: 0 nothing; -1 queued work and no slot for it; from 1 to the quantum, so much
    -- queued work and nothing else. More than that is a sum: how much there is, that admitted work is among it, that
    -- expired or poisoned runs are, and that queued work is.
    c_mixed   CONSTANT integer := 16;
    c_careful CONSTANT integer := 32;
    c_queue   CONSTANT integer := 64;

    v_call_token     CONSTANT uuid := gen_random_uuid();
    v_worker         CONSTANT text := current_setting('application_name');
    v_caller_timeout CONSTANT text := current_setting('lock_timeout');
    v_patience       interval := v_caller_timeout::interval;
    v_give_up_at     timestamptz;
    v_setting        text;
    v_door           bigint;
    v_policy         record;
    v_phase          text;
    v_error          text;

    -- what is left of the call's budgets, and what it did so far
    v_demand      integer := least(p_demand, c_quantum * c_grants);
    v_visits      integer;
    v_grants      integer := c_grants;
    v_inspections integer := 0;
    v_outcomes    integer := 0;
    v_cursor      bigint;
    v_laps        bigint;
    v_from        bigint;
    v_wrapping    boolean := false;
    v_ready_served   boolean := false;
    v_expired_served boolean := false;
    v_empty     integer := 0;
    v_capped    integer := 0;
    v_skipped   integer := 0;
    v_missed    integer := 0;
    v_stale     integer := 0;
    v_denied    integer := 0;

    -- the ring ahead as the probe shows it, and of it the positions that can be granted something
    v_want      integer;
    v_chunk     integer;
    v_look      record;
    v_before    record;
    v_seen      integer;
    v_seen_to   bigint;
    v_ordinal   integer[];
    v_can       integer[];
    v_scope     text[];
    v_careful   boolean[];
    v_has_queue boolean[];
    v_plain     boolean;
    v_code      integer;
    v_queued    boolean;

    -- the plan: one element per planned visit
    v_planned     integer;
    v_walked      integer;
    v_left        integer;
    v_alone       boolean;
    v_repeat      integer;
    v_quantum     integer[];
    v_cap         integer[];
    v_admitted    integer[];
    v_whole       boolean;
    v_already     integer;
    v_granted     integer[];
    v_promoted    integer[];
    v_disposition text[];

    -- admitted counts known since earlier in this call, by scope
    v_known_scope    text[];
    v_known_admitted integer[];

    -- rows frozen, locked and kept on the way
    v_simple record;
    v_page   record;
    v_kept   record;
    v_tried  integer[];
    v_locked tid[];
    v_mine   bigint[];
    v_slots  integer;
    v_rank   integer;

    -- the outcomes of the plan
    v_out_visit    integer[];
    v_out_row      tid[];
    v_out_class    text[];
    v_out_poison   boolean[];
    v_out_eligible timestamptz[];

    v_place integer;
    v_first integer;
    v_count integer;
BEGIN
    IF p_now IS NULL OR NOT isfinite(p_now)
        OR p_expired_before IS NULL OR p_expired_before > p_now
        OR p_demand IS NULL OR p_demand <= 0
        OR p_max_attempts IS NULL OR p_max_attempts <= 0
        OR p_trace IS NULL
        OR p_preference NOT IN ('ready', 'expired')
    THEN
        RAISE EXCEPTION 'tenantfair_claim needs a finite now, a cutoff not after it, positive demand and attempts, '
            'a preference of ready, expired or null, and a trace flag'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    IF current_setting('transaction_read_only')::boolean THEN
        v_phase := 'transaction_mode';
        v_error := 'read_only_transaction';
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        v_phase := 'transaction_mode';
        v_error := 'unsupported_isolation';
    ELSE
        -- Inside somebody's transaction its own enqueues and finishes must be on the ring first.
        IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
            PERFORM tenantfair_fold();
        END IF;

        IF v_patience = interval '0' OR v_patience > interval '250 milliseconds' THEN
            v_patience := interval '250 milliseconds';
            v_setting := set_config('lock_timeout', '250ms', true);
        END IF;

        -- The door makes waiting claims queue in order; waiters on an updated row overtake each other. The waits
        -- stand in blocks of their own, because a row locked inside one would cost a multixact at every claim.
        v_door := 8386095534873608192 | 'tenantfair_policy'::regclass::oid::bigint;
        IF NOT pg_try_advisory_xact_lock(v_door) THEN
            v_give_up_at := clock_timestamp() + v_patience;
            BEGIN
                PERFORM pg_advisory_xact_lock(v_door);
            EXCEPTION
                WHEN lock_not_available THEN
                    v_phase := 'policy_cursor';
                    v_error := 'lock_contention';
            END;
        END IF;
        IF v_error IS NULL THEN
            -- From the end, where the newest version is: under somebody's old snapshot the others pile up before it.
            SELECT policy.*, policy.ctid AS row INTO v_policy FROM tenantfair_policy AS policy
            WHERE policy.id >= 1 ORDER BY policy.id DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
            IF v_policy.id IS NULL THEN
                BEGIN
                    IF v_give_up_at IS NOT NULL THEN
                        v_setting := set_config(
                            'lock_timeout',
                            greatest(1, extract(milliseconds FROM v_give_up_at - clock_timestamp())::integer) || 'ms',
                            true
                        );
                    END IF;
                    SELECT policy.*, policy.ctid AS row INTO v_policy FROM tenantfair_policy AS policy
                    WHERE policy.id >= 1 ORDER BY policy.id DESC LIMIT 1 FOR NO KEY UPDATE;
                    v_setting := set_config('lock_timeout', extract(milliseconds FROM v_patience)::integer || 'ms', true);
                EXCEPTION
                    WHEN lock_not_available THEN
                        v_phase := 'policy_cursor';
                        v_error := 'lock_contention';
                END;
            END IF;
            IF v_error IS NULL
                AND (v_policy.admission_mode = 'tenant_fair' AND v_policy.max_active IS NOT NULL) IS NOT TRUE
            THEN
                v_phase := 'policy_readiness';
                v_error := CASE
                    WHEN v_policy.id IS NULL OR v_policy.admission_mode = 'tenant_fair' THEN 'malformed_policy'
                    WHEN v_policy.initialized_at IS NULL THEN 'not_initialized'
                    ELSE 'inactive_engine'
                END;
            END IF;
        END IF;
        IF v_error IS NOT NULL THEN
            v_setting := set_config('lock_timeout', v_caller_timeout, true);
        END IF;
    END IF;

    call_token := v_call_token;
    demand := p_demand;
    IF p_trace OR v_error IS NOT NULL THEN
        outcome_count := 0;
        epoch_delta := 0;
    END IF;
    IF v_error IS NOT NULL THEN
        row_kind := 'error';
        error_reason := v_error;
        disposition := v_phase;
        transaction_id := pg_current_xact_id_if_assigned()::text::bigint;
        RETURN NEXT;
        RETURN;
    END IF;

    transaction_id := pg_current_xact_id()::text::bigint;
    v_visits := v_policy.scan_budget;
    v_cursor := v_policy.scan_ring_position;
    v_laps := v_policy.scan_laps;
    v_from := v_cursor;

    WHILE v_demand > 0 AND v_visits > 0 AND v_grants > 0 LOOP
        ------------------------------------------------------------------------------------------------
        -- Probe: look further ahead until the plan can use no more positions, the lap ends or the visits do.
        ------------------------------------------------------------------------------------------------
        v_want := least(v_demand, v_grants);
        -- As many as are wanted, and more where the last call passed some in vain: then one look may do for two.
        v_chunk := least(v_want + least(v_policy.scan_fruitless, c_grants), v_visits);
        v_seen := 0;
        v_seen_to := v_from;
        LOOP
            SELECT
                array_agg(look.ring_position) AS position,
                array_agg(look.scope_key) AS scope,
                array_agg(
                    CASE
                        WHEN look.claimed[1] < p_expired_before OR p_max_attempts <= ANY (look.ready || look.queue)
                        THEN c_careful + CASE WHEN look.queued THEN c_queue ELSE 0 END
                        WHEN 0 <= ANY (look.ready)
                        THEN c_mixed + CASE WHEN look.queued THEN c_queue ELSE 0 END + least(
                            c_quantum,
                            cardinality(look.ready) - cardinality(array_positions(look.ready, -1)) + look.promotable
                        )
                        WHEN look.promotable > 0 THEN least(c_quantum, look.promotable)
                        WHEN look.queued THEN -1
                        ELSE 0
                    END
                ) AS found
            INTO v_look
            FROM (
                SELECT
                    ring.*,
                    cardinality(ring.queue) > 0 AS queued,
                    CASE
                        WHEN ring.fits THEN cardinality(ring.queue)
                        ELSE least(
                            cardinality(ring.queue),
                            greatest(ring.cap - cardinality(ring.claimed) - coalesce(cardinality(ring.ready), 0), 0)
                        )
                    END AS promotable
                FROM (
                    SELECT
                        ahead.*,
                        -- Arrays, because starting an aggregate takes longer than reading what it would count.
                        ARRAY (
                            SELECT run.claimed_at
                            FROM tenantfair_run AS run
                            WHERE run.scope_key = ahead.scope_key
                                AND run.claim_token IS NOT NULL
                                AND run.tenant_admitted_at IS NOT NULL
                                AND run.claimed_at <= CASE WHEN ahead.fits THEN p_expired_before ELSE 'infinity' END
                            ORDER BY run.claimed_at, run.id
                            LIMIT CASE WHEN ahead.fits THEN 1 ELSE ahead.cap END
                        ) AS claimed,
                        CASE
                            -- Mostly nobody has any, and one look tells.
                            WHEN EXISTS (
                                SELECT
                                FROM tenantfair_run AS anybody
                                WHERE anybody.wake_at IS NOT NULL AND anybody.tenant_admitted_at IS NOT NULL
                                ORDER BY anybody.scope_key, anybody.wake_at, anybody.id
                                LIMIT 1
                            )
                            THEN ARRAY (
                                SELECT CASE WHEN run.wake_at <= p_now THEN run.claim_attempts ELSE -1 END
                                FROM tenantfair_run AS run
                                WHERE run.scope_key = ahead.scope_key
                                    AND run.wake_at <= CASE WHEN ahead.fits THEN p_now ELSE 'infinity' END
                                    AND run.tenant_admitted_at IS NOT NULL
                                ORDER BY run.wake_at, run.id
                                LIMIT CASE WHEN ahead.fits THEN c_page ELSE greatest(ahead.cap, c_page) END
                            )
                        END AS ready,
                        ARRAY (
                            SELECT head.claim_attempts
                            FROM (
                                -- All of an index page that fits the condition is read, so it is one that is soon checked.
                                SELECT run.wake_at, run.claim_attempts
                                FROM tenantfair_run AS run
                                WHERE run.scope_key = ahead.scope_key
                                    AND run.wake_at IS NOT NULL
                                    AND run.tenant_admitted_at IS NULL
                                ORDER BY run.wake_at, run.id
                                LIMIT least(v_demand, c_quantum)
                            ) AS head
                            WHERE head.wake_at <= p_now
                        ) AS queue
                    FROM (
                        SELECT
                            next.*,
                            -- Everything unfinished fits below the cap: nothing to count yet.
                            next.cap >= next.unfinished_count AS fits
                        FROM (
                            SELECT
                                schedule.ring_position,
                                schedule.scope_key,
                                schedule.unfinished_count,
                                CASE
                                    -- In an index of its own, in which mostly nobody is.
                                    WHEN EXISTS (
                                        SELECT
                                        FROM tenantfair_partition AS anybody
                                        WHERE anybody.max_active IS NOT NULL
                                        ORDER BY anybody.scope_key
                                        LIMIT 1
                                    )
                                    THEN coalesce(
                                        (
                                            SELECT part.max_active
                                            FROM tenantfair_partition AS part
                                            WHERE part.scope_key = schedule.scope_key AND part.max_active IS NOT NULL
                                            LIMIT 1
                                        ),
                                        v_policy.max_active
                                    )
                                    ELSE v_policy.max_active
                                END AS cap
                            FROM tenantfair_schedule AS schedule
                            WHERE schedule.in_ring
                                AND schedule.ring_position > coalesce(
                                    (
                                        SELECT v_seen_to
                                        FROM tenantfair_schedule AS next
                                        WHERE next.in_ring AND next.ring_position > v_seen_to
                                        ORDER BY next.ring_position
                                        LIMIT 1
                                    ),
                                    -- With nobody left ahead the next lap begins, unless this one has been looked at.
                                    CASE WHEN v_seen = 0 THEN 0 ELSE v_seen_to END
                                )
                            ORDER BY schedule.ring_position
                            LIMIT v_chunk - v_seen
                        ) AS next
                    ) AS ahead
                    OFFSET 0
                ) AS ring
            ) AS look;
            IF v_seen > 0 THEN
                -- Looked further: behind what was seen before.
                SELECT
                    v_before.position || v_look.position AS position,
                    v_before.scope || v_look.scope AS scope,
                    v_before.found || v_look.found AS found
                INTO v_look;
            END IF;
            EXIT WHEN v_look.position IS NULL;
            v_seen := cardinality(v_look.position);

            v_plain := c_quantum >= ALL (v_look.found);
            IF v_plain AND v_seen <= v_want AND 0 < ALL (v_look.found) THEN
                v_planned := v_seen;
                v_ordinal := c_places;
                v_can := v_look.found;
                v_scope := v_look.scope;
                v_careful := array_fill(false, ARRAY[v_planned]);
                v_has_queue := array_fill(true, ARRAY[v_planned]);
            ELSE
                v_planned := 0;
                v_ordinal := '{}';
                v_can := '{}';
                v_scope := '{}';
                v_careful := '{}';
                v_has_queue := '{}';
                FOR v_place IN 1..CASE WHEN 0 >= ALL (v_look.found) THEN 0 ELSE v_seen END LOOP
                    v_code := v_look.found[v_place];
                    CONTINUE WHEN v_code <= 0;
                    v_count := v_code % c_mixed;
                    v_queued := v_code < c_mixed OR v_code >= c_queue;
                    IF v_code & c_careful > 0 THEN
                        -- Poison frees slots, or uses none: what fits has to be counted out.
                        WITH part AS (
                            SELECT coalesce(found.max_active, v_policy.max_active) AS cap
                            FROM tenantfair_partition AS found
                            WHERE found.scope_key = v_look.scope[v_place]
                        ),
                        admitted AS (
                            SELECT
                                part.cap,
                                (
                                    SELECT count(*)
                                    FROM (
                                        SELECT
                                        FROM tenantfair_run AS run
                                        WHERE run.scope_key = v_look.scope[v_place]
                                            AND run.claim_token IS NOT NULL
                                            AND run.tenant_admitted_at IS NOT NULL
                                        LIMIT part.cap::bigint + c_page
                                    ) AS admitted_claimed
                                )
                                + (
                                    SELECT count(*)
                                    FROM (
                                        SELECT
                                        FROM tenantfair_run AS run
                                        WHERE run.scope_key = v_look.scope[v_place]
                                            AND run.wake_at IS NOT NULL
                                            AND run.tenant_admitted_at IS NOT NULL
                                        LIMIT part.cap::bigint + c_page
                                    ) AS admitted_ready
                                ) AS n
                            FROM part
                        ),
                        served AS (
                            (
                                SELECT run.claim_attempts
                                FROM tenantfair_run AS run
                                WHERE run.scope_key = v_look.scope[v_place]
                                    AND run.wake_at <= p_now
                                    AND run.tenant_admitted_at IS NOT NULL
                                ORDER BY run.wake_at, run.id
                                LIMIT c_page
                            )
                            UNION ALL
                            (
                                SELECT run.claim_attempts
                                FROM tenantfair_run AS run
                                WHERE run.scope_key = v_look.scope[v_place]
                                    AND run.claim_token IS NOT NULL
                                    AND run.claimed_at < p_expired_before
                                    AND run.tenant_admitted_at IS NOT NULL
                                ORDER BY run.claimed_at, run.id
                                LIMIT c_page
                            )
                        ),
                        queue AS (
                            SELECT
                                coalesce(
                                    sum((head.claim_attempts < p_max_attempts)::integer) OVER (
                                        ORDER BY head.wake_at, head.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                                    ),
                                    0
                                ) AS used
                            FROM (
                                SELECT run.wake_at, run.id, run.claim_attempts
                                FROM tenantfair_run AS run
                                WHERE run.scope_key = v_look.scope[v_place]
                                    AND run.wake_at <= p_now
                                    AND run.tenant_admitted_at IS NULL
                                ORDER BY run.wake_at, run.id
                                LIMIT least(c_quantum, v_demand)
                            ) AS head
                        ),
                        freed AS (
                            SELECT
                                count(*) AS n,
                                count(*) FILTER (WHERE served.claim_attempts >= p_max_attempts) AS poison
                            FROM served
                        )
                        SELECT
                            freed.n + (
                                SELECT count(*)
                                FROM queue
                                WHERE queue.used < admitted.cap - admitted.n + freed.poison
                            )
                        INTO v_count
                        FROM admitted, freed;
                    END IF;
                    IF v_count = 0 THEN
                        v_look.found[v_place] := -v_queued::integer;
                        CONTINUE;
                    END IF;
                    v_planned := v_planned + 1;
                    v_ordinal[v_planned] := v_place;
                    v_can[v_planned] := least(v_count, c_quantum);
                    v_scope[v_planned] := v_look.scope[v_place];
                    v_careful[v_planned] := v_code & c_careful > 0;
                    v_has_queue[v_planned] := v_queued;
                    EXIT WHEN v_planned = v_want;
                END LOOP;
            END IF;

            EXIT WHEN v_planned = v_want OR v_seen < v_chunk OR v_chunk = v_visits;
            v_chunk := least(v_chunk * 32, v_visits);
            IF v_from = 0 OR v_look.position[1] <= v_from THEN
                -- From the start again: of a lap that one snapshot shows whole, the next laps are known too.
                v_seen := 0;
            ELSE
                v_seen_to := v_look.position[v_seen];
                v_before := v_look;
            END IF;
        END LOOP;

        EXIT WHEN v_look.position IS NULL;
        IF v_look.position[1] <= v_from THEN
            v_wrapping := true;
            v_from := 0;
        END IF;
        IF v_wrapping THEN
            v_laps := v_laps + 1;
            v_wrapping := false;
        END IF;

        ------------------------------------------------------------------------------------------------
        -- Nothing admissible ahead: the walk runs on through the lap, touching neither partitions nor runs.
        ------------------------------------------------------------------------------------------------
        IF v_planned = 0 THEN
            -- A whole lap seen at once and nothing in it: every further lap of this call is the same.
            v_walked := CASE WHEN v_from = 0 AND v_seen < v_chunk THEN v_visits ELSE v_seen END;
            IF p_trace THEN
                FOR v_visit IN 1..v_walked LOOP
                    v_place := (v_visit - 1) % v_seen + 1;
                    row_kind := 'inspection';
                    visit_ordinal := v_inspections + v_visit;
                    cursor_before := v_cursor;
                    cursor_after := v_look.position[v_place];
                    ring_position := v_look.position[v_place];
                    scope_key := v_look.scope[v_place];
                    disposition := CASE WHEN v_look.found[v_place] < 0 THEN 'cap_debt_denial' ELSE 'empty_page' END;
                    v_cursor := cursor_after;
                    RETURN NEXT;
                END LOOP;
            END IF;
            v_place := (v_walked - 1) % v_seen + 1;
            v_count := cardinality(array_positions(v_look.found, -1)) * ((v_walked - 1) / v_seen)
                + cardinality(array_positions(v_look.found[:v_place], -1));
            v_capped := v_capped + v_count;
            v_empty := v_empty + v_walked - v_count;
            v_laps := v_laps + (v_walked - 1) / v_seen;
            v_cursor := v_look.position[v_place];
            v_from := v_cursor;
            v_inspections := v_inspections + v_walked;
            v_visits := v_visits - v_walked;
            IF v_seen < v_chunk THEN
                v_wrapping := true;
                v_from := 0;
            END IF;
            CONTINUE;
        END IF;

        ------------------------------------------------------------------------------------------------
        -- Plan: the first admissible positions, each with its share of what is still wanted.
        ------------------------------------------------------------------------------------------------
        v_left := v_demand;
        IF v_planned = v_demand THEN
            v_quantum := array_fill(1, ARRAY[v_planned]);
            v_left := 0;
        ELSE
            v_quantum := '{}';
            FOR v_visit IN 1..v_planned LOOP
                v_quantum[v_visit] := least(v_can[v_visit], (v_left + v_planned - v_visit) / (v_planned - v_visit + 1));
                v_left := v_left - v_quantum[v_visit];
                EXIT WHEN v_left = 0;
            END LOOP;
            IF v_planned > cardinality(v_quantum) THEN
                v_planned := cardinality(v_quantum);
                v_scope := v_scope[:v_planned];
                v_careful := v_careful[:v_planned];
                v_has_queue := v_has_queue[:v_planned];
            END IF;
        END IF;
        v_walked := v_ordinal[v_planned];

        -- In a ring of one, seen whole, the next laps go to the same position: they are served with the first one,
        -- as long as nothing is missed. What is missed ends that, and the first lap is made by itself. Only of queued work:
        -- among admitted runs poison comes first in each lap's page, and the probe has seen one page.
        v_alone := v_plain AND v_left > 0 AND v_from = 0 AND v_seen = 1 AND v_chunk > 1 AND v_can[1] = c_quantum;
        IF v_alone THEN
            v_quantum[1] := least(v_demand, c_quantum * least(v_grants, v_visits));
        END IF;
        v_repeat := 1;

        ------------------------------------------------------------------------------------------------
        -- Heads: where the probe saw queued work alone and enough of it, or work of one scope, lock all partitions and
        -- the heads of all queues; then, in a fresh snapshot, see that they are the heads still and fit below the caps. All of it
        -- stands, or what was locked is all that the visits, made the long way below, have to choose from.
        ------------------------------------------------------------------------------------------------
        v_whole := false;
        v_tried := NULL;
        IF v_plain AND v_known_scope IS NULL AND (v_left = 0 OR v_planned = 1) THEN
            SELECT
                coalesce(array_agg(visit.ordinal::integer), '{}'),
                array_agg(run.row),
                array_agg(run.wake_at)
            INTO v_tried, v_locked, v_out_eligible
            FROM unnest(v_scope, v_quantum) WITH ORDINALITY AS visit (scope_key, quantum, ordinal)
            CROSS JOIN LATERAL (
                SELECT
                FROM tenantfair_partition AS part
                WHERE part.scope_key = visit.scope_key
                LIMIT 1
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS part
            LEFT JOIN LATERAL (
                SELECT run.id, run.wake_at
                FROM tenantfair_run AS run
                WHERE run.scope_key = visit.scope_key
                    AND run.wake_at IS NOT NULL
                    AND run.tenant_admitted_at IS NULL
                ORDER BY run.wake_at, run.id
                LIMIT visit.quantum
            ) AS head ON head.wake_at <= p_now
            LEFT JOIN LATERAL (
                SELECT found.ctid AS row, found.wake_at
                FROM tenantfair_run AS found
                WHERE found.id = head.id
                LIMIT 1
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS run ON true;

            IF v_alone OR cardinality(v_locked) = v_demand - v_left THEN
                SELECT
                    -- No row is (0,0): a head that does not fit makes the two differ.
                    array_agg(
                        CASE
                            WHEN head.claim_attempts < p_max_attempts AND (
                                admitted.n IS NULL
                                OR part.cap - admitted.n >= CASE WHEN v_alone THEN cardinality(v_locked) ELSE visit.quantum END
                            ) THEN head.ctid
                            ELSE '(0,0)'
                        END
                    ) = v_locked,
                    max(admitted.n)
                INTO v_whole, v_already
                FROM unnest(v_scope, v_quantum) AS visit (scope_key, quantum)
                CROSS JOIN LATERAL (
                    SELECT coalesce(found.max_active, v_policy.max_active) AS cap
                    FROM tenantfair_partition AS found
                    WHERE found.scope_key = visit.scope_key
                    LIMIT 1
                ) AS part
                CROSS JOIN LATERAL (
                    SELECT
                        CASE
                            WHEN part.cap < c_unlimited THEN
                                cardinality(
                                    ARRAY (
                                        SELECT true
                                        FROM tenantfair_run AS run
                                        WHERE run.scope_key = visit.scope_key
                                            AND run.claim_token IS NOT NULL
                                            AND run.tenant_admitted_at IS NOT NULL
                                        LIMIT part.cap
                                    )
                                )
                                + cardinality(
                                    ARRAY (
                                        SELECT true
                                        FROM tenantfair_run AS run
                                        WHERE run.scope_key = visit.scope_key
                                            AND run.wake_at IS NOT NULL
                                            AND run.tenant_admitted_at IS NOT NULL
                                        LIMIT part.cap
                                    )
                                )
                        END AS n
                    -- Evaluated once, not once for each head.
                    OFFSET 0
                ) AS admitted
                CROSS JOIN LATERAL (
                    SELECT run.ctid, run.wake_at, run.claim_attempts
                    FROM tenantfair_run AS run
                    WHERE run.scope_key = visit.scope_key
                        AND run.wake_at IS NOT NULL
                        AND run.tenant_admitted_at IS NULL
                    ORDER BY run.wake_at, run.id
                    LIMIT visit.quantum
                ) AS head
                WHERE head.wake_at <= p_now;
            END IF;
        END IF;

        IF v_whole THEN
            v_count := cardinality(v_locked);
            v_out_visit := v_tried;
            v_out_row := v_locked;
            v_out_class := array_fill('queued_ready'::text, ARRAY[v_count]);
            v_out_poison := array_fill(false, ARRAY[v_count]);
            v_granted := v_quantum;
            v_ready_served := true;
            IF v_alone THEN
                v_granted[1] := v_count;
                v_repeat := (v_count + c_quantum - 1) / c_quantum;
            END IF;
            IF v_planned = 1 AND v_already IS NOT NULL THEN
                v_known_scope := v_scope;
                v_known_admitted := ARRAY[v_already + v_count];
            END IF;
            v_grants := v_grants - v_planned * v_repeat;
        ELSE
            ------------------------------------------------------------------------------------------------
            -- Partitions: locked in a statement of their own, so that the counts that follow see what is committed.
            ------------------------------------------------------------------------------------------------
            SELECT array_agg(CASE WHEN locked.found THEN coalesce(locked.max_active, v_policy.max_active) END)
            INTO v_cap
            FROM unnest(v_scope) WITH ORDINALITY AS visit (scope_key, ordinal)
            LEFT JOIN LATERAL (
                SELECT true AS found, part.max_active
                FROM tenantfair_partition AS part
                WHERE part.scope_key = visit.scope_key
                    AND (v_tried IS NULL OR visit.ordinal = ANY (v_tried))
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS locked ON true;
            v_admitted := NULL;
            IF v_known_scope IS NOT NULL THEN
                FOR v_visit IN 1..v_planned LOOP
                    v_admitted[v_visit] := v_known_admitted[array_position(v_known_scope, v_scope[v_visit])];
                END LOOP;
            END IF;

            LOOP
                ------------------------------------------------------------------------------------------------
                -- Simple visits, all at once: count, freeze a page of candidates, lock as many of it as the quantum asks.
                ------------------------------------------------------------------------------------------------
                SELECT
                    array_agg(visit.ordinal::integer) AS visit,
                    array_agg(admitted.n) AS admitted,
                    array_agg(locked.id) AS id,
                    array_agg(locked.queued) AS queued
                INTO v_simple
                FROM unnest(v_scope, v_careful, v_has_queue, v_quantum, v_cap, v_admitted)
                    WITH ORDINALITY AS visit (scope_key, careful, has_queue, quantum, cap, admitted, ordinal)
                CROSS JOIN LATERAL (
                    SELECT
                        CASE
                            WHEN visit.admitted IS NOT NULL THEN visit.admitted
                            WHEN visit.cap = c_unlimited OR NOT visit.has_queue THEN NULL
                            ELSE
                                (
                                    SELECT count(*)
                                    FROM (
                                        SELECT
                                        FROM tenantfair_run AS run
                                        WHERE run.scope_key = visit.scope_key
                                            AND run.claim_token IS NOT NULL
                                            AND run.tenant_admitted_at IS NOT NULL
                                        LIMIT visit.cap
                                    ) AS admitted_claimed
                                )
                                + (
                                    SELECT count(*)
                                    FROM (
                                        SELECT
                                        FROM tenantfair_run AS run
                                        WHERE run.scope_key = visit.scope_key
                                            AND run.wake_at IS NOT NULL
                                            AND run.tenant_admitted_at IS NOT NULL
                                        LIMIT visit.cap
                                    ) AS admitted_ready
                                )
                        END::integer AS n
                    OFFSET 0
                ) AS admitted
                LEFT JOIN LATERAL (
                    SELECT run.id, page.queued
                    FROM (
                        SELECT candidate.id, candidate.wake_at, candidate.queued
                        FROM (
                            (
                                SELECT run.id, run.wake_at, false AS queued
                                FROM tenantfair_run AS run
                                WHERE run.scope_key = visit.scope_key
                                    AND run.wake_at <= p_now
                                    AND run.tenant_admitted_at IS NOT NULL
                                ORDER BY run.wake_at, run.id
                                LIMIT CASE WHEN v_tried IS NULL THEN greatest(c_page, visit.quantum) ELSE 0 END
                            )
                            UNION ALL
                            (
                                SELECT run.id, run.wake_at, true
                                FROM tenantfair_run AS run
                                WHERE run.scope_key = visit.scope_key
                                    AND run.wake_at <= p_now
                                    AND run.tenant_admitted_at IS NULL
                                ORDER BY run.wake_at, run.id
                                -- A FIFO prefix can use no more than this, so no more is frozen.
                                LIMIT CASE
                                    WHEN visit.has_queue AND v_tried IS NULL
                                    THEN least(visit.quantum, greatest(visit.cap - coalesce(admitted.n, 0), 0))
                                    ELSE 0
                                END
                            )
                            UNION ALL
                            (
                                SELECT run.id, run.wake_at, true
                                FROM unnest(v_tried, v_locked) WITH ORDINALITY AS tried (visit, row, place)
                                CROSS JOIN LATERAL (
                                    SELECT found.id, found.wake_at
                                    FROM tenantfair_run AS found
                                    WHERE found.ctid = tried.row
                                    LIMIT 1
                                ) AS run
                                WHERE tried.visit = visit.ordinal
                                ORDER BY tried.place
                                LIMIT least(visit.quantum, greatest(visit.cap - coalesce(admitted.n, 0), 0))
                            )
                        ) AS candidate
                        ORDER BY candidate.queued, candidate.wake_at, candidate.id
                        LIMIT greatest(c_page, visit.quantum)
                    ) AS page
                    CROSS JOIN LATERAL (
                        SELECT found.id
                        FROM tenantfair_run AS found
                        WHERE found.id = page.id
                        LIMIT 1
                        FOR NO KEY UPDATE SKIP LOCKED
                    ) AS run
                    LIMIT visit.quantum
                ) AS locked ON true
                WHERE visit.cap IS NOT NULL AND NOT visit.careful;

                ------------------------------------------------------------------------------------------------
                -- Recheck in a fresh snapshot: admitted rows one by one, the queue as an unbroken run of locked heads.
                ------------------------------------------------------------------------------------------------
                v_granted := array_fill(0, ARRAY[v_planned]);
                v_promoted := v_granted;
                v_out_visit := '{}';
                v_out_row := '{}';
                v_out_class := '{}';
                v_out_poison := '{}';
                v_out_eligible := '{}';

                SELECT
                    array_agg(kept.visit) AS visit,
                    array_agg(kept.id) AS id,
                    array_agg(kept.row) AS row,
                    array_agg(kept.queued) AS queued,
                    array_agg(kept.wake_at) AS eligible,
                    array_agg(kept.fit) AS fit
                INTO v_kept
                FROM (
                    SELECT frozen.visit, run.id, run.ctid AS row, false AS queued, run.wake_at, true AS fit
                    FROM unnest(v_simple.visit, v_simple.id, v_simple.queued) AS frozen (visit, id, queued)
                    CROSS JOIN LATERAL (SELECT *, ctid FROM tenantfair_run AS found WHERE found.id = frozen.id LIMIT 1) AS run
                    WHERE NOT frozen.queued
                        AND run.scope_key = v_scope[frozen.visit]
                        AND run.wake_at <= p_now
                        AND run.tenant_admitted_at IS NOT NULL
                        AND run.claim_attempts < p_max_attempts
                    UNION ALL
                    SELECT
                        queue.visit,
                        head.id,
                        head.ctid,
                        true,
                        head.wake_at,
                        head.claim_attempts < p_max_attempts AND head.id = ANY (v_simple.id)
                    FROM (
                        SELECT frozen.visit, count(*) AS n
                        FROM unnest(v_simple.visit, v_simple.queued) AS frozen (visit, queued)
                        WHERE frozen.queued
                        GROUP BY frozen.visit
                    ) AS queue
                    CROSS JOIN LATERAL (
                        SELECT run.id, run.ctid, run.wake_at, run.claim_attempts
                        FROM tenantfair_run AS run
                        WHERE run.scope_key = v_scope[queue.visit]
                            AND run.wake_at <= p_now
                            AND run.tenant_admitted_at IS NULL
                        ORDER BY run.wake_at, run.id
                        LIMIT queue.n
                    ) AS head
                    ORDER BY 1, 4, 5, 2
                ) AS kept;

                v_first := 0;
                FOR v_place IN 1..coalesce(cardinality(v_kept.id), 0) LOOP
                    -- Null is no: the locked ids hold a null for every visit that locked nothing.
                    IF v_kept.fit[v_place] IS NOT TRUE THEN
                        -- The rest of this visit's queue stands behind a head that is not ours.
                        v_first := v_kept.visit[v_place];
                    END IF;
                    CONTINUE WHEN v_kept.visit[v_place] = v_first;
                    v_count := v_kept.visit[v_place];
                    v_granted[v_count] := v_granted[v_count] + 1;
                    v_promoted[v_count] := v_promoted[v_count] + v_kept.queued[v_place]::integer;
                    v_out_visit := v_out_visit || v_count;
                    v_out_row := v_out_row || v_kept.row[v_place];
                    v_out_class := v_out_class || CASE WHEN v_kept.queued[v_place] THEN 'queued_ready' ELSE 'admitted_ready' END;
                    v_out_poison := v_out_poison || false;
                    v_out_eligible := v_out_eligible || v_kept.eligible[v_place];
                END LOOP;

                EXIT WHEN NOT v_alone OR v_granted[1] = v_quantum[1];
                v_alone := false;
                v_quantum[1] := c_quantum;
            END LOOP;
            IF v_alone THEN
                v_repeat := (v_granted[1] + c_quantum - 1) / c_quantum;
            END IF;

            v_disposition := array_fill(NULL::text, ARRAY[v_planned]);
            FOR v_visit IN 1..v_planned LOOP
                IF v_cap[v_visit] IS NULL THEN
                    v_disposition[v_visit] := 'partition_lock_skip';
                    v_skipped := v_skipped + 1;
                    CONTINUE;
                END IF;

                IF NOT v_careful[v_visit] THEN
                    v_first := array_position(v_simple.visit, v_visit);
                    v_slots := v_cap[v_visit] - v_simple.admitted[v_first] - v_promoted[v_visit];
                    IF v_granted[v_visit] > 0 THEN
                        v_disposition[v_visit] := 'grant';
                        v_ready_served := true;
                    ELSIF v_simple.id[v_first] IS NOT NULL THEN
                        -- Still due and still ours to lock: then an older or a locked head stands before it.
                        v_disposition[v_visit] := CASE
                            WHEN EXISTS (
                                SELECT
                                FROM unnest(v_simple.visit, v_simple.id, v_simple.queued) AS frozen (visit, id, queued)
                                CROSS JOIN LATERAL (
                                    SELECT * FROM tenantfair_run AS found WHERE found.id = frozen.id LIMIT 1
                                ) AS run
                                WHERE frozen.visit = v_visit
                                    AND frozen.queued
                                    AND run.wake_at <= p_now
                                    AND run.tenant_admitted_at IS NULL
                                    AND run.claim_attempts < p_max_attempts
                            ) THEN 'denied'
                            ELSE 'stale'
                        END;
                    ELSIF EXISTS (
                        SELECT
                        FROM tenantfair_run AS run
                        WHERE run.scope_key = v_scope[v_visit]
                            AND run.wake_at <= p_now
                            AND run.tenant_admitted_at IS NOT NULL
                    ) THEN
                        v_disposition[v_visit] := 'lock_miss';
                    ELSIF EXISTS (
                        SELECT
                        FROM tenantfair_run AS run
                        WHERE run.scope_key = v_scope[v_visit]
                            AND run.wake_at <= p_now
                            AND run.tenant_admitted_at IS NULL
                    ) THEN
                        v_disposition[v_visit] := CASE WHEN v_slots <= 0 THEN 'cap_debt_denial' ELSE 'lock_miss' END;
                    ELSE
                        v_disposition[v_visit] := 'empty_page';
                    END IF;
                ELSE
                    --------------------------------------------------------------------------------------------
                    -- A careful visit: both classes and poison, in the order the call's history asks for.
                    --------------------------------------------------------------------------------------------
                    -- Counted a page beyond the cap: poison may free a slot, but never one that debt still holds. What an
                    -- earlier visit counted up to its cap may be less than the truth, so it is counted again.
                    v_slots := v_cap[v_visit] - coalesce(
                        CASE WHEN v_admitted[v_visit] < v_cap[v_visit] THEN v_admitted[v_visit] END,
                        (
                            SELECT count(*)
                            FROM (
                                SELECT
                                FROM tenantfair_run AS run
                                WHERE run.scope_key = v_scope[v_visit]
                                    AND run.wake_at IS NOT NULL
                                    AND run.tenant_admitted_at IS NOT NULL
                                LIMIT v_cap[v_visit]::bigint + c_page
                            ) AS admitted_ready
                        )
                        + (
                            SELECT count(*)
                            FROM (
                                SELECT
                                FROM tenantfair_run AS run
                                WHERE run.scope_key = v_scope[v_visit]
                                    AND run.claim_token IS NOT NULL
                                    AND run.tenant_admitted_at IS NOT NULL
                                LIMIT v_cap[v_visit]::bigint + c_page
                            ) AS admitted_claimed
                        )
                    );

                    WITH ready AS (
                        SELECT run.id, run.wake_at, run.claim_attempts
                        FROM tenantfair_run AS run
                        WHERE run.scope_key = v_scope[v_visit]
                            AND run.wake_at <= p_now
                            AND run.tenant_admitted_at IS NOT NULL
                        ORDER BY run.wake_at, run.id
                        LIMIT c_page
                    ),
                    queued AS (
                        SELECT run.id, run.wake_at, run.claim_attempts
                        FROM tenantfair_run AS run
                        WHERE run.scope_key = v_scope[v_visit]
                            AND run.wake_at <= p_now
                            AND run.tenant_admitted_at IS NULL
                        ORDER BY run.wake_at, run.id
                        LIMIT c_page - (SELECT count(*) FROM ready)
                    ),
                    expired AS (
                        SELECT run.id, run.claimed_at, run.claim_attempts
                        FROM tenantfair_run AS run
                        WHERE run.scope_key = v_scope[v_visit]
                            AND run.claim_token IS NOT NULL
                            AND run.claimed_at < p_expired_before
                            AND run.tenant_admitted_at IS NOT NULL
                        ORDER BY run.claimed_at, run.id
                        LIMIT c_page
                    ),
                    candidate AS (
                        SELECT
                            ready.id,
                            'admitted_ready' AS class,
                            ready.claim_attempts >= p_max_attempts AS poison,
                            ready.wake_at AS eligible,
                            0::bigint AS queue_place,
                            row_number() OVER (ORDER BY ready.wake_at, ready.id) = 1 AS head
                        FROM ready
                        UNION ALL
                        SELECT
                            queued.id,
                            'queued_ready',
                            queued.claim_attempts >= p_max_attempts,
                            queued.wake_at,
                            row_number() OVER queue,
                            row_number() OVER queue = 1 AND NOT EXISTS (SELECT FROM ready)
                        FROM queued
                        WINDOW queue AS (ORDER BY queued.wake_at, queued.id)
                        UNION ALL
                        SELECT
                            expired.id,
                            'expired',
                            expired.claim_attempts >= p_max_attempts,
                            expired.claimed_at,
                            0,
                            row_number() OVER (ORDER BY expired.claimed_at, expired.id) = 1
                        FROM expired
                    ),
                    ranked AS (
                        SELECT
                            candidate.*,
                            row_number() OVER (
                                ORDER BY
                                    -- the head of a class this call has not served, when it can be served at all
                                    p_demand > 1
                                        AND candidate.head
                                        AND NOT CASE
                                            WHEN candidate.class = 'expired' THEN v_expired_served
                                            ELSE v_ready_served
                                        END
                                        AND (
                                            candidate.class <> 'queued_ready'
                                            OR v_slots + coalesce(
                                                (
                                                    SELECT (other.poison AND NOT v_expired_served)::integer
                                                    FROM candidate AS other
                                                    WHERE other.head AND other.class = 'expired'
                                                ),
                                                0
                                            ) > 0
                                        ) DESC,
                                    candidate.class <> 'queued_ready' DESC,
                                    p_demand = 1 AND (candidate.class = 'expired') = (p_preference = 'expired') DESC NULLS LAST,
                                    candidate.queue_place,
                                    candidate.poison DESC,
                                    candidate.eligible,
                                    candidate.id
                            ) AS place
                        FROM candidate
                    )
                    SELECT
                        array_agg(ranked.id ORDER BY ranked.place) AS id,
                        array_agg(ranked.class ORDER BY ranked.place) AS class,
                        array_agg(ranked.poison ORDER BY ranked.place) AS poison
                    INTO v_page
                    FROM ranked
                    WHERE ranked.place <= c_page;

                    SELECT array_agg(locked.id)
                    INTO v_mine
                    FROM (
                        SELECT run.id
                        FROM unnest(v_page.id) AS frozen (id)
                        CROSS JOIN LATERAL (
                            SELECT found.id
                            FROM tenantfair_run AS found
                            WHERE found.id = frozen.id
                            LIMIT 1
                            FOR NO KEY UPDATE SKIP LOCKED
                        ) AS run
                    ) AS locked;

                    WITH queue AS MATERIALIZED (
                        SELECT array_agg(head.id ORDER BY head.wake_at, head.id) AS ids
                        FROM (
                            SELECT run.id, run.wake_at
                            FROM tenantfair_run AS run
                            WHERE run.scope_key = v_scope[v_visit]
                                AND run.wake_at <= p_now
                                AND run.tenant_admitted_at IS NULL
                            ORDER BY run.wake_at, run.id
                            LIMIT c_page
                        ) AS head
                    )
                    SELECT
                        coalesce(array_agg(frozen.id ORDER BY frozen.place), '{}') AS id,
                        array_agg(run.ctid ORDER BY frozen.place) AS row,
                        array_agg(frozen.class ORDER BY frozen.place) AS class,
                        array_agg(frozen.poison ORDER BY frozen.place) AS poison,
                        array_agg(coalesce(run.wake_at, run.claimed_at) ORDER BY frozen.place) AS eligible,
                        array_agg(
                            CASE
                                WHEN frozen.class = 'queued_ready'
                                THEN (SELECT array_position(queue.ids, frozen.id) FROM queue)
                            END
                            ORDER BY frozen.place
                        ) AS rank
                    INTO v_kept
                    FROM unnest(v_page.id, v_page.class, v_page.poison)
                        WITH ORDINALITY AS frozen (id, class, poison, place)
                    CROSS JOIN LATERAL (
                        SELECT *, ctid FROM tenantfair_run AS found WHERE found.id = frozen.id LIMIT 1
                    ) AS run
                    WHERE frozen.id = ANY (v_mine)
                        AND run.scope_key = v_scope[v_visit]
                        AND (run.claim_attempts >= p_max_attempts) = frozen.poison
                        AND CASE frozen.class
                            WHEN 'expired' THEN
                                run.claim_token IS NOT NULL
                                AND run.tenant_admitted_at IS NOT NULL
                                AND run.claimed_at < p_expired_before
                            ELSE
                                run.wake_at <= p_now
                                AND (run.tenant_admitted_at IS NULL) = (frozen.class = 'queued_ready')
                        END;

                    v_rank := 1;
                    v_count := cardinality(v_kept.id);
                    FOR v_step IN 1..2 * v_count LOOP
                        EXIT WHEN v_granted[v_visit] = v_quantum[v_visit];
                        v_place := (v_step - 1) % v_count + 1;
                        -- The queue once more: a head that found no slot may have one behind admitted poison.
                        CONTINUE WHEN v_step > v_count AND v_kept.class[v_place] <> 'queued_ready';
                        IF v_kept.class[v_place] = 'queued_ready' THEN
                            CONTINUE WHEN v_slots <= 0 OR v_kept.rank[v_place] IS DISTINCT FROM v_rank;
                            v_rank := v_rank + 1;
                            v_slots := v_slots - (NOT v_kept.poison[v_place])::integer;
                        ELSE
                            v_slots := v_slots + v_kept.poison[v_place]::integer;
                        END IF;
                        v_granted[v_visit] := v_granted[v_visit] + 1;
                        v_out_visit := v_out_visit || v_visit;
                        v_out_row := v_out_row || v_kept.row[v_place];
                        v_out_class := v_out_class || v_kept.class[v_place];
                        v_out_poison := v_out_poison || v_kept.poison[v_place];
                        v_out_eligible := v_out_eligible || v_kept.eligible[v_place];
                        IF v_kept.class[v_place] = 'expired' THEN
                            v_expired_served := true;
                        ELSE
                            v_ready_served := true;
                        END IF;
                    END LOOP;

                    v_disposition[v_visit] := CASE
                        WHEN v_granted[v_visit] > 0 THEN 'grant'
                        WHEN v_page.id IS NULL THEN 'empty_page'
                        WHEN v_mine IS NULL THEN 'lock_miss'
                        WHEN cardinality(v_kept.id) = 0 THEN 'stale'
                        WHEN v_slots <= 0 AND 'queued_ready' = ANY (v_page.class) THEN 'cap_debt_denial'
                        ELSE 'denied'
                    END;
                END IF;

                IF v_slots IS NOT NULL THEN
                    v_place := array_position(v_known_scope, v_scope[v_visit]);
                    IF v_place IS NULL THEN
                        v_known_scope := v_known_scope || v_scope[v_visit];
                        v_known_admitted := v_known_admitted || (v_cap[v_visit] - v_slots);
                    ELSE
                        v_known_admitted[v_place] := v_cap[v_visit] - v_slots;
                    END IF;
                END IF;

                CASE v_disposition[v_visit]
                    WHEN 'grant' THEN v_grants := v_grants - v_repeat;
                    WHEN 'empty_page' THEN v_empty := v_empty + 1;
                    WHEN 'cap_debt_denial' THEN v_capped := v_capped + 1;
                    WHEN 'lock_miss' THEN v_missed := v_missed + 1;
                    WHEN 'stale' THEN v_stale := v_stale + 1;
                    ELSE v_denied := v_denied + 1;
                END CASE;
            END LOOP;
        END IF;

        ------------------------------------------------------------------------------------------------
        -- Write: one statement for all outcomes of the plan, and one step of every granting scope's epoch.
        ------------------------------------------------------------------------------------------------
        IF cardinality(v_out_row) > 0 THEN
            RETURN QUERY
            WITH served AS (
                UPDATE tenantfair_partition AS part
                SET
                    admission_epoch = part.admission_epoch + v_repeat,
                    updated_at = p_now
                FROM unnest(v_scope, v_granted) AS visit (scope_key, granted)
                WHERE part.scope_key = visit.scope_key
                    AND part.scope_key = ANY (v_scope)
                    AND visit.granted > 0
            )
            UPDATE tenantfair_run AS run
            SET
                -- No change: named here, the generated scope_key is compiled once; else it is parsed again for each row.
                tenant_id = run.tenant_id,
                wake_at = NULL,
                claim_token = CASE WHEN NOT outcome.poison THEN gen_random_uuid() END,
                claimed_at = CASE WHEN NOT outcome.poison THEN p_now END,
                claimed_by = CASE WHEN NOT outcome.poison THEN v_worker END,
                tenant_admitted_at = CASE WHEN NOT outcome.poison THEN coalesce(run.tenant_admitted_at, p_now) END,
                claim_attempts = run.claim_attempts + (NOT outcome.poison)::integer,
                poisoned_at = CASE WHEN outcome.poison THEN p_now END,
                poison_reason = CASE WHEN outcome.poison THEN 'max_claim_attempts_exceeded' END,
                started_at = CASE WHEN outcome.poison THEN run.started_at ELSE coalesce(run.started_at, p_now) END,
                last_attempted_at = CASE WHEN outcome.poison THEN run.last_attempted_at ELSE p_now END,
                worker_ids = CASE
                    WHEN outcome.poison THEN run.worker_ids
                    -- Written past the package: one such row must not fail the whole call.
                    WHEN jsonb_typeof(run.worker_ids) <> 'array'
                    THEN jsonb_build_array(v_worker)
                    WHEN jsonb_array_length(run.worker_ids) < c_workers
                    THEN run.worker_ids || to_jsonb(v_worker)
                    ELSE run.worker_ids - 0 || to_jsonb(v_worker)
                END
            FROM unnest(v_out_visit, v_out_row, v_out_class, v_out_poison, v_out_eligible) WITH ORDINALITY
                AS listed (visit, row, class, poison, eligible, place)
            CROSS JOIN LATERAL (
                SELECT listed.*, (listed.place - array_position(v_out_visit, listed.visit) + 1)::integer AS ordinal
            ) AS outcome
            WHERE run.ctid = outcome.row
            RETURNING
                'outcome',
                NULL::text,
                run.run_id,
                run.tenant_id,
                run.task_path,
                run.args,
                run.kwargs,
                run.state,
                run.pending_signals,
                run.checkpoint_seq,
                run.failures,
                run.retry_limit::integer,
                run.claim_abandons,
                run.queue_name,
                run.backend,
                run.enqueued_at,
                run.started_at,
                run.errors,
                run.worker_ids,
                run.claim_token,
                run.claimed_at,
                run.claim_attempts,
                run.poisoned_at,
                run.poison_reason,
                outcome.class,
                outcome.eligible,
                v_call_token,
                transaction_id,
                p_demand,
                v_inspections + v_ordinal[outcome.visit] + (outcome.ordinal - 1) / c_quantum,
                (outcome.ordinal - 1) % c_quantum + 1,
                NULL::bigint,
                CASE
                    WHEN v_ordinal[outcome.visit] > 1 THEN v_look.position[v_ordinal[outcome.visit] - 1]
                    WHEN outcome.ordinal <= c_quantum THEN v_cursor
                    ELSE v_look.position[1]
                END,
                NULL::bigint,
                v_look.position[v_ordinal[outcome.visit]],
                v_look.position[v_ordinal[outcome.visit]],
                run.scope_key,
                CASE outcome.class
                    WHEN 'expired' THEN 'expired_recovery'
                    WHEN 'queued_ready' THEN 'queued_promotion'
                    ELSE 'admitted_reacquisition'
                END,
                NULL::integer,
                1::bigint,
                NULL::integer,
                NULL::jsonb;
        END IF;

        IF p_trace THEN
            v_rank := 1;
            FOR v_visit IN 1..v_walked + v_repeat - 1 LOOP
                v_place := least(v_visit, v_seen);
                row_kind := 'inspection';
                visit_ordinal := v_inspections + v_visit;
                cursor_before := CASE WHEN v_visit = 1 THEN v_cursor ELSE cursor_after END;
                cursor_after := v_look.position[v_place];
                ring_position := v_look.position[v_place];
                scope_key := v_look.scope[v_place];
                IF v_ordinal[v_rank] = v_place THEN
                    disposition := CASE WHEN v_whole THEN 'grant' ELSE v_disposition[v_rank] END;
                    outcome_count := v_granted[v_rank];
                    IF v_repeat > 1 THEN
                        outcome_count := least(c_quantum, outcome_count - c_quantum * (v_visit - 1));
                    END IF;
                    v_rank := least(v_rank + 1, v_planned);
                ELSE
                    disposition := CASE WHEN v_look.found[v_place] < 0 THEN 'cap_debt_denial' ELSE 'empty_page' END;
                    outcome_count := 0;
                END IF;
                epoch_delta := (outcome_count > 0)::integer;
                RETURN NEXT;
            END LOOP;
            outcome_count := 0;
            epoch_delta := 0;
        END IF;

        IF v_walked > v_planned THEN
            -- Between the planned positions lie those that nothing can be granted to.
            v_count := cardinality(array_positions(v_look.found[:v_walked], -1));
            v_capped := v_capped + v_count;
            v_empty := v_empty + v_walked - v_planned - v_count;
        END IF;
        v_outcomes := v_outcomes + cardinality(v_out_row);
        v_demand := v_demand - cardinality(v_out_row);
        v_inspections := v_inspections + v_walked + v_repeat - 1;
        v_visits := v_visits - (v_walked + v_repeat - 1);
        v_laps := v_laps + v_repeat - 1;
        v_cursor := v_look.position[v_walked];
        v_from := v_cursor;
        IF v_walked = v_seen AND v_seen < v_chunk THEN
            v_wrapping := true;
            v_from := 0;
        END IF;
    END LOOP;

    IF v_inspections > 0 THEN
        UPDATE tenantfair_policy AS policy
        SET
            scan_ring_position = v_cursor,
            scan_laps = v_laps,
            scan_fruitless = v_inspections - c_grants + v_grants,
            updated_at = p_now
        WHERE policy.ctid = v_policy.row;
    END IF;
    v_setting := set_config('lock_timeout', v_caller_timeout, true);

    row_kind := 'call';
    IF p_trace THEN
        visit_ordinal := NULL;
        ring_position := NULL;
        scope_key := NULL;
        disposition := NULL;
        epoch_delta := NULL;
    END IF;
    outcome_count := v_outcomes;
    inspections := v_inspections;
    laps_before := v_policy.scan_laps;
    cursor_before := v_policy.scan_ring_position;
    laps_after := v_laps;
    cursor_after := v_cursor;
    denials := jsonb_build_object(
        'partition_lock_skip', v_skipped,
        'empty_page', v_empty,
        'lock_miss', v_missed,
        'stale', v_stale,
        'cap_debt_denial', v_capped,
        'denied', v_denied
    );
    RETURN NEXT;
END
$tenantfair_claim$;
