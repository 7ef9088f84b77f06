"""The ring: who may write a count, places for life, partitions, TRUNCATE, a second install."""

from tests.mutants.mutant import Mutant

GUARD = "sql/tenantfair_schedule_guard.v1.sql"
TRUNCATE = "sql/tenantfair_truncate_guard.v1.sql"

MUTANTS = (
    Mutant(
        name="count-written-by-a-trigger-of-the-host",
        file=GUARD,
        old=(
            "AND current_setting('tenantfair.folding_' || 'tenantfair_run'::regclass::oid::text, true)\n"
            "                IS DISTINCT FROM pg_current_xact_id()::text"
        ),
        new="AND pg_trigger_depth() = 0",
        breaks="the guard is no mere pg_trigger_depth(): any trigger of the host has depth (item 20)",
        killed_by=("test_ring.py::test_direct_write_from_a_trigger_of_the_host_is_refused",),
    ),
    Mutant(
        name="count-written-by-anybody",
        file=GUARD,
        old="            NEW.unfinished_count IS DISTINCT FROM OLD.unfinished_count\n",
        new="            false\n",
        breaks="a direct write to a count is 23000 (item 20)",
        killed_by=("test_ring.py::test_direct_write_of_another_count_is_refused",),
    ),
    Mutant(
        name="position-changes",
        file=GUARD,
        old="        OR NEW.ring_position IS DISTINCT FROM OLD.ring_position\n",
        new="",
        breaks="a ring position is for life (item 21)",
        killed_by=("test_ring.py::test_scope_and_position_are_for_life",),
    ),
    Mutant(
        name="partition-deleted-under-its-runs",
        file=GUARD,
        old="    IF OLD.unfinished_count > 0 THEN\n",
        new="    IF OLD.unfinished_count > 1 THEN\n",
        breaks="deleting a partition with unfinished runs is 23503 (item 22)",
        killed_by=("test_ring.py::test_partition_with_unfinished_runs_cannot_be_deleted",),
    ),
    Mutant(
        name="ring-row-deleted-alone",
        file=GUARD,
        old="    IF EXISTS (SELECT FROM tenantfair_partition WHERE scope_key = OLD.scope_key) THEN\n",
        new="    IF false THEN\n",
        breaks="a ring position goes only with its partition (item 23)",
        killed_by=(
            "test_ring.py::test_idle_partition_takes_its_place_with_it_and_returns_behind_the_others",
        ),
    ),
    Mutant(
        name="place-made-with-a-count",
        file=GUARD,
        old="WHEN (NEW.unfinished_count <> 0)",
        new="WHEN (NEW.unfinished_count < 0)",
        breaks="a new ring position starts with a count of 0 (items 12 and 20)",
        killed_by=("test_ring.py::test_places_cannot_be_made_by_hand",),
    ),
    Mutant(
        name="position-reused",
        file="sql/tenantfair_partition_schedule.v1.sql",
        old="INSERT INTO tenantfair_schedule (scope_key) VALUES (NEW.scope_key);",
        new=(
            "INSERT INTO tenantfair_schedule (scope_key, ring_position) OVERRIDING SYSTEM VALUE"
            " SELECT NEW.scope_key, coalesce(max(ring_position), 0) + 1 FROM tenantfair_schedule;"
        ),
        breaks="ring positions are monotonic: none is handed out twice (item 12)",
        killed_by=("test_ring.py::test_place_of_a_deleted_scope_is_given_to_nobody_else",),
    ),
    Mutant(
        name="position-after-a-reinstall",
        file="sql/tenantfair_storage.v1.sql",
        old="greatest((SELECT max(ring_position) FROM tenantfair_schedule), 1)",
        new="1",
        breaks="after a reinstall positions go on after the last one",
        killed_by=(
            "test_migrations.py::test_triggers_removed_and_installed_again_count_what_changed_meanwhile",
        ),
    ),
    Mutant(
        name="reinstall-without-a-recount",
        file="sql/tenantfair_storage.v1.sql",
        old="WHERE run.scope_key = ring.scope_key AND run.finished_at IS NULL\n",
        new="WHERE run.scope_key = ring.scope_key AND run.finished_at > now()\n",
        breaks="what changed without the triggers is counted anew",
        killed_by=(
            "test_migrations.py::test_triggers_removed_and_installed_again_count_what_changed_meanwhile",
        ),
    ),
    Mutant(
        name="reinstall-beside-writers",
        file="sql/tenantfair_storage.v1.sql",
        old="LOCK TABLE tenantfair_run, tenantfair_partition, tenantfair_schedule IN SHARE ROW EXCLUSIVE MODE;\n",
        new="",
        breaks="what changed without triggers is counted when they come back (item 143)",
        killed_by=("test_migrations.py::test_installing_again_counts_what_was_in_flight",),
    ),
    Mutant(
        name="truncate-of-runs-alone",
        file=TRUNCATE,
        old="IF EXISTS (SELECT FROM tenantfair_schedule WHERE in_ring)",
        new="IF EXISTS (SELECT FROM tenantfair_schedule WHERE ring_position < 0)",
        breaks="a TRUNCATE that leaves counts without their runs is refused (item 24)",
        killed_by=("test_ring_truncate.py::test_truncate_may_empty_the_domain_but_never_contradict_it",),
    ),
    Mutant(
        name="truncate-of-the-ring-alone",
        file=TRUNCATE,
        old="    IF EXISTS (SELECT FROM tenantfair_partition)\n        OR EXISTS (SELECT FROM tenantfair_run WHERE finished_at IS NULL)\n",
        new="    IF false\n",
        breaks="a TRUNCATE that leaves runs without their schedule is refused (item 24)",
        killed_by=("test_ring_truncate.py::test_truncate_may_empty_the_domain_but_never_contradict_it",),
    ),
    Mutant(
        name="truncate-trusts-an-old-snapshot",
        file=TRUNCATE,
        old="current_setting('transaction_isolation') <> 'read committed'",
        new="false",
        breaks="a TRUNCATE with an older snapshot does not overlook newer runs (item 24)",
        killed_by=(
            "test_ring_truncate.py::test_truncate_with_an_older_snapshot_does_not_overlook_newer_runs",
        ),
    ),
    Mutant(
        name="truncate-keeps-the-notes",
        file=TRUNCATE,
        old="        DELETE FROM tenantfair_pending WHERE xid = pg_current_xact_id();\n",
        new="",
        breaks="the notes of truncated runs go with them (item 24)",
        killed_by=(
            "test_ring_truncate.py::test_runs_enqueued_after_a_truncate_in_the_same_transaction_are_counted",
        ),
    ),
)
