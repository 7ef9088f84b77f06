"""Enqueueing: whole or not at all, in the caller's transaction, and nothing that cannot be run or stored."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from tenantfair import runs, tenants
from tenantfair.backend import for_tenant
from tenantfair.exceptions import InvalidPayload, InvalidRun, InvalidTenant, RunExists
from tenantfair.models import Partition, Run, Schedule
from tenantfair.runs import NewRun
from tenantfair.runs.views import database_now
from tests.tasks_for_tests import add, decorated, not_a_task

pytestmark = pytest.mark.django_db


def fold() -> None:
    """Let the counters move as they do at commit."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")


def nothing_written() -> bool:
    fold()
    return not Run.objects.exists() and not Partition.objects.exists() and not Schedule.objects.exists()


@pytest.mark.conformance(104)
def test_a_run_arrives_with_its_partition_unmarked_and_counted() -> None:
    wake = datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    run_id = runs.enqueue(add, args=(1,), kwargs={"right": 2}, tenant_id="acme", run_after=wake)
    assert isinstance(run_id, uuid.UUID)
    run = Run.objects.get(run_id=run_id)
    assert (run.tenant_id, run.scope_key, run.task_path) == ("acme", "acme", "tests.tasks_for_tests.add")
    assert (run.args, run.kwargs, run.wake_at) == ([1], {"right": 2}, wake)
    assert (run.tenant_admitted_at, run.claim_attempts, run.failures, run.retry_limit) == (None, 0, 0, 3)
    assert (run.queue_name, run.backend, run.status) == ("default", "default", "running")
    fold()
    assert Partition.objects.get().scope_key == "acme"
    assert Schedule.objects.get().unfinished_count == 1


@pytest.mark.conformance(104)
def test_a_duplicate_id_is_refused_and_the_transaction_lives_on() -> None:
    run_id = runs.enqueue(add, tenant_id="acme")
    with transaction.atomic():
        with pytest.raises(RunExists) as raised:
            runs.enqueue(add, tenant_id="other", run_id=run_id)
        assert raised.value.run_id == run_id
        runs.enqueue(add, tenant_id="acme")
    fold()
    assert Run.objects.count() == 2
    assert [partition.scope_key for partition in Partition.objects.all()] == ["acme"]


@pytest.mark.parametrize("place", [0, 1, 1500])
def test_one_duplicate_leaves_nothing_of_its_batch(place: int) -> None:
    taken = runs.enqueue(add, tenant_id="acme")
    wanted = [NewRun(task=add, tenant_id="other") for _ in range(1600)]
    wanted[place] = NewRun(task=add, tenant_id="other", run_id=str(taken))
    with transaction.atomic():
        with pytest.raises(RunExists) as raised:
            runs.enqueue_many(wanted)
        runs.enqueue(add, tenant_id="acme")
    assert raised.value.run_id == taken
    fold()
    assert Run.objects.filter(tenant_id="other").count() == 0
    assert not Partition.objects.filter(scope_key="other").exists()


def test_refusal_of_the_hosts_own_is_no_duplicate() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE tenantfair_run ADD CONSTRAINT host_refuses CHECK (tenant_id <> 'refused')"
        )
    for enqueue in (runs.enqueue_many, lambda wanted: runs.enqueue(add, tenant_id=wanted[0].tenant_id)):
        with pytest.raises(IntegrityError, match="host_refuses"), transaction.atomic():
            enqueue([NewRun(task=add, tenant_id="refused")])


Shop = Enum("Shop", {"ACME": "acme"}, type=str)
Queue = Enum("Queue", {"DEFAULT": "default"}, type=str)
Limit = Enum("Limit", {"HIGH": 7}, type=int)


@pytest.mark.parametrize(
    "enqueue", [lambda wanted: runs.enqueue(**wanted), lambda wanted: runs.enqueue_many([NewRun(**wanted)])]
)
def test_an_enums_member_is_its_value(enqueue: Callable[[Any], Any]) -> None:
    """Its text is its name, which would be another tenant's."""
    enqueue({"task": add, "tenant_id": Shop.ACME, "queue_name": Queue.DEFAULT, "retry_limit": Limit.HIGH})

    run = Run.objects.get()
    assert (run.tenant_id, run.queue_name, run.retry_limit) == ("acme", "default", 7)
    with tenants.tenant(Shop.ACME):
        assert type(tenants.current_tenant()) is str


def test_an_id_given_twice_in_one_call_is_a_duplicate() -> None:
    twice = uuid.uuid4()
    with pytest.raises(RunExists):
        runs.enqueue_many([NewRun(task=add, tenant_id="acme", run_id=twice)] * 2)
    assert nothing_written()


def test_many_runs_keep_their_order_and_their_differences() -> None:
    wanted = [
        NewRun(task=add, args=[number], tenant_id=f"t{number % 3}", retry_limit=number % 5)
        for number in range(2500)
    ]
    ids = runs.enqueue_many(iter(wanted))
    rows = list(Run.objects.order_by("wake_at", "id"))
    assert [row.run_id for row in rows] == ids
    assert [(row.args, row.tenant_id, row.retry_limit) for row in rows] == [
        (new.args, new.tenant_id, new.retry_limit) for new in wanted
    ]
    fold()
    assert sorted(Schedule.objects.values_list("partition", "unfinished_count")) == [
        ("t0", 834),
        ("t1", 833),
        ("t2", 833),
    ]


def test_many_runs_are_few_statements() -> None:
    with CaptureQueriesContext(connection) as captured:
        runs.enqueue_many(NewRun(task=add, tenant_id="acme") for _ in range(6000))
    assert [query["sql"].split()[0] for query in captured if "tenantfair" not in query["sql"]] == [
        "SAVEPOINT",
        "SELECT",  # the database's clock
        "RELEASE",
    ]
    assert len([query for query in captured if "COPY tenantfair_run" in query["sql"]]) == 2
    assert len(captured) == 5


def test_one_run_is_one_statement(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(1):
        runs.enqueue(add, tenant_id="acme")


ODD_TEXT = ["\\", "\\N", "\\.", "a\\tb\\n", "\\x41", "%s {} '\";--", "\N{SNOWMAN}", "inner space", "NULL"]


def test_many_runs_keep_every_character(settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": "tenantfair.backend.TenantFairBackend", "QUEUES": []}}
    control = ["\t", "a\nb\r", "\x7f", "", "\\u0000", "\ue000"]
    ids = runs.enqueue_many(
        NewRun(task=add, args=[text, control], kwargs={text: [text]}, tenant_id=text, queue_name=text)
        for text in ODD_TEXT
    )
    for run_id, text in zip(ids, ODD_TEXT, strict=True):
        run = Run.objects.get(run_id=run_id)
        assert (run.args, run.kwargs) == ([text, control], {text: [text]})
        assert run.tenant_id == run.scope_key == run.queue_name == text


def test_many_runs_are_due_when_each_says() -> None:
    earliest = datetime.min.replace(tzinfo=UTC)
    latest = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    zoned = datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=-9, minutes=-30)))
    afters = [None, earliest, latest, zoned, timedelta(0), timedelta(days=36_525, microseconds=-1)]
    ids = runs.enqueue_many(NewRun(task=add, tenant_id="acme", run_after=after) for after in afters)
    found = {run.run_id: run for run in Run.objects.all()}
    now = found[ids[0]].enqueued_at
    expected = [now, earliest, latest, zoned, now, now + timedelta(days=36_525, microseconds=-1)]
    assert [found[run_id].wake_at for run_id in ids] == expected
    assert {run.enqueued_at for run in found.values()} == {run.updated_at for run in found.values()} == {now}


def test_a_list_that_changes_while_runs_are_made_is_stored_as_it_was() -> None:
    shared: list[Any] = []

    def growing() -> Iterator[NewRun]:
        for number in range(3):
            shared.append(number)
            yield NewRun(task=add, args=shared, tenant_id="acme")

    ids = runs.enqueue_many(growing())
    assert [runs.get(run_id).args for run_id in ids] == [[0], [0, 1], [0, 1, 2]]


def test_no_runs_are_no_statement(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert runs.enqueue_many([]) == []


UNSTORABLE = [float("nan"), "a\x00", "\ud800", {1}, object(), b"\xff", "x" * 300_000]
INVALID_RUNS: dict[str, dict[str, Any]] = {
    "no task": {"task": not_a_task},
    "a path": {"task": "tests.tasks_for_tests.add"},
    "args is text": {"args": "abc"},
    "args is a set": {"args": {1}},
    "args is None": {"args": None},
    "kwargs is a list": {"kwargs": [1]},
    "kwargs with other keys": {"kwargs": {1: 2}},
    "run_id is no uuid": {"run_id": "one"},
    "run_id is a number": {"run_id": 1},
    "naive time": {"run_after": datetime(2030, 1, 1)},
    "time before year 1": {"run_after": datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))},
    "time after year 9999": {"run_after": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))},
    "delay too long": {"run_after": timedelta.max},
    "negative delay": {"run_after": timedelta(seconds=-1)},
    "delay is a number": {"run_after": 5},
    "no such queue": {"queue_name": "other"},
    "empty queue": {"queue_name": ""},
    "queue is no text": {"queue_name": 1},
    "negative retry limit": {"retry_limit": -1},
    "boolean retry limit": {"retry_limit": True},
    "huge retry limit": {"retry_limit": 32_768},
}


@pytest.mark.conformance(105)
@pytest.mark.parametrize("wrong", INVALID_RUNS.values(), ids=INVALID_RUNS.keys())
def test_what_describes_no_run_is_refused_before_sql(
    wrong: dict[str, Any], django_assert_num_queries: Any
) -> None:
    arguments = {"task": add, "tenant_id": "acme", **wrong}
    with django_assert_num_queries(0):
        with pytest.raises(InvalidRun):
            runs.enqueue(**arguments)
        with pytest.raises(InvalidRun):
            runs.enqueue_many([NewRun(task=add, tenant_id="acme"), NewRun(**arguments)])
    assert nothing_written()


@pytest.mark.conformance(105)
@pytest.mark.parametrize("value", UNSTORABLE, ids=[ascii(value)[:20] for value in UNSTORABLE])
def test_arguments_that_cannot_be_stored_are_refused_before_sql(
    value: object, django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(0):
        with pytest.raises(InvalidPayload, match="args"):
            runs.enqueue(add, args=[value], tenant_id="acme")
        with pytest.raises(InvalidPayload, match="kwargs"):
            runs.enqueue(add, kwargs={"left": value}, tenant_id="acme")
    assert nothing_written()


def test_args_and_kwargs_share_one_limit() -> None:
    half = "x" * (128 * 1024 - 10)
    runs.enqueue(add, args=[half], kwargs={"k": half[:-10]}, tenant_id="acme")
    with pytest.raises(InvalidPayload, match="together"):
        runs.enqueue(add, args=[half], kwargs={"k": half + "x" * 20}, tenant_id="acme")


def test_a_task_that_no_worker_would_find_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.tasks_for_tests.add", not_a_task)
    with pytest.raises(InvalidRun, match="no Task object at"):
        runs.enqueue(add, tenant_id="acme")
    assert nothing_written()


def test_a_decorated_task_is_found() -> None:
    assert runs.get(runs.enqueue(decorated, tenant_id="acme")).task_path == "tests.tasks_for_tests.decorated"


INVALID_TENANTS = [
    "",
    " acme",
    "acme ",
    "a\nb",
    "\u0000",
    "\ud800",
    "e\u0301",
    "x" * 256,
    "\N{SNOWMAN}" * 86,
    1,
    b"acme",
]


@pytest.mark.conformance(106)
@pytest.mark.parametrize("tenant", INVALID_TENANTS, ids=ascii)
def test_a_bad_tenant_id_is_refused_before_sql(tenant: Any, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0), pytest.raises(InvalidTenant):
        runs.enqueue(add, tenant_id=tenant)
    assert nothing_written()


@pytest.mark.conformance(106)
def test_only_the_tenant_argument_decides_the_scope() -> None:
    payload = {"tenant": "evil", "tenant_id": "evil", "scope": "evil", "scope_key": "evil"}
    run_id = runs.enqueue(add, args=[payload], kwargs=payload, tenant_id="acme")
    fold()
    assert runs.get(run_id).tenant_id == "acme"
    assert [partition.scope_key for partition in Partition.objects.all()] == ["acme"]


@pytest.mark.parametrize(
    "tenant", ["a", "x" * 255, "\N{SNOWMAN}" * 85, "\xe9", "'\";--%s{}\\", "inner space"]
)
def test_any_well_formed_tenant_id_is_stored_unchanged(tenant: str) -> None:
    assert runs.get(runs.enqueue(add, tenant_id=tenant)).tenant_id == tenant


def test_no_tenant_is_refused_where_tenants_are_required() -> None:
    with pytest.raises(InvalidTenant, match="TENANTLESS"):
        runs.enqueue(add)
    assert nothing_written()


def test_the_tenantless_scope_is_had_by_name() -> None:
    run_id = runs.enqueue(add, tenant_id=runs.TENANTLESS)
    fold()
    assert Run.objects.get(run_id=run_id).scope_key == ""
    assert runs.get(run_id).tenant_id is None
    assert Partition.objects.get().scope_key == ""


def test_a_task_bound_to_a_tenant_brings_it() -> None:
    assert runs.get(runs.enqueue(for_tenant(add, "acme"))).tenant_id == "acme"
    assert runs.get(runs.enqueue(for_tenant(add, "acme"), tenant_id="other")).tenant_id == "other"
    tasks = [for_tenant(add, "a"), for_tenant(add, "b"), for_tenant(add, runs.TENANTLESS)]
    ids = runs.enqueue_many(NewRun(task=task) for task in tasks)
    assert [runs.get(run_id).tenant_id for run_id in ids] == ["a", "b", None]


def test_tenant_ids_are_refused_where_there_are_no_tenants(settings: Any) -> None:
    settings.TENANTFAIR = {"TENANT_MODE": "none"}
    with pytest.raises(InvalidTenant, match="none"):
        runs.enqueue(add, tenant_id="acme")
    assert nothing_written()
    for tenant in (None, runs.TENANTLESS):
        assert runs.get(runs.enqueue(add, tenant_id=tenant)).tenant_id is None


def test_the_default_is_due_by_the_database_clock_read_once() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(0.01), now()")
        opened = cursor.fetchone()[1]
    before = database_now("default")
    runs.enqueue_many([NewRun(task=add, tenant_id="acme") for _ in range(3)])
    (wake,) = set(Run.objects.values_list("wake_at", flat=True))
    assert opened < before <= wake <= database_now("default")
    (run,) = Run.objects.all()[:1]
    assert run.enqueued_at == run.updated_at == wake


def test_a_delay_is_counted_from_the_database_clock() -> None:
    before = database_now("default")
    run_id = runs.enqueue(add, tenant_id="acme", run_after=timedelta(hours=1))
    wake = runs.get(run_id).wake_at
    assert wake is not None
    assert before + timedelta(hours=1) <= wake <= database_now("default") + timedelta(hours=1)
    assert runs.get(run_id).state == "scheduled"


@pytest.mark.parametrize(
    "moment",
    [
        datetime.min.replace(tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=1))),
        datetime(2000, 1, 1, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
    ],
)
def test_every_time_of_four_digit_years_is_kept(moment: datetime) -> None:
    assert runs.get(runs.enqueue(add, tenant_id="acme", run_after=moment)).wake_at == moment


def test_the_longest_delay_is_storable() -> None:
    run_id = runs.enqueue(add, tenant_id="acme", run_after=timedelta(days=36_525))
    assert runs.get(run_id).state == "scheduled"


def test_the_task_gives_what_the_call_does_not(settings: Any) -> None:
    settings.TASKS = {
        "default": {
            "BACKEND": "tenantfair.backend.TenantFairBackend",
            "QUEUES": ["default", "slow", "slower"],
        }
    }
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    task = add.using(queue_name="slow", run_after=moment)
    run = runs.get(runs.enqueue(task, tenant_id="acme"))
    assert (run.queue_name, run.wake_at) == ("slow", moment)
    run = runs.get(runs.enqueue(task, tenant_id="acme", queue_name="slower", run_after=timedelta(0)))
    assert (run.queue_name, run.state) == ("slower", "queued")
    with pytest.raises(InvalidRun, match="QUEUES"):
        runs.enqueue(task, tenant_id="acme", queue_name="fast")


def test_any_queue_is_fine_where_none_are_named(settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": "tenantfair.backend.TenantFairBackend", "QUEUES": []}}
    assert runs.get(runs.enqueue(add, tenant_id="acme", queue_name="any thing")).queue_name == "any thing"


def test_the_retry_limit_is_the_settings_unless_given(settings: Any) -> None:
    settings.TENANTFAIR = {"RETRY_LIMIT": 7}
    assert runs.get(runs.enqueue(add, tenant_id="acme")).retry_limit == 7
    assert runs.get(runs.enqueue(add, tenant_id="acme", retry_limit=0)).retry_limit == 0


def one() -> None:
    runs.enqueue(add, tenant_id="acme")


def many() -> None:
    runs.enqueue_many([NewRun(task=add, tenant_id="acme")] * 3)


@pytest.mark.conformance(105)
@pytest.mark.parametrize("enqueue", [one, many])
def test_a_savepoint_that_is_rolled_back_leaves_nothing(enqueue: Callable[[], None]) -> None:
    with transaction.atomic():
        enqueue()
        assert Run.objects.exists()
        transaction.set_rollback(True)
    assert nothing_written()
