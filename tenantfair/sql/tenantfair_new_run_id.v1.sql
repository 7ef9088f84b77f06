-- A new version 7 UUID (RFC 9562): 48 bits of milliseconds since 1970, then random ones. The id of a run that was
-- inserted without one; the package makes its own the same way (tenantfair/run_ids.py, decision 0016).
--
-- A random UUID of version 4 with the time laid over its first six bytes; bits 52 and 53 make its version a 7.

CREATE OR REPLACE FUNCTION tenantfair_new_run_id()
    RETURNS uuid
    LANGUAGE plpgsql
    VOLATILE
    PARALLEL SAFE
    SET search_path FROM CURRENT
AS $tenantfair_new_run_id$
DECLARE
    v_milliseconds CONSTANT bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
    v_bytes        CONSTANT bytea := overlay(
        uuid_send(gen_random_uuid()) PLACING substring(int8send(v_milliseconds) FROM 3) FROM 1 FOR 6
    );
BEGIN
    RETURN encode(set_bit(set_bit(v_bytes, 52, 1), 53, 1), 'hex')::uuid;
END
$tenantfair_new_run_id$;
