"""Caps: reading, compare-and-set writes, inspection."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from tenantfair import policy
from tenantfair.exceptions import (
    InactiveEngine,
    InvalidCap,
    InvalidScanBudget,
    InvalidTenant,
    InvalidVersion,
    NotInitialized,
    StaleVersion,
)
from tenantfair.models import Partition, Policy, Run, Schedule
from tenantfair.signals import cap_changed
from tenantfair.sql import load
from tests.domains import scratch_domain
from tests.rows import result, script, sessions
from tests.threads import all_at_once, in_django_thread, until_someone_waits_for

pytestmark = pytest.mark.django_db

PAST = datetime(2020, 1, 1, tzinfo=UTC)
FUTURE = datetime(2999, 1, 1, tzinfo=UTC)
MAX = 2_147_483_647


@pytest.fixture
def initialised() -> None:
    """A domain as a first worker start with a cap of 10 leaves it."""
    policy.synchronize()


def make_run(tenant_id: str | None, *, using: str = "default", **values: Any) -> Run:
    """Write a run as raw as the database lets us."""
    if not values.keys() & {"wake_at", "claim_token", "status", "poisoned_at"}:
        values["wake_at"] = PAST
    if "claim_token" in values:
        values.setdefault("claimed_at", PAST)
    return Run.objects.using(using).create(tenant_id=tenant_id, task_path="tests.tasks.nothing", **values)


def claimed(**values: Any) -> dict[str, Any]:
    return {"claim_token": uuid.uuid4(), "tenant_admitted_at": PAST, **values}


def rows() -> tuple[list[Any], list[Any], list[Any]]:
    """Everything that a policy write could touch, byte for byte."""
    return (
        list(Policy.objects.values_list()),
        list(Partition.objects.order_by("scope_key").values_list()),
        list(Schedule.objects.order_by("ring_position").values_list()),
    )


@contextmanager
def unchanged() -> Iterator[None]:
    before = rows()
    yield
    assert rows() == before


@pytest.mark.conformance(129)
def test_a_pristine_domain_has_no_default_cap_and_version_0() -> None:
    found = policy.get_default()

    assert (found.cap, found.version, found.configured, found.mode) == (None, 0, None, "legacy")
    assert (found.scan_budget, found.lease_seconds, found.max_attempts) == (32, 60, 5)


def test_a_domain_without_a_policy_row_reads_as_pristine() -> None:
    Policy.objects.all().delete()

    assert policy.get_default() == policy.caps.PRISTINE


def test_the_pristine_values_are_those_of_a_fresh_install() -> None:
    fresh = policy.get_default()

    assert (
        policy.caps.describe(Policy(**{**Policy.objects.values().get(), "updated_at": None}))
        == policy.caps.PRISTINE
    )
    assert fresh.updated_at is not None


@pytest.mark.conformance(129)
def test_put_default_with_the_right_version_adds_one(initialised: None) -> None:
    before = policy.get_default()

    found = policy.put_default(3, expected_version=before.version)

    assert (found.cap, found.version) == (3, before.version + 1)
    assert policy.get_default() == found
    assert (found.configured, found.mode) == (before.configured, before.mode)


@pytest.mark.conformance(129)
def test_put_default_with_another_version_changes_nothing(initialised: None) -> None:
    with unchanged(), pytest.raises(StaleVersion) as caught:
        policy.put_default(3, expected_version=7)

    assert (caught.value.expected, caught.value.actual) == (7, 1)


def test_put_default_without_a_version_is_unconditional(initialised: None) -> None:
    assert policy.put_default(3).version == 2
    assert policy.put_default(3).version == 3


def test_put_default_before_the_first_boot_initialises_but_leaves_the_mode() -> None:
    found = policy.put_default(3, expected_version=0)

    assert (found.cap, found.version, found.configured, found.mode) == (3, 1, None, "legacy")
    assert Policy.objects.get().initialized_at is not None


def test_put_default_keeps_the_time_of_the_first_initialisation(initialised: None) -> None:
    first = Policy.objects.get().initialized_at

    policy.put_default(3)

    assert Policy.objects.get().initialized_at == first


def test_put_default_puts_a_missing_row_back() -> None:
    Policy.objects.all().delete()

    assert policy.put_default(3).version == 1


def test_a_stale_put_default_does_not_put_a_missing_row_back() -> None:
    Policy.objects.all().delete()

    with pytest.raises(StaleVersion):
        policy.put_default(3, expected_version=4)

    assert not Policy.objects.exists()


@pytest.mark.conformance(130)
@pytest.mark.parametrize(("tenant_id", "scope_key"), [("acme", "acme"), (None, "")])
def test_an_override_of_a_new_scope_creates_it_at_version_1_with_a_ring_row(
    initialised: None, tenant_id: str | None, scope_key: str
) -> None:
    found = policy.put_override(tenant_id, 3, expected_version=0)

    assert found == policy.Override(scope_key=scope_key, cap=3, version=1)
    assert Partition.objects.get().scope_key == scope_key
    assert Schedule.objects.get().unfinished_count == 0


def test_an_override_of_a_scope_that_enqueued_first_expects_version_0(initialised: None) -> None:
    Partition.objects.create(scope_key="acme")

    assert policy.put_override("acme", 3, expected_version=0).version == 1
    assert policy.put_override("acme", 3, expected_version=1).version == 2
    assert policy.put_override("acme", 3).version == 3
    assert Schedule.objects.count() == 1


@pytest.mark.conformance(131)
@pytest.mark.parametrize("version", [0, 5])
def test_a_stale_override_changes_nothing(initialised: None, version: int) -> None:
    policy.put_override("acme", 3)

    with unchanged(), pytest.raises(StaleVersion) as caught:
        policy.put_override("acme", 4, expected_version=version)

    assert caught.value.actual == 1


@pytest.mark.conformance(131)
@pytest.mark.parametrize("version", [0, 5])
def test_a_stale_reset_changes_nothing(initialised: None, version: int) -> None:
    policy.put_override("acme", 3)

    with unchanged(), pytest.raises(StaleVersion) as caught:
        policy.reset_override("acme", expected_version=version)

    assert caught.value.actual == 1


@pytest.mark.conformance(131)
def test_a_stale_write_to_a_missing_scope_leaves_no_partition(initialised: None) -> None:
    with unchanged(), pytest.raises(StaleVersion) as put:
        policy.put_override("acme", 3, expected_version=1)
    with unchanged(), pytest.raises(StaleVersion) as reset:
        policy.reset_override("acme")

    assert put.value.actual is None
    assert reset.value.actual is None


@pytest.mark.conformance(131)
def test_a_reset_inherits_again_and_keeps_the_partition(initialised: None) -> None:
    policy.put_override("acme", 3)
    position = Schedule.objects.get().ring_position

    found = policy.reset_override("acme", expected_version=1)

    assert found == policy.Override(scope_key="acme", cap=None, version=2)
    assert policy.reset_override("acme").version == 3
    assert Schedule.objects.get().ring_position == position
    assert policy.inspect("acme").source == "default"


@pytest.mark.conformance(132, 128)
@pytest.mark.parametrize("cap", [0, -1, MAX + 1, True, False, 1.0, "3", None])
def test_a_cap_is_an_integer_in_range_and_no_boolean(initialised: None, cap: Any) -> None:
    with unchanged(), pytest.raises(InvalidCap):
        policy.put_default(cap)
    with unchanged(), pytest.raises(InvalidCap):
        policy.put_override("acme", cap)


@pytest.mark.parametrize("cap", [1, MAX])
def test_the_ends_of_the_range_are_caps(initialised: None, cap: int) -> None:
    assert policy.put_default(cap).cap == cap
    assert policy.put_override("acme", cap).cap == cap


@pytest.mark.conformance(132)
@pytest.mark.parametrize("version", [-1, 2**63, True, "1", 1.0])
def test_an_expected_version_is_an_integer_in_range(initialised: None, version: Any) -> None:
    for write in (
        lambda: policy.put_default(3, expected_version=version),
        lambda: policy.put_override("acme", 3, expected_version=version),
        lambda: policy.reset_override("acme", expected_version=version),
        lambda: policy.put_scan_budget(64, expected_version=version),
    ):
        with unchanged(), pytest.raises(InvalidVersion):
            write()


@pytest.mark.conformance(132)
@pytest.mark.parametrize("tenant_id", ["", " acme", "a\nb", "x" * 256, 7])
def test_a_scope_is_a_valid_tenant_id_or_none(initialised: None, tenant_id: Any) -> None:
    for ask in (
        lambda: policy.put_override(tenant_id, 3),
        lambda: policy.reset_override(tenant_id),
        lambda: policy.inspect(tenant_id),
    ):
        with unchanged(), pytest.raises(InvalidTenant):
            ask()


@pytest.mark.conformance(132)
def test_an_unknown_option_is_refused(initialised: None) -> None:
    with unchanged(), pytest.raises(TypeError):
        policy.put_default(3, version=1)  # type: ignore[call-arg]


def test_the_scan_budget_is_written_by_compare_and_set(initialised: None) -> None:
    found = policy.put_scan_budget(64, expected_version=1)

    assert (found.scan_budget, found.version, found.cap) == (64, 2, 10)
    with unchanged(), pytest.raises(StaleVersion):
        policy.put_scan_budget(128, expected_version=1)


@pytest.mark.parametrize("budget", [31, 4097, 0, -32, True, 64.0])
def test_a_scan_budget_is_an_integer_in_range(initialised: None, budget: Any) -> None:
    with unchanged(), pytest.raises(InvalidScanBudget):
        policy.put_scan_budget(budget)


def test_before_the_first_boot_only_the_default_can_be_written() -> None:
    for write in (
        lambda: policy.put_override("acme", 3),
        lambda: policy.reset_override("acme"),
        lambda: policy.put_scan_budget(64),
    ):
        with unchanged(), pytest.raises(NotInitialized):
            write()


@pytest.mark.conformance(133)
def test_inspect_counts_each_admission_state_and_nothing_else(initialised: None) -> None:
    policy.put_override("acme", 1)
    make_run("acme")
    make_run("acme", wake_at=PAST, tenant_admitted_at=PAST)
    make_run("acme", **claimed())
    make_run("acme", wake_at=FUTURE)
    make_run("acme", status="waiting")
    make_run("acme", poisoned_at=PAST, poison_reason="max_claim_attempts_exceeded")
    for status in ("completed", "failed", "cancelled"):
        make_run("acme", status=status, finished_at=PAST)
    make_run("other")

    found = policy.inspect("acme")

    assert (found.queued, found.admitted_ready, found.admitted_claimed, found.debt) == (1, 1, 1, 1)
    assert (found.cap, found.source, found.default_version, found.override_version) == (1, "override", 1, 1)
    assert (found.unfinished, found.admission_epoch, found.mode) == (6, 0, "tenant_fair")
    assert found.ring_position == Schedule.objects.get(partition="acme").ring_position


def test_a_claim_without_a_marker_is_not_admitted(initialised: None) -> None:
    make_run("acme", claim_token=uuid.uuid4())

    assert policy.inspect("acme").admitted_claimed == 0


def test_debt_includes_admitted_runs_that_are_not_due_yet(initialised: None) -> None:
    policy.put_override("acme", 1)
    make_run("acme", wake_at=FUTURE, tenant_admitted_at=PAST)
    make_run("acme", wake_at=FUTURE, tenant_admitted_at=PAST)

    found = policy.inspect("acme")

    assert (found.admitted_ready, found.debt) == (0, 1)


def test_the_oldest_due_wait_is_that_of_the_longest_waiting_unclaimed_run(initialised: None) -> None:
    make_run("acme", wake_at=datetime(2021, 1, 1, tzinfo=UTC))
    make_run("acme", wake_at=PAST, tenant_admitted_at=PAST)
    make_run("acme", **claimed(claimed_at=datetime(2019, 1, 1, tzinfo=UTC)))
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp() - %s::timestamptz", [PAST])
        (expected,) = cursor.fetchone()

    wait = policy.inspect("acme").oldest_due_wait

    assert wait is not None
    assert timedelta() <= wait - expected < timedelta(minutes=5)
    assert policy.inspect("idle").oldest_due_wait is None


def test_an_unknown_scope_reads_as_zeros_and_is_not_created(initialised: None) -> None:
    with unchanged():
        found = policy.inspect("nobody")

    assert (found.cap, found.source, found.override_version, found.unfinished) == (10, "default", 0, 0)
    assert (found.queued, found.admitted_ready, found.admitted_claimed, found.debt) == (0, 0, 0, 0)
    assert (found.ring_position, found.admission_epoch) == (None, 0)


def test_inspect_of_none_is_the_tenantless_scope(initialised: None) -> None:
    make_run(None)

    assert policy.inspect(None).queued == 1
    assert policy.inspect(None).scope_key == ""


@pytest.mark.conformance(134)
def test_inspect_before_the_first_boot_says_not_initialised() -> None:
    with pytest.raises(NotInitialized):
        policy.inspect("acme")


@pytest.mark.conformance(134)
def test_inspect_in_a_legacy_domain_says_so() -> None:
    policy.put_default(3)

    with pytest.raises(InactiveEngine) as caught:
        policy.inspect("acme")

    assert caught.value.mode == "legacy"
    assert policy.inspect_many(["acme"])["acme"].mode == "legacy"


def test_inspect_many_answers_before_the_first_boot() -> None:
    make_run("acme")

    found = policy.inspect_many(["acme"])["acme"]

    assert (found.cap, found.queued, found.debt, found.unfinished) == (None, 1, 0, 1)


@pytest.mark.django_db(transaction=True)
def test_inspect_many_reads_any_number_of_scopes_in_one_statement(initialised: None) -> None:
    scope_keys = [f"tenant-{number}" for number in range(200)]
    make_run("tenant-7")

    with CaptureQueriesContext(connection) as queries:
        found = policy.inspect_many([*scope_keys, "tenant-7"])

    assert len(queries) == 1
    assert list(found) == scope_keys
    assert [key for key, one in found.items() if one.queued] == ["tenant-7"]
    assert policy.inspect_many([]) == {}


@pytest.mark.django_db(transaction=True)
def test_inspect_inside_a_transaction_sees_what_it_has_enqueued(initialised: None) -> None:
    with transaction.atomic():
        make_run("acme")
        first = policy.inspect("acme")
        make_run("acme")
        second = policy.inspect("acme")

    assert (first.unfinished, first.queued) == (1, 1)
    assert (second.unfinished, second.queued) == (2, 2)
    assert policy.inspect("acme").unfinished == 2


@pytest.mark.django_db(transaction=True)
def test_inspect_reads_no_finished_run(initialised: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tenantfair_run (tenant_id, task_path, status, finished_at)"
            " SELECT 'acme', 't.t', 'completed', now() FROM generate_series(1, 3000)"
        )
    for _ in range(5):
        make_run("acme")
    make_run("acme", **claimed())
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE tenantfair_run")
        statement = load("inspect_scopes")
        cursor.execute(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {statement}", {"scope_keys": ["acme"]})
        plan = "\n".join(line for (line,) in cursor.fetchall())

    assert "Seq Scan on tenantfair_run" not in plan
    for index in ("tenantfair_run_queued", "tenantfair_run_ready", "tenantfair_run_claimed"):
        assert index in plan
    assert "Rows Removed by Filter" not in plan


def test_the_listed_scopes_are_those_at_work_and_those_with_an_override_in_ring_order(
    initialised: None,
) -> None:
    policy.put_override("late", 5)
    make_run("busy")
    policy.inspect("busy")
    policy.put_override("reset", 5)
    policy.reset_override("reset")
    make_run("done", status="completed", finished_at=PAST)
    Partition.objects.create(scope_key="idle")

    assert policy.list_scopes(10) == ["late", "busy"]
    assert policy.list_scopes(1) == ["late"]


@pytest.mark.conformance(135)
@pytest.mark.django_db(transaction=True)
def test_a_change_is_seen_by_every_other_connection_at_once(initialised: None) -> None:
    policy.put_default(3)
    policy.put_override("acme", 4)

    seen = result(in_django_thread(lambda: (policy.get_default().cap, policy.inspect("acme").cap)))

    assert seen == (3, 4)


@pytest.mark.conformance(135, 144)
@pytest.mark.django_db(transaction=True)
def test_two_schemas_have_nothing_in_common(initialised: None) -> None:
    with scratch_domain("tf_policy") as alias:
        policy.put_default(3, using=alias)
        policy.put_override("acme", 4, using=alias)
        make_run("acme", using=alias)

        assert policy.get_default().cap == 10
        assert policy.inspect("acme").unfinished == 0
        assert policy.inspect_many(["acme"], using=alias)["acme"].unfinished == 1


@pytest.mark.conformance(136)
@pytest.mark.django_db(transaction=True)
def test_a_write_waits_for_the_claim_that_holds_the_policy_row(initialised: None) -> None:
    with sessions() as session:
        claim, observer = session(), session()
        script(claim, "BEGIN", "SELECT FROM tenantfair_policy FOR NO KEY UPDATE")
        write = in_django_thread(lambda: policy.put_default(3))
        until_someone_waits_for(claim, observer)
        script(claim, "UPDATE tenantfair_policy SET scan_ring_position = 5", "COMMIT")
        assert result(write).cap == 3

    assert (Policy.objects.get().max_active, Policy.objects.get().scan_ring_position) == (3, 5)


@pytest.mark.conformance(136)
@pytest.mark.django_db(transaction=True)
def test_an_override_waits_for_the_claim_that_holds_the_partition(initialised: None) -> None:
    policy.put_override("acme", 3)
    with sessions() as session:
        claim, observer = session(), session()
        script(claim, "BEGIN", "SELECT FROM tenantfair_partition FOR NO KEY UPDATE")
        write = in_django_thread(lambda: policy.put_override("acme", 1))
        until_someone_waits_for(claim, observer)
        script(claim, "UPDATE tenantfair_partition SET admission_epoch = 5", "COMMIT")
        assert result(write).version == 2

    assert (Partition.objects.get().max_active, Partition.objects.get().admission_epoch) == (1, 5)


@pytest.mark.django_db(transaction=True)
def test_of_concurrent_writes_that_expect_one_version_exactly_one_succeeds(initialised: None) -> None:
    outcomes = all_at_once(
        [lambda cap=cap: policy.put_override("acme", cap, expected_version=0) for cap in range(1, 5)]
    )

    (won,) = (outcome for outcome in outcomes if isinstance(outcome, policy.Override))
    assert sum(isinstance(outcome, StaleVersion) for outcome in outcomes) == 3
    assert won.version == 1
    assert Partition.objects.get().max_active == won.cap


@pytest.mark.django_db(transaction=True)
def test_cap_changed_tells_of_each_committed_change_once(initialised: None) -> None:
    told: list[dict[str, Any]] = []

    def receive(**kwargs: Any) -> None:
        told.append({key: kwargs[key] for key in ("sender", "using", "scope_key", "cap", "version")})

    cap_changed.connect(receive)
    try:
        policy.put_default(3)
        policy.put_override("acme", 4)
        policy.reset_override("acme")
        with transaction.atomic():
            policy.put_default(5)
            transaction.set_rollback(True)
        with pytest.raises(StaleVersion):
            policy.put_default(6, expected_version=0)
    finally:
        cap_changed.disconnect(receive)

    assert told == [
        {"sender": Policy, "using": "default", "scope_key": None, "cap": 3, "version": 2},
        {"sender": Partition, "using": "default", "scope_key": "acme", "cap": 4, "version": 1},
        {"sender": Partition, "using": "default", "scope_key": "acme", "cap": None, "version": 2},
    ]


@pytest.mark.django_db(transaction=True)
def test_a_failing_receiver_of_cap_changed_undoes_nothing(
    initialised: None, caplog: pytest.LogCaptureFixture
) -> None:
    def receive(**_: Any) -> None:
        raise RuntimeError("no")

    cap_changed.connect(receive)
    try:
        policy.put_default(3)
    finally:
        cap_changed.disconnect(receive)

    assert policy.get_default().cap == 3
