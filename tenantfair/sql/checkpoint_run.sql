-- Saves a running task's state under its claim and returns the new checkpoint number; no row, no fence.
-- Progress clears what counts towards poison. Claim and marker are kept, the lease is extended.

UPDATE tenantfair_run
SET
    state = %(state)s::jsonb,
    checkpoint_seq = checkpoint_seq + 1,
    claim_attempts = 0,
    claim_abandons = 0,
    claimed_at = greatest(claimed_at, clock_timestamp()),
    updated_at = clock_timestamp()
WHERE run_id = %(run_id)s::uuid
    AND claim_token = %(claim_token)s::uuid
    AND checkpoint_seq = %(checkpoint_seq)s::bigint
RETURNING checkpoint_seq
