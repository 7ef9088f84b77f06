"""Installs what Django's models cannot express: identity, triggers, the fold, and the claim function."""

from django.db import migrations

from tenantfair.sql import install, load

CLAIM = "tenantfair_claim(timestamptz, timestamptz, integer, integer, text, boolean)"
CLAIM_LAP = "tenantfair_claim_lap(timestamptz, integer, text, bigint, bigint, interval, text[])"


class Migration(migrations.Migration):
    dependencies = [("tenantfair", "0001_initial")]

    operations = [
        migrations.RunSQL(install("tenantfair_storage.v1"), load("tenantfair_storage.v1.reverse")),
        migrations.RunSQL(install("pattern_indexes_drop"), install("pattern_indexes_restore")),
        migrations.RunSQL(
            install("tenantfair_partition_schedule.v1"),
            "DROP FUNCTION tenantfair_partition_schedule() CASCADE",
        ),
        migrations.RunSQL(
            install("tenantfair_schedule_guard.v1"), "DROP FUNCTION tenantfair_schedule_guard() CASCADE"
        ),
        migrations.RunSQL(install("tenantfair_pending.v1"), "DROP TABLE tenantfair_pending"),
        migrations.RunSQL(
            install("tenantfair_fold.v1"),
            "DROP FUNCTION tenantfair_pending_fold(); DROP FUNCTION tenantfair_fold()",
        ),
        migrations.RunSQL(
            install("tenantfair_pending_fold.v1"),
            "DROP TRIGGER tenantfair_pending_fold ON tenantfair_pending",
        ),
        migrations.RunSQL(
            install("tenantfair_run_unfinished.v1"),
            "DROP FUNCTION tenantfair_run_inserted() CASCADE;"
            " DROP FUNCTION tenantfair_run_deleted() CASCADE;"
            " DROP FUNCTION tenantfair_run_updated() CASCADE;"
            " DROP FUNCTION tenantfair_tenant_is_well_formed(text)",
        ),
        migrations.RunSQL(
            install("tenantfair_truncate_guard.v1"), "DROP FUNCTION tenantfair_truncate_guard() CASCADE"
        ),
        migrations.RunSQL(install("tenantfair_claim.v1"), f"DROP FUNCTION {CLAIM}"),
        migrations.RunSQL(install("tenantfair_claim_lap.v1"), f"DROP PROCEDURE {CLAIM_LAP}"),
    ]
