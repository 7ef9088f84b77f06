"""`manage.py tenantfair_prune`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from tenantfair import policy
from tenantfair.management.commands.tenantfair_prune import age, positive
from tenantfair.models import Run
from tests.domains import scratch_alias, scratch_domain

pytestmark = pytest.mark.django_db(transaction=True)

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def finished_run(status: str = "completed", *, at: datetime = LONG_AGO, using: str = "default") -> Run:
    return Run.objects.using(using).create(tenant_id="acme", task_path="t.t", status=status, finished_at=at)


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("tenantfair_prune", *arguments, stdout=out)
    return out.getvalue()


def kept() -> set[int]:
    return set(Run.objects.values_list("pk", flat=True))


def test_old_finished_runs_go_and_everything_else_stays() -> None:
    for status in ("completed", "failed", "cancelled"):
        finished_run(status)
    young = finished_run(at=datetime.now(UTC) - timedelta(days=6))
    waiting = Run.objects.create(tenant_id="acme", task_path="t.t", status="waiting", enqueued_at=LONG_AGO)
    queued = Run.objects.create(tenant_id="acme", task_path="t.t", wake_at=LONG_AGO)
    poisoned = Run.objects.create(
        tenant_id="acme", task_path="t.t", poisoned_at=LONG_AGO, poison_reason="test"
    )

    output = run("--older-than", "7d")

    assert output == "deleted 3 finished runs; 0 protected by other tables\n"
    assert kept() == {young.pk, waiting.pk, queued.pk, poisoned.pk}
    assert policy.inspect_many(["acme"])["acme"].unfinished == 3


def test_a_dry_run_counts_and_deletes_nothing() -> None:
    finished_run()

    assert (
        run("--older-than", "7d", "--dry-run")
        == "would delete 1 finished runs; 0 protected by other tables\n"
    )
    assert len(kept()) == 1


def test_runs_that_a_foreign_key_protects_are_skipped_and_counted() -> None:
    runs = [finished_run() for _ in range(5)]
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE host_note (run_id bigint REFERENCES tenantfair_run (id))")
        cursor.execute("INSERT INTO host_note VALUES (%s)", [runs[2].pk])
    try:
        document = json.loads(run("--older-than", "7d", "--batch-size", "2", "--format", "json"))
        left = kept()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE host_note")

    assert document == {"deleted": 4, "protected": 1, "dry_run": False}
    assert left == {runs[2].pk}


def test_another_database_is_pruned_when_asked_for() -> None:
    finished_run()
    with scratch_domain("tf_prune") as alias:
        finished_run(using=alias)

        run("--older-than", "7d", "--database", alias)

        assert not Run.objects.using(alias).exists()
    assert len(kept()) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", timedelta(seconds=90)),
        ("5m", timedelta(minutes=5)),
        ("12h", timedelta(hours=12)),
        ("7d", timedelta(days=7)),
        ("4w", timedelta(weeks=4)),
        ("0d", timedelta()),
    ],
)
def test_an_age_is_a_number_and_a_unit(text: str, expected: timedelta) -> None:
    assert age(text) == expected


@pytest.mark.parametrize("text", ["7", "d", "-7d", "7 d", "7y", "1.5d", "", "7dd", "99999w", "٧d"])  # noqa: RUF001
def test_anything_else_is_no_age(text: str) -> None:
    with pytest.raises(CommandError, match=r"no age|100 years|expected one argument"):
        run("--older-than", text)


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", ""])
def test_a_batch_size_is_a_positive_integer(text: str) -> None:
    with pytest.raises(CommandError):
        run("--older-than", "7d", "--batch-size", text)


def test_a_batch_size_in_range_is_taken() -> None:
    assert positive("1000") == 1000


def test_a_batch_that_is_too_large_exits_2() -> None:
    with pytest.raises(CommandError) as caught:
        run("--older-than", "7d", "--batch-size", "1000000")

    assert caught.value.returncode == 2


def test_an_age_has_to_be_named() -> None:
    finished_run()

    with pytest.raises(CommandError, match="--older-than"):
        run()

    assert len(kept()) == 1


def test_a_database_without_the_tables_exits_78() -> None:
    with scratch_alias("tf_prune") as alias, pytest.raises(CommandError) as caught:
        run("--older-than", "7d", "--database", alias)

    assert caught.value.returncode == 78


@pytest.mark.parametrize("older_than", ["7d", timedelta(days=7)])
def test_python_code_gives_an_age_as_text_or_as_a_timedelta(older_than: str | timedelta) -> None:
    finished_run()
    young = finished_run(at=datetime.now(UTC) - timedelta(days=6))

    call_command("tenantfair_prune", older_than=older_than, stdout=StringIO())

    assert kept() == {young.pk}


def test_python_code_that_gives_no_age_is_wrong_usage() -> None:
    with pytest.raises(CommandError, match="soon") as caught:
        call_command("tenantfair_prune", older_than="soon")
    assert caught.value.returncode == 2
