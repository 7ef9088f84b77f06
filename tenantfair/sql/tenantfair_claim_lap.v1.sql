-- Goes on around the ring where a claim was granted nothing: claims again, each time in a transaction of its own,
-- until a claim is granted something or is refused, the ring turns out to be empty, the cursor has come to
-- (p_laps, p_cursor), c_calls are made, or p_time is over, of which half of a statement_timeout is enough. One
-- exchange with the server instead of one for each (decision 0017).
--
-- p_preference is the first claim's; it alternates from claim to claim. Null, as for any demand but one, stays null.
--
-- Appends to p_rows what the claims returned, row by row and in order, as JSON documents in which what is JSON
-- itself is text: every claim ends with its `call` or `error` row. No commit is waited for; whoever is granted
-- something waits for the disk before a run starts.
--
-- A procedure that commits can have no settings of its own, so names are found by the caller's search_path, as
-- those of the package's statements are; the claim function itself is bound to its schema.

CREATE OR REPLACE PROCEDURE tenantfair_claim_lap(
    p_now        timestamptz,
    p_demand     integer,
    p_preference text,
    p_laps       bigint,
    p_cursor     bigint,
    p_time       interval,
    INOUT p_rows text[]
)
    LANGUAGE plpgsql
AS $tenantfair_claim_lap$
DECLARE
    c_calls CONSTANT integer := 32;

    v_end        timestamptz;
    v_timeout    interval := current_setting('statement_timeout');
    v_preference text := p_preference;
    v_claimed    record;
    v_setting    text;
    v_goes_on    boolean;
BEGIN
    v_end := statement_timestamp() + least(p_time, nullif(v_timeout, interval '0') / 2);
    FOR v_call IN 1..c_calls LOOP
        v_setting := set_config('synchronous_commit', 'off', true);
        FOR v_claimed IN
            SELECT claimed.*
            FROM (SELECT coalesce(p_now, clock_timestamp()) AS now) AS at
            LEFT JOIN LATERAL (
                SELECT found.lease_seconds, found.max_attempts
                FROM tenantfair_policy AS found
                -- From the end, where the newest version of the row is.
                WHERE found.id >= 1
                ORDER BY found.id DESC
                LIMIT 1
            ) AS policy ON true
            CROSS JOIN LATERAL tenantfair_claim(
                at.now,
                at.now - make_interval(secs => coalesce(policy.lease_seconds, 60)),
                p_demand,
                coalesce(policy.max_attempts, 5),
                v_preference,
                false
            ) AS claimed
        LOOP
            p_rows := p_rows || (CASE
                WHEN v_claimed.row_kind = 'outcome' THEN
                    to_jsonb(v_claimed) || jsonb_build_object(
                        'args', v_claimed.args::text,
                        'kwargs', v_claimed.kwargs::text,
                        'state', v_claimed.state::text,
                        'signals', v_claimed.signals::text,
                        'errors', v_claimed.errors::text,
                        'worker_ids', v_claimed.worker_ids::text
                    )
                -- Many of them, so only what is read.
                ELSE jsonb_build_object(
                    'row_kind', v_claimed.row_kind,
                    'error_reason', v_claimed.error_reason,
                    'disposition', v_claimed.disposition,
                    'inspections', v_claimed.inspections,
                    'outcome_count', v_claimed.outcome_count,
                    'denials', v_claimed.denials::text,
                    'laps_before', v_claimed.laps_before,
                    'cursor_before', v_claimed.cursor_before,
                    'laps_after', v_claimed.laps_after,
                    'cursor_after', v_claimed.cursor_after
                )
            END)::text;
            v_goes_on := v_claimed.row_kind = 'call'
                AND v_claimed.outcome_count = 0
                AND v_claimed.inspections > 0
                AND (v_claimed.laps_after, v_claimed.cursor_after) < (p_laps, p_cursor);
        END LOOP;
        EXIT WHEN NOT v_goes_on OR v_call = c_calls OR clock_timestamp() >= v_end;
        COMMIT;
        v_preference := CASE v_preference WHEN 'ready' THEN 'expired' WHEN 'expired' THEN 'ready' END;
    END LOOP;
END
$tenantfair_claim_lap$;
