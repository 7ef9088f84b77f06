-- Takes a recording's triggers off one table.
DO $certify_untrigger$
DECLARE
    v_trigger record;
BEGIN
    FOR v_trigger IN
        SELECT found.tgname AS name
        FROM pg_trigger AS found
        WHERE found.tgrelid = to_regclass(current_setting('tenantfair.certify_table'))
            AND starts_with(found.tgname, 'tenantfair_certify_')
    LOOP
        EXECUTE pg_catalog.format(
            'DROP TRIGGER %I ON %I',
            v_trigger.name,
            current_setting('tenantfair.certify_table')
        );
    END LOOP;
END
$certify_untrigger$
