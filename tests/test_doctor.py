"""The doctor names every broken rule, and finds nothing in a healthy domain."""

from __future__ import annotations

import random
from contextlib import closing, suppress

import pytest
from django.db import connections

from tenantfair import doctor, policy, runs, schema
from tenantfair.doctor import KINDS, Limits, Severity
from tenantfair.doctor.bodies import shipped_bodies
from tenantfair.exceptions import SchemaMismatch
from tests.doctor_damage import (
    ACME,
    BROKEN,
    BY_SESSIONS,
    CLAIMED,
    QUEUED,
    SCHEMA,
    TASK,
    Broken,
    alias,
    change,
    connect_there,
    damage,
    ids,
    write,
)
from tests.domains import migrate, scratch_alias, scratch_domain
from tests.factories import policy_in_force
from tests.rows import (
    Session,
    enqueue,
    in_background,
    insert_run,
    result,
    sessions,
)
from tests.tasks_for_tests import add
from tests.test_counter_soak import live
from tests.test_runs_walk import Walk

__all__ = ["alias"]

pytestmark = pytest.mark.django_db(transaction=True)


def queries(alias: str) -> None:
    """Look, damage, repair and look again."""
    policy.synchronize(using=alias)
    damage(write("tenant_id", "'acme'"))
    assert ids(doctor.examine(alias)) == {"partition_missing", "ring_position_missing"}
    assert [change.what for change in doctor.repair(alias)] == ["partition_added", "count_changed"]
    assert doctor.examine(alias).findings == ()


@pytest.mark.parametrize(
    "options", [{"server_side_binding": True}, {"pool": True}], ids=lambda found: next(iter(found))
)
def test_parameters_bound_by_the_server_and_pools_are_fine(options: dict[str, bool]) -> None:
    with scratch_alias(SCHEMA, **options) as alias:
        migrate(alias)
        queries(alias)
        connections[alias].close()
        if "pool" in options:
            connections[alias].close_pool()  # type: ignore[attr-defined]


def test_a_sound_domain_with_a_run_in_each_state_has_no_finding(alias: str) -> None:
    assert doctor.examine(alias).findings == ()


def test_every_kind_of_finding_is_broken_here() -> None:
    assert {broken.kind for broken in BROKEN} | BY_SESSIONS == set(KINDS)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.kind)
def test_a_broken_rule_is_named_and_repaired_where_it_can_be_computed(alias: str, broken: Broken) -> None:
    damage(*broken.statements)

    (finding,) = (found for found in doctor.examine(alias).findings if found.id == broken.kind)
    assert 1 <= len(finding.examples) <= 10
    assert finding.number >= len(finding.examples)

    if broken.is_fixed:
        assert doctor.repair(alias)
        assert doctor.examine(alias).findings == ()
        assert doctor.repair(alias) == []
    else:
        with closing(connect_there()) as session:
            before = rows_of(session)
            with suppress(SchemaMismatch):
                doctor.repair(alias)
            assert rows_of(session) == before


def rows_of(session: Session) -> list[tuple[str]]:
    """The policy and every run, which no repair touches."""
    return session.execute(
        "SELECT to_jsonb(run)::text FROM tenantfair_run AS run"
        " UNION ALL SELECT to_jsonb(policy)::text FROM tenantfair_policy AS policy ORDER BY 1"
    ).fetchall()


def test_a_count_too_low_is_the_first_thing_that_is_said(alias: str) -> None:
    damage(
        "UPDATE tenantfair_schedule SET unfinished_count = 0",
        change("claim_attempts = 99", QUEUED),
        "UPDATE tenantfair_policy SET scan_ring_position = 1000",
        "UPDATE tenantfair_run SET worker_ids = '{}'",
    )

    report = doctor.examine(alias)

    assert [finding.id for finding in report.findings] == [
        "count_too_low",
        "run_lists",
        "cursor_impossible",
        "run_attempts",
    ]
    assert report.findings[0].examples[1] == "'acme' counts 0 of 4 unfinished runs and has left the ring"


def test_findings_are_counted_and_few_of_them_shown(alias: str) -> None:
    with closing(connect_there()) as session:
        enqueue(session, "many", 50)

    (finding,) = (found for found in doctor.examine(alias).findings if found.id == "task_unknown")
    damage("UPDATE tenantfair_run SET worker_ids = '{}' WHERE scope_key = 'many'")
    (lists,) = (found for found in doctor.examine(alias).findings if found.id == "run_lists")

    assert finding.examples == (
        "50 runs of tests.task (default): 'tests.task' cannot be imported:"
        " AttributeError: module 'tests' has no attribute 'task'",
    )
    assert (lists.number, len(lists.examples)) == (50, 10)


def test_no_claim_token_is_ever_shown(alias: str) -> None:
    damage("UPDATE tenantfair_run SET claim_token = '6f1b1e6e-0000-4000-8000-000000000001' WHERE " + CLAIMED)

    report = doctor.examine(alias)

    assert ids(report) == {"claim_shared"}
    assert "6f1b1e6e-0000" not in repr(report)


def test_a_schema_without_our_tables_is_one_finding() -> None:
    with scratch_alias(SCHEMA) as alias:
        report = doctor.examine(alias)

    assert ids(report) == {"schema"}
    assert not report.fits


def test_tables_without_triggers_and_functions_are_told_and_not_repaired() -> None:
    """As `migrate --fake` or a restore without them leaves a database."""
    with scratch_alias(SCHEMA) as alias:
        migrate(alias, "0001")
        (finding,) = doctor.examine(alias).findings
        with pytest.raises(SchemaMismatch):
            doctor.repair(alias)

    assert finding.id == "schema"
    assert "migration 0002_install is not applied" in finding.examples


def test_work_that_a_full_scope_holds_back_is_not_stalled(alias: str) -> None:
    damage(
        change("max_active = 2", ACME, "partition"),
        change("wake_at = now() - interval '1 hour'", QUEUED),
    )

    assert ids(doctor.examine(alias)) == set()
    assert ids(doctor.examine(alias, Limits(stalled_after=0.0))) == {"stalled"}  # the tenantless run


def test_claims_without_a_marker_are_sound_in_a_legacy_domain() -> None:
    with scratch_domain(SCHEMA) as alias, closing(connect_there()) as session:
        for state in ("queued", "claimed", "waiting"):
            insert_run(session, None, state, task_path=TASK)
        session.execute("UPDATE tenantfair_run SET tenant_admitted_at = NULL")

        assert doctor.examine(alias).findings == ()


def test_every_shipped_function_is_compared() -> None:
    assert shipped_bodies().keys() == schema.FUNCTIONS.keys()


# Healthy domains


class Peaceful(Walk):
    """Everything that can happen to runs, but no time jumps and no lowered caps, which are findings."""

    def expire(self) -> None:
        pass

    def change_cap(self) -> None:
        pass


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_random_life_leaves_no_finding(seed: int) -> None:
    walk = Peaceful(seed)
    for _ in range(4):
        for _ in range(40):
            walk.step()
        assert doctor.examine().findings == ()


def test_a_busy_domain_has_no_finding_at_any_moment() -> None:
    """Each look is one consistent snapshot, whatever commits meanwhile."""
    policy_in_force(max_active=1000)
    with sessions() as another:
        lives = [in_background(live, another(), random.Random(seed)) for seed in (5, 6)]
        looks = 0
        while not all(life.done() for life in lives):
            assert ids(doctor.examine()) <= {"task_unknown", "debt"}
            looks += 1
        for life in lives:
            result(life)

    assert looks > 1


def test_runs_enqueued_by_an_open_transaction_are_no_finding() -> None:
    policy.synchronize()
    with sessions() as another:
        open_one = another()
        open_one.execute("BEGIN")
        enqueue(open_one, "acme", 3)
        runs.enqueue(add, args=[1], tenant_id="zeta")

        assert doctor.examine().findings == ()


def test_severities_are_in_order() -> None:
    assert list(Severity) == ["grave", "wrong", "worth a look"]
