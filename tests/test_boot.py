"""What a worker start does to the policy, and what brings the policy row back after a flush."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import call_command
from django.db import DatabaseError, OperationalError, connection, connections
from django.test.utils import CaptureQueriesContext

from tenantfair import policy
from tenantfair.exceptions import ConfigurationError, InactiveEngine, SchemaMismatch
from tenantfair.models import Partition, Policy, Run, Schedule
from tenantfair.signals import cap_changed
from tests.domains import scratch_alias, scratch_domain
from tests.rows import result, script, sessions
from tests.threads import LONGEST_WAIT_SECONDS, all_at_once, in_django_thread, until_someone_waits_for

pytestmark = pytest.mark.django_db

PAST = datetime(2020, 1, 1, tzinfo=UTC)
CONFIGURED = 7
FAIR = {"DEFAULT_MAX_ACTIVE_RUNS": CONFIGURED}
LEGACY = {"TENANT_MODE": "none", "ENGINE": "legacy"}


@pytest.fixture(autouse=True)
def configured(settings: Any) -> Any:
    """Settings that ask for a cap of 7 and nothing else; the fixture lets a test ask for more."""
    settings.TENANTFAIR = FAIR
    return settings


def claimed_run(tenant_id: str | None, **values: Any) -> Run:
    return Run.objects.create(
        tenant_id=tenant_id, task_path="t.t", claim_token=uuid.uuid4(), **{"claimed_at": PAST, **values}
    )


def stored() -> dict[str, Any]:
    return Policy.objects.values().get()


def script_on(alias: str, statement: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)


# The stored row, as changes to a pristine one, and what a start with the configured cap makes of it.
INITIALISED = {"initialized_at": PAST, "policy_version": 4}
TABLE: dict[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {
    "missing": (None, {"max_active": 7, "policy_version": 1}),
    "pristine": ({}, {"max_active": 7, "policy_version": 1}),
    "unchanged": (
        {"admission_mode": "tenant_fair", "max_active": 3, "configured_max_active": 7, **INITIALISED},
        {"max_active": 3, "policy_version": 4},
    ),
    "changed": (
        {"admission_mode": "tenant_fair", "max_active": 3, "configured_max_active": 5, **INITIALISED},
        {"max_active": 7, "policy_version": 5},
    ),
    "legacy-initialised": (
        {"max_active": 3, "configured_max_active": 7, **INITIALISED},
        {"max_active": 3, "policy_version": 5},
    ),
    "set-before-first-boot": ({"max_active": 3, **INITIALISED}, {"max_active": 7, "policy_version": 5}),
    "configured-but-pristine": ({"configured_max_active": 7}, {"max_active": 7, "policy_version": 1}),
}


@pytest.mark.conformance(122)
@pytest.mark.parametrize(("before", "after"), TABLE.values(), ids=TABLE)
def test_a_start_makes_of_each_stored_row_what_the_table_says(
    before: dict[str, Any] | None, after: dict[str, Any]
) -> None:
    if before is None:
        Policy.objects.all().delete()
    else:
        Policy.objects.update(**before)

    found = policy.synchronize()

    row = stored()
    assert {**row, **after, "admission_mode": "tenant_fair", "configured_max_active": CONFIGURED} == row
    assert row["initialized_at"] == (PAST if before and "initialized_at" in before else row["initialized_at"])
    assert row["initialized_at"] is not None
    assert found.policy == policy.get_default()
    assert found.changed == (row["policy_version"] != (before or {}).get("policy_version", 0))


@pytest.mark.conformance(122)
@pytest.mark.parametrize("before", [row for row, _ in TABLE.values() if row is not None])
def test_a_start_touches_neither_cursor_nor_partitions(before: dict[str, Any]) -> None:
    Policy.objects.update(scan_ring_position=9, scan_laps=2, scan_budget=64, **before)
    Partition.objects.create(scope_key="acme", max_active=2, partition_version=3, admission_epoch=11)
    partitions = list(Partition.objects.values())

    policy.synchronize()

    row = stored()
    assert (row["scan_ring_position"], row["scan_laps"], row["scan_budget"]) == (9, 2, 64)
    assert list(Partition.objects.values()) == partitions


@pytest.mark.conformance(123)
def test_a_cap_set_at_run_time_survives_until_the_configured_one_changes(configured: Any) -> None:
    policy.synchronize()
    policy.put_default(3)
    policy.put_override("acme", 2)

    assert policy.synchronize().policy.cap == 3
    configured.TENANTFAIR = {"DEFAULT_MAX_ACTIVE_RUNS": 8}
    assert policy.synchronize().policy.cap == 8
    assert policy.inspect("acme").cap == 2


@pytest.mark.conformance(124)
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("row", ["pristine", "missing"])
def test_concurrent_first_starts_with_one_value_make_version_1(row: str) -> None:
    if row == "missing":
        Policy.objects.all().delete()

    outcomes = all_at_once([policy.synchronize] * 8)

    assert [outcome.policy.version for outcome in outcomes] == [1] * 8
    assert sum(outcome.switched for outcome in outcomes) == 1
    assert (stored()["policy_version"], stored()["max_active"]) == (1, CONFIGURED)


@pytest.mark.conformance(125)
@pytest.mark.django_db(transaction=True)
def test_an_unchanged_start_waits_for_nobody_and_writes_nothing() -> None:
    policy.synchronize()
    before = stored()
    with sessions() as session:
        script(session(), "BEGIN", "SELECT FROM tenantfair_policy FOR UPDATE")

        with CaptureQueriesContext(connection) as queries:
            found = policy.synchronize()

    assert not found.changed
    assert stored() == before
    assert not [query for query in queries if "FOR " in query["sql"] or "UPDATE" in query["sql"]]


@pytest.mark.conformance(125)
@pytest.mark.django_db(transaction=True)
def test_a_changed_start_waits_for_the_open_claim_and_then_goes_on(configured: Any) -> None:
    policy.synchronize()
    configured.TENANTFAIR = {"DEFAULT_MAX_ACTIVE_RUNS": 8}
    with sessions() as session:
        claim, observer = session(), session()
        script(claim, "BEGIN", "SELECT FROM tenantfair_policy FOR NO KEY UPDATE")
        start = in_django_thread(policy.synchronize)
        until_someone_waits_for(claim, observer)
        script(claim, "UPDATE tenantfair_policy SET scan_ring_position = 5", "COMMIT")
        assert result(start).policy.cap == 8

    assert stored()["scan_ring_position"] == 5


@pytest.mark.conformance(126)
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("damage", "remedy"),
    [
        ("DROP TRIGGER tenantfair_run_inserted ON tenantfair_run", "tenantfair_doctor --reinstall --fix"),
        (
            "DROP FUNCTION tenantfair_claim(timestamptz, timestamptz, integer, integer, text, boolean)",
            "tenantfair_doctor --reinstall --fix",
        ),
        (
            "ALTER TABLE tenantfair_run DROP COLUMN tenant_admitted_at CASCADE",
            "tenantfair_doctor --reinstall --fix",
        ),
        ("DELETE FROM django_migrations WHERE name = '0002_install'", "migrate tenantfair"),
    ],
)
def test_a_start_refuses_another_shape_before_it_touches_the_policy(damage: str, remedy: str) -> None:
    with scratch_domain("tf_boot") as alias:
        script_on(alias, damage)

        with pytest.raises(SchemaMismatch, match=f"manage.py {remedy} --database=scratch_tf_boot"):
            policy.synchronize(alias)

        assert Policy.objects.using(alias).get().policy_version == 0


@pytest.mark.conformance(127, 128)
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"TENANT_MODE": "required", "ENGINE": "legacy", "DEFAULT_MAX_ACTIVE_RUNS": 7},
        {"DEFAULT_MAX_ACTIVE_RUNS": 0},
        {"DEFAULT_MAX_ACTIVE_RUNS": 2_147_483_648},
        {"DEFAULT_MAX_ACTIVE_RUNS": True},
        {"DEFAULT_MAX_ACTIVE_RUNS": "7"},
        {"DEFAULT_MAX_ACTIVE_RUNS": 7, "DEFAULT_CAP": 7},
        {"TENANT_MODE": "none", "ENGINE": "tenant_fair"},
    ],
)
def test_a_start_refuses_settings_that_cannot_work(configured: Any, asked: dict[str, Any]) -> None:
    configured.TENANTFAIR = asked

    with pytest.raises(ConfigurationError):
        policy.synchronize()

    assert stored()["policy_version"] == 0


def test_without_a_configured_cap_the_error_prints_the_line_to_paste(configured: Any) -> None:
    configured.TENANTFAIR = {}

    with pytest.raises(ConfigurationError) as caught:
        policy.synchronize()

    assert 'TENANTFAIR = {"DEFAULT_MAX_ACTIVE_RUNS": 4}' in str(caught.value)


def test_lease_and_attempts_follow_the_settings(configured: Any) -> None:
    policy.synchronize()
    policy.put_default(3)
    configured.TENANTFAIR = {**FAIR, "LEASE_SECONDS": 120, "MAX_ATTEMPTS": 9}

    found = policy.synchronize().policy

    assert (found.lease_seconds, found.max_attempts, found.cap, found.version) == (120, 9, 3, 3)


def test_the_legacy_engine_finds_its_domain_and_writes_no_cap(configured: Any) -> None:
    configured.TENANTFAIR = {**LEGACY, "DEFAULT_MAX_ACTIVE_RUNS": 7, "LEASE_SECONDS": 120}

    found = policy.synchronize()

    assert (found.policy.mode, found.policy.cap, found.policy.version) == ("legacy", None, 0)
    assert (found.policy.configured, found.policy.lease_seconds) == (None, 120)
    assert not policy.synchronize().changed


def test_the_legacy_engine_puts_a_missing_row_back(configured: Any) -> None:
    configured.TENANTFAIR = LEGACY
    Policy.objects.all().delete()

    found = policy.synchronize()

    assert found.changed
    assert Policy.objects.count() == 1


def test_nothing_switches_a_tenant_fair_domain_back(configured: Any) -> None:
    policy.synchronize()
    before = stored()
    configured.TENANTFAIR = LEGACY

    with pytest.raises(InactiveEngine) as caught:
        policy.synchronize()

    assert caught.value.mode == "tenant_fair"
    assert stored() == before


@pytest.mark.conformance(140)
@pytest.mark.django_db(transaction=True)
def test_the_switch_to_tenant_fair_adopts_healthy_claims_at_the_time_they_were_claimed() -> None:
    first = claimed_run(None)
    second = claimed_run(None, claimed_at=datetime(2021, 1, 1, tzinfo=UTC))
    ready = Run.objects.create(task_path="t.t", wake_at=PAST)
    done = Run.objects.create(tenant_id="acme", task_path="t.t", status="completed", finished_at=PAST)
    Policy.objects.update(
        max_active=1, configured_max_active=CONFIGURED, policy_version=1, initialized_at=PAST
    )

    found = policy.synchronize()

    assert (found.switched, found.adopted) == (True, 2)
    for run in (first, second):
        run.refresh_from_db()
        assert run.tenant_admitted_at == run.claimed_at
    assert not Run.objects.filter(pk__in=[ready.pk, done.pk], tenant_admitted_at__isnull=False).exists()
    tenantless = policy.inspect(None)
    assert (tenantless.queued, tenantless.admitted_claimed, tenantless.debt, tenantless.unfinished) == (
        1,
        2,
        1,
        3,
    )
    assert list(Schedule.objects.values_list("partition", "unfinished_count")) == [("", 3)]


@pytest.mark.conformance(140)
@pytest.mark.django_db(transaction=True)
def test_a_switch_gives_way_to_whoever_has_locked_a_claimed_run() -> None:
    """It holds the policy row meanwhile, without which nothing can be claimed."""
    claimed_run("acme")
    with sessions() as another:
        holder = another()
        script(holder, "BEGIN", "SELECT FROM tenantfair_run FOR UPDATE")
        try:
            switch = in_django_thread(policy.synchronize)
            with pytest.raises(OperationalError, match="lock timeout"):
                switch.result(timeout=LONGEST_WAIT_SECONDS)
        finally:
            holder.execute("ROLLBACK")
    assert stored()["admission_mode"] == "legacy"

    assert policy.synchronize().adopted == 1


def test_a_second_start_adopts_nothing() -> None:
    policy.synchronize()
    run = claimed_run("acme")

    assert policy.synchronize().adopted == 0
    run.refresh_from_db()
    assert run.tenant_admitted_at is None


@pytest.mark.django_db(transaction=True)
def test_a_start_that_fails_while_adopting_leaves_the_mode() -> None:
    """The switch and the adoption are one transaction."""
    claimed_run("acme")
    with sessions() as session:
        script(
            session(),
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql"
            " AS 'BEGIN RAISE EXCEPTION ''adoption refused''; END'",
            "CREATE TRIGGER refuse BEFORE UPDATE ON tenantfair_run FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        try:
            with pytest.raises(DatabaseError, match="adoption refused"):
                policy.synchronize()
        finally:
            script(session(), "DROP FUNCTION refuse() CASCADE")

    assert (stored()["admission_mode"], stored()["policy_version"]) == ("legacy", 0)


@pytest.mark.django_db(transaction=True)
def test_a_start_announces_a_cap_only_when_it_changes_one() -> None:
    told: list[int] = []

    def receive(*, cap: int, **_: Any) -> None:
        told.append(cap)

    cap_changed.connect(receive)
    try:
        policy.synchronize()
        policy.synchronize()
    finally:
        cap_changed.disconnect(receive)

    assert told == [CONFIGURED]


@pytest.mark.django_db(transaction=True)
def test_flush_leaves_a_usable_domain() -> None:
    policy.synchronize()
    Run.objects.create(tenant_id="acme", task_path="t.t", wake_at=PAST)

    call_command("flush", interactive=False, verbosity=0)

    assert (Policy.objects.count(), Partition.objects.count(), Schedule.objects.count()) == (1, 0, 0)
    Run.objects.create(tenant_id="acme", task_path="t.t", wake_at=PAST)
    assert policy.synchronize().policy.version == 1
    assert policy.inspect("acme").unfinished == 1


@pytest.mark.django_db(transaction=True)
def test_a_start_repairs_the_row_that_a_flush_without_post_migrate_took() -> None:
    """Django flushes like that for test cases with `available_apps`."""
    policy.synchronize()
    call_command("flush", interactive=False, verbosity=0, inhibit_post_migrate=True)
    assert not Policy.objects.exists()

    assert policy.synchronize().policy.version == 1


def test_an_existing_row_survives_post_migrate() -> None:
    policy.synchronize()
    before = stored()

    policy.restore_policy_row(using="default")

    assert stored() == before


@pytest.mark.django_db(transaction=True)
def test_post_migrate_waits_for_nobody_who_writes_the_row() -> None:
    with sessions() as session:
        script(session(), "BEGIN", "UPDATE tenantfair_policy SET scan_ring_position = 1")

        policy.restore_policy_row(using="default")


@pytest.mark.conformance(143)
@pytest.mark.django_db(transaction=True)
def test_post_migrate_adds_no_row_before_the_domain_is_installed() -> None:
    with scratch_alias("tf_boot") as alias:
        call_command("migrate", "tenantfair", "0001", database=alias, verbosity=0)
        assert not Policy.objects.using(alias).exists()

        call_command("migrate", "tenantfair", database=alias, verbosity=0)
        assert Policy.objects.using(alias).get().policy_version == 0
