"""What the doctor repairs, what it leaves alone, and that it can do so beside busy sessions."""

from __future__ import annotations

import random
from contextlib import closing

import pytest
from django.db import connections, transaction

from tenantfair import doctor
from tenantfair.doctor.repair import RepairBlocked
from tenantfair.exceptions import SchemaMismatch
from tenantfair.models import Policy, Schedule
from tests.doctor_damage import (
    ACME,
    alias,
    change,
    connect_there,
    damage,
    ids,
    until,
    write,
)
from tests.factories import policy_in_force
from tests.rows import (
    assert_exact,
    counts,
    enqueue,
    in_background,
    insert_run,
    positions,
    result,
    script,
    sessions,
    until_blocked,
)
from tests.test_counter_soak import live
from tests.threads import until_someone_waits_for

__all__ = ["alias"]

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_tenant_that_left_the_ring_is_claimable_again(alias: str) -> None:
    damage("UPDATE tenantfair_schedule SET unfinished_count = 0")

    changes = [str(change) for change in doctor.repair(alias)]

    assert changes == [
        "count of '': was 0, is 1",
        "count of 'acme': was 0, is 4",
        "count of 'zeta': was 0, is 2",
    ]
    with closing(connect_there()) as session:
        assert counts(session) == {"": 1, "acme": 4, "zeta": 2, "idle": 0}


def test_a_repair_leaves_every_place_and_every_other_count_alone(alias: str) -> None:
    damage(change("unfinished_count = 9", ACME, "schedule"))
    with closing(connect_there()) as session:
        before = positions(session)
        versions = "SELECT scope_key, xmin FROM tenantfair_schedule WHERE scope_key <> 'acme' ORDER BY 1"
        rows_before = session.execute(versions).fetchall()

        doctor.repair(alias)

        assert positions(session) == before
        assert session.execute(versions).fetchall() == rows_before


def test_new_tenants_follow_after_a_cut_over(alias: str) -> None:
    """As logical replication leaves a subscriber: rows without counts, and every sequence at its start."""
    damage(
        "INSERT INTO tenantfair_run (id, tenant_id, task_path, wake_at)"
        " SELECT n, 'moved', 'tests.tasks_for_tests.add', now() FROM generate_series(1001, 1003) AS n",
        "SELECT setval('tenantfair_run_id_seq', 1, false)",
        "SELECT setval('tenantfair_schedule_ring_position_seq', 1, false)",
    )

    doctor.repair(alias)

    with closing(connect_there()) as session:
        assert insert_run(session, "later") == 1004
        assert counts(session)["moved"] == 3
        assert positions(session)["later"] == max(positions(session).values())


def test_runs_of_an_open_transaction_are_counted_once(alias: str) -> None:
    """The repair waits for nobody who has not begun to commit, and the later commit adds its own runs."""
    damage(change("unfinished_count = 0", ACME, "schedule"))
    with closing(connect_there()) as open_one:
        open_one.execute("BEGIN")
        enqueue(open_one, "acme", 5)
        doctor.repair(alias, lock_timeout_ms=1)
        open_one.execute("COMMIT")

    assert Schedule.objects.using(alias).get(pk="acme").unfinished_count == 9
    assert "count_too_low" not in ids(doctor.examine(alias))


def test_a_commit_that_is_under_way_is_waited_for_and_counted_once(alias: str) -> None:
    damage(change("unfinished_count = 1", ACME, "schedule"))
    with closing(connect_there()) as folding, closing(connect_there()) as observer:
        folding.execute("BEGIN")
        enqueue(folding, "acme", 5)
        folding.execute("SELECT tenantfair_fold()")
        repairing = in_background(repair_apart, alias)
        until(
            observer,
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE %s::integer = ANY (pg_blocking_pids(pid))",
            str(folding.info.backend_pid),
        )
        folding.execute("COMMIT")
        result(repairing)

    assert Schedule.objects.using(alias).get(pk="acme").unfinished_count == 9


def test_a_commit_that_holds_an_earlier_count_does_not_meet_a_repair_head_on(alias: str) -> None:
    """Counts are taken in one order: of the scope, whether it has drifted or lost its partition."""
    damage(
        change("unfinished_count = 1", ACME, "schedule"),
        "DELETE FROM tenantfair_partition WHERE scope_key = 'zeta'",
    )
    with closing(connect_there()) as folding, closing(connect_there()) as observer:
        folding.execute("BEGIN")
        enqueue(folding, "acme")
        folding.execute("SELECT tenantfair_fold()")
        repairing = in_background(repair_apart, alias)
        until_someone_waits_for(folding, observer)
        enqueue(folding, "zeta")
        folding.execute("COMMIT")
        result(repairing)

        assert_exact(observer)
        assert counts(observer) == {"": 1, "acme": 5, "zeta": 3, "idle": 0}


def test_a_commit_that_adds_a_partition_does_not_meet_a_repair_head_on(alias: str) -> None:
    """Partitions come before counts: whoever waits for a new one holds no count that the other needs."""
    damage(
        write("tenant_id", "'new'"),
        change("unfinished_count = 1", ACME, "schedule"),
        change("unfinished_count = 1", "scope_key = 'zeta'", "schedule"),
    )
    with (
        closing(connect_there()) as holder,
        closing(connect_there()) as folding,
        closing(connect_there()) as observer,
    ):
        script(holder, "BEGIN", "SELECT FROM tenantfair_schedule WHERE scope_key = 'zeta' FOR NO KEY UPDATE")
        repairing = in_background(repair_apart, alias)
        until_someone_waits_for(holder, observer)
        folding.execute("BEGIN")
        enqueue(folding, "acme")
        enqueue(folding, "new")
        committing = in_background(folding.execute, "COMMIT")
        until_blocked(observer, folding)
        holder.execute("COMMIT")
        result(repairing)
        result(committing)

        assert_exact(observer)
        assert counts(observer) == {"": 1, "acme": 5, "zeta": 2, "idle": 0, "new": 2}


def repair_apart(alias: str) -> None:
    connections[alias].connect()  # as scratch_alias does, and for the same reason
    try:
        doctor.repair(alias, lock_timeout_ms=20_000)
    finally:
        connections[alias].close()


def test_repairs_beside_busy_sessions_leave_exact_counts() -> None:
    policy_in_force(max_active=1000)
    with sessions() as another:
        lives = [in_background(live, another(), random.Random(seed)) for seed in (7, 8)]
        vandal, dice, repaired = another(), random.Random(9), 0
        vandal.execute("SET session_replication_role = replica")
        while not all(life.done() for life in lives):
            # Never too low: a commit that would take a count below zero is refused.
            vandal.execute(
                "UPDATE tenantfair_schedule SET unfinished_count = unfinished_count + 9 WHERE scope_key = %s",
                [dice.choice("abcd")],
            )
            repaired += len(doctor.repair())
        for life in lives:
            result(life)
        doctor.repair()

        assert repaired > 0
        assert_exact(another())


def test_a_repair_that_cannot_get_a_lock_changes_nothing(alias: str) -> None:
    damage(
        change("unfinished_count = 1", ACME, "schedule"),
        "DELETE FROM tenantfair_policy",
    )
    with closing(connect_there()) as holder:
        script(holder, "BEGIN", "SELECT FROM tenantfair_schedule FOR NO KEY UPDATE")
        with pytest.raises(RepairBlocked, match="nothing was changed"):
            doctor.repair(alias, lock_timeout_ms=10)

    assert not Policy.objects.using(alias).exists()
    assert Schedule.objects.using(alias).get(pk="acme").unfinished_count == 1


def test_a_schema_that_does_not_fit_is_not_repaired(alias: str) -> None:
    damage(
        "ALTER TABLE tenantfair_run DISABLE TRIGGER tenantfair_run_inserted",
        change("unfinished_count = 1", ACME, "schedule"),
    )

    with pytest.raises(SchemaMismatch, match="tenantfair_run_inserted is disabled"):
        doctor.repair(alias)

    assert Schedule.objects.using(alias).get(pk="acme").unfinished_count == 1


def test_neither_works_inside_somebodys_transaction() -> None:
    with transaction.atomic():
        with pytest.raises(RuntimeError):
            doctor.examine()
        with pytest.raises(RuntimeError):
            doctor.repair()


def test_the_guard_still_refuses_everybody_else(alias: str) -> None:
    damage(change("unfinished_count = 1", ACME, "schedule"))
    doctor.repair(alias)

    with closing(connect_there()) as session, pytest.raises(Exception, match="moves only with the runs"):
        session.execute("UPDATE tenantfair_schedule SET unfinished_count = 7")
