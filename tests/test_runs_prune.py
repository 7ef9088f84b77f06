"""Pruning: only finished runs, only old ones, batch by batch, around what the host protects."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.db import IntegrityError, connection, models, transaction
from django.db.models import ProtectedError
from django.db.models.signals import post_delete, pre_delete
from django.test.utils import CaptureQueriesContext

from tenantfair import runs
from tenantfair.exceptions import InvalidRun
from tenantfair.models import Partition, Run, Schedule
from tenantfair.runs import PruneResult
from tenantfair.runs.views import database_now
from tests.factories import FINISHED, LONG_AGO, STATES, claimed_lease, run_in
from tests.rows import assert_exact, result, sessions
from tests.threads import in_django_thread

DAY = timedelta(days=1)


@pytest.mark.django_db
@pytest.mark.parametrize("state", STATES)
def test_only_finished_runs_are_pruned(state: str) -> None:
    run_in(state)
    finished = state in FINISHED
    assert runs.prune(older_than=timedelta(0)) == PruneResult(deleted=int(finished), protected=0)
    assert Run.objects.count() == int(not finished)


@pytest.mark.django_db
def test_age_is_measured_by_the_database_clock() -> None:
    now = database_now("default")
    old = run_in("completed", finished_at=now - timedelta(days=2))
    young = run_in("completed", finished_at=now - timedelta(hours=23))
    assert runs.prune(older_than=DAY).deleted == 1
    assert list(Run.objects.all()) == [young]
    assert old.pk != young.pk


@pytest.mark.django_db
def test_partitions_stay() -> None:
    run_in("completed")
    live = run_in("queued")
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    runs.prune(older_than=DAY)
    assert Partition.objects.get().scope_key == "acme"
    assert Schedule.objects.get().unfinished_count == 1
    assert list(Run.objects.all()) == [live]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "wrong",
    [
        {"older_than": 1},
        {"older_than": -DAY},
        {"older_than": timedelta.max},
        {"older_than": DAY, "batch_size": 0},
        {"older_than": DAY, "batch_size": True},
        {"older_than": DAY, "batch_size": 10_001},
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidRun):
        runs.prune(**wrong)


@pytest.mark.django_db(transaction=True)
def test_every_batch_is_committed_by_itself() -> None:
    for number in range(25):
        run_in("completed", finished_at=LONG_AGO + timedelta(seconds=number // 10))
    with CaptureQueriesContext(connection) as captured:
        assert runs.prune(older_than=DAY, batch_size=10) == PruneResult(25, 0)
    statements = [query["sql"] for query in captured if query["sql"].startswith(("DELETE", "COMMIT"))]
    assert [statement.split()[0] for statement in statements] == ["DELETE", "COMMIT"] * 3
    assert not Run.objects.exists()


@pytest.fixture(params=["DEFERRABLE INITIALLY DEFERRED", "NOT DEFERRABLE"])
def notes(request: pytest.FixtureRequest) -> Iterator[str]:
    """A table of the host's whose rows refer to runs, as Django makes them and as others do."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE host_note (run_id bigint REFERENCES tenantfair_run (id) " + request.param + ")"
        )
    yield "host_note"
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE host_note")


def refer(run: Run) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO host_note VALUES (%s)", [run.pk])


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("batch_size", [1, 4, 1_000])
def test_runs_that_the_host_refers_to_are_skipped_and_counted(notes: str, batch_size: int) -> None:
    finished = [run_in("completed") for _ in range(9)]
    kept = [finished[0], finished[5]]
    for run in kept:
        refer(run)
    for _ in range(2):
        assert runs.prune(older_than=DAY, batch_size=batch_size, dry_run=True) == PruneResult(7, 2)
    assert Run.objects.count() == 9
    assert runs.prune(older_than=DAY, batch_size=batch_size) == PruneResult(7, 2)
    assert list(Run.objects.order_by("pk")) == kept
    assert runs.prune(older_than=DAY, batch_size=batch_size) == PruneResult(0, 2)
    with sessions() as connect:
        assert_exact(connect())


@pytest.mark.django_db
def test_pruning_inside_a_transaction_leaves_it_usable() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE host_note (run_id bigint REFERENCES tenantfair_run DEFERRABLE INITIALLY DEFERRED)"
        )
    kept = run_in("completed")
    run_in("failed")
    refer(kept)
    with transaction.atomic():
        assert runs.prune(older_than=DAY) == PruneResult(1, 1)
    assert list(Run.objects.all()) == [kept]
    connection.check_constraints()


@pytest.mark.django_db(transaction=True)
def test_pruning_inside_a_transaction_holds_no_count(notes: str) -> None:
    """What that transaction has enqueued is counted at its commit, as ever."""
    lease = claimed_lease()
    finished = [run_in("completed") for _ in range(2)]
    refer(finished[0])
    with transaction.atomic():
        run_in("scheduled")
        assert runs.prune(older_than=DAY) == PruneResult(1, 1)
        outcome = runs.Completed(lease, 1)
        assert result(in_django_thread(lambda: runs.settle([outcome]))).accepted == {lease.run_id}
    with sessions() as connect:
        assert_exact(connect())


@pytest.mark.django_db(transaction=True)
def test_a_deferred_foreign_key_protects_also_one_with_a_namesake_that_is_not_deferrable() -> None:
    """Names of constraints are unique for a table only."""
    kept, gone = run_in("completed"), run_in("completed")
    with connection.cursor() as cursor:
        for name, timing in (("host_a", "DEFERRABLE INITIALLY DEFERRED"), ("host_b", "NOT DEFERRABLE")):
            cursor.execute(
                f"CREATE TABLE {name} (run_id bigint CONSTRAINT host_run REFERENCES tenantfair_run {timing})"
            )
        cursor.execute("INSERT INTO host_a VALUES (%s)", [kept.pk])
    try:
        assert runs.prune(older_than=DAY) == PruneResult(1, 1)
        assert not Run.objects.filter(pk=gone.pk).exists()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE host_a, host_b")


@pytest.mark.django_db
def test_a_protected_run_is_skipped_and_counted() -> None:
    """As a host's model with PROTECT has it."""
    finished = [run_in("completed") for _ in range(5)]

    def protect(sender: Any, instance: Run, **kwargs: Any) -> None:
        if instance == finished[2]:
            raise ProtectedError("invoiced", {instance})

    pre_delete.connect(protect, sender=Run)
    try:
        assert runs.prune(older_than=DAY) == PruneResult(4, 1)
    finally:
        pre_delete.disconnect(protect, sender=Run)
    assert list(Run.objects.all()) == [finished[2]]


@pytest.fixture
def host_models() -> Iterator[dict[str, type[Any]]]:
    """A model of the host for each way of its to refer to a run, by that way's name."""
    found = {}
    for way in ("CASCADE", "SET_NULL", "PROTECT", "RESTRICT"):
        refers = models.ForeignKey(
            Run, getattr(models, way), null=True, related_name=f"{way.lower()}_notes", db_index=False
        )
        meta = type("Meta", (), {"app_label": "sessions", "db_table": f"host_{way.lower()}"})
        body = {"run": refers, "Meta": meta, "__module__": __name__}
        found[way] = type(f"Host{way.title().replace('_', '')}", (models.Model,), body)
    with connection.schema_editor() as editor:
        for model in found.values():
            editor.create_model(model)
    yield found
    with connection.schema_editor() as editor:
        for model in found.values():
            editor.delete_model(model)
    for way, model in found.items():
        del apps.all_models["sessions"][model._meta.model_name]
        delattr(Run, f"{way.lower()}_notes")
    apps.clear_cache()


@pytest.fixture
def heard() -> Iterator[list[tuple[str, int | None]]]:
    """What signals of deletion tell the host: the class of the object and its key."""
    told: list[tuple[str, int | None]] = []

    def listen(sender: type[Any], instance: Any, **_: Any) -> None:
        told.append((sender.__name__, instance.pk))

    pre_delete.connect(listen)
    post_delete.connect(listen)
    yield told
    pre_delete.disconnect(listen)
    post_delete.disconnect(listen)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("listens", [True, False])
def test_a_dry_run_counts_as_the_real_one_and_the_host_hears_nothing(
    host_models: dict[str, type[Any]], request: pytest.FixtureRequest, listens: bool
) -> None:
    """With listeners Django loads what it deletes, without them it need not: two ways to delete."""
    told = request.getfixturevalue("heard") if listens else []
    for model in host_models.values():
        model.objects.create(run=run_in("completed"))
    run_in("completed")
    before = {way: set(model.objects.values_list("pk", "run_id")) for way, model in host_models.items()}

    assert runs.prune(older_than=DAY, dry_run=True) == PruneResult(deleted=3, protected=2)

    assert told == []
    assert before == {
        way: set(model.objects.values_list("pk", "run_id")) for way, model in host_models.items()
    }
    assert runs.prune(older_than=DAY) == PruneResult(deleted=3, protected=2)
    assert {way: model.objects.filter(run__isnull=False).count() for way, model in host_models.items()} == {
        "CASCADE": 0,
        "SET_NULL": 0,
        "PROTECT": 1,
        "RESTRICT": 1,
    }
    assert {name for name, _ in told} == ({"Run", "HostCascade"} if listens else set())


@pytest.mark.django_db(transaction=True)
def test_a_dry_run_knows_a_foreign_key_behind_what_cascades(
    host_models: dict[str, type[Any]], heard: list[Any]
) -> None:
    held, _ = run_in("completed"), run_in("completed")
    host_models["CASCADE"].objects.create(run=held)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE host_page (note_id bigint REFERENCES host_cascade (id))")
        cursor.execute("INSERT INTO host_page SELECT id FROM host_cascade")
    try:
        assert runs.prune(older_than=DAY, dry_run=True) == PruneResult(deleted=1, protected=1)
        assert heard == []
        assert runs.prune(older_than=DAY) == PruneResult(deleted=1, protected=1)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE host_page")


@pytest.mark.django_db(transaction=True)
def test_a_run_that_somebody_has_locked_is_left_for_next_time() -> None:
    locked, free = run_in("failed"), run_in("failed")
    with sessions() as connect:
        session = connect()
        session.execute("BEGIN")
        session.execute("SELECT FROM tenantfair_run WHERE id = %s FOR NO KEY UPDATE", [locked.pk])
        assert runs.prune(older_than=DAY) == PruneResult(1, 0)
    assert list(Run.objects.all()) == [locked]
    assert free.pk != locked.pk
    assert runs.prune(older_than=DAY) == PruneResult(1, 0)


@pytest.mark.django_db(transaction=True)
def test_all_of_a_tenant_goes_in_one_transaction_that_folds_between() -> None:
    """As the guide to pruning shows it; without the fold the partition is refused."""
    lease = claimed_lease(tenant_id="acme")
    for state in STATES:
        run_in(state, tenant_id="acme")
    stays = run_in("queued", tenant_id="globex")

    with transaction.atomic():
        Run.objects.filter(tenant_id="acme").delete()
        with pytest.raises(IntegrityError), transaction.atomic():
            Partition.objects.filter(scope_key="acme").delete()
        with connection.cursor() as cursor:
            cursor.execute("SELECT tenantfair_fold()")
        Partition.objects.filter(scope_key="acme").delete()

    assert list(Run.objects.all()) == [stays]
    assert [partition.scope_key for partition in Partition.objects.all()] == ["globex"]
    assert [(place.partition_id, place.unfinished_count) for place in Schedule.objects.all()] == [
        ("globex", 1)
    ]
    assert runs.finish([runs.Completed(lease, None)]) == set()
