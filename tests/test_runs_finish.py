"""Outcomes: what each writes, in batches of any mixture, and that one bad value spoils only its own run."""

from __future__ import annotations

import logging
import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from tenantfair import payloads, runs
from tenantfair.exceptions import InvalidPayload, InvalidRun, StaleClaim
from tenantfair.models import Run
from tenantfair.runs import _writes, finishing, outcomes
from tenantfair.runs.views import database_now
from tenantfair.sql import load
from tests.factories import LONG_AGO, RunFactory, claim, claimed_lease, policy_in_force, snapshot
from tests.tasks_for_tests import add
from tests.test_payloads import UNSTORABLE

pytestmark = pytest.mark.django_db

ERROR = {"exception_class_path": "builtins.ValueError", "traceback": "ValueError: no"}
COUNTED = {"claim_attempts": 2, "claim_abandons": 3, "failures": 1, "checkpoint_seq": 4}


def after(outcome: runs.Outcome) -> Run:
    """Finish one outcome, which must be accepted, and return the row."""
    run_id = outcome.lease.run_id
    assert runs.finish([outcome]) == {run_id}
    return Run.objects.get(run_id=run_id)


def counts(run: Run) -> tuple[int, int, int, int]:
    return run.claim_attempts, run.claim_abandons, run.failures, run.checkpoint_seq


def is_free(run: Run) -> bool:
    return run.claim_token is None and run.claimed_at is None and run.claimed_by is None


@pytest.mark.conformance(111)
def test_completion_stores_the_result_and_frees_everything() -> None:
    before = database_now("default")
    run = after(runs.Completed(claimed_lease(**COUNTED, state={"kept": 1}), {"sum": [1, (2,)]}))
    assert is_free(run)
    assert (run.status, run.result, run.tenant_admitted_at, run.wake_at) == (
        "completed",
        {"sum": [1, [2]]},
        None,
        None,
    )
    assert counts(run) == (0, 0, 1, 4)
    assert run.state == {"kept": 1}
    assert run.finished_at is not None
    assert before <= run.finished_at == run.updated_at


def test_a_result_of_none_is_completed_too() -> None:
    assert runs.get(after(runs.Completed(claimed_lease(), None)).run_id).result is None


@pytest.mark.conformance(111)
def test_failure_ends_the_run_whatever_retries_are_left() -> None:
    run = after(runs.Failed(claimed_lease(**COUNTED, retry_limit=100), ERROR))
    assert is_free(run)
    assert (run.status, run.tenant_admitted_at, run.wake_at, run.errors) == ("failed", None, None, [ERROR])
    assert counts(run) == (0, 0, 2, 4)
    assert run.finished_at == run.updated_at


@pytest.mark.conformance(111)
def test_a_retry_is_due_after_its_delay_and_counts_one_failure() -> None:
    before = database_now("default")
    run = after(runs.Retry(claimed_lease(**COUNTED), ERROR, timedelta(minutes=5)))
    assert is_free(run)
    assert (run.status, run.tenant_admitted_at, run.finished_at, run.errors) == (
        "running",
        None,
        None,
        [ERROR],
    )
    assert counts(run) == (0, 0, 2, 4)
    assert run.wake_at is not None
    assert before <= run.wake_at - timedelta(minutes=5) <= database_now("default")


@pytest.mark.parametrize(
    ("failures", "status"), [(0, "running"), (2, "running"), (3, "failed"), (9, "failed")]
)
def test_a_retry_past_the_limit_fails(failures: int, status: str) -> None:
    run = after(runs.Retry(claimed_lease(failures=failures, retry_limit=3), ERROR, timedelta(0)))
    assert (run.status, run.failures, run.errors) == (status, failures + 1, [ERROR])
    assert (run.finished_at is None) is (status == "running")


def test_a_retry_limit_of_zero_fails_at_once() -> None:
    assert after(runs.Retry(claimed_lease(retry_limit=0), ERROR)).status == "failed"


def test_progress_never_resets_the_failures() -> None:
    policy_in_force()
    run_id = runs.enqueue(add, tenant_id="acme", retry_limit=1)
    runs.finish([runs.Retry(claim().leases[0], ERROR, timedelta(0))])
    lease = claim().leases[0]
    runs.checkpoint(lease, {"far": 1})
    runs.finish([runs.Yielded(lease)])
    runs.finish([runs.Retry(claim().leases[0], ERROR, timedelta(0))])
    assert (runs.get(run_id).state, runs.get(run_id).failures) == ("failed", 2)


@pytest.mark.conformance(110)
def test_yielding_keeps_the_place_and_is_due_at_once() -> None:
    before = database_now("default")
    run = after(runs.Yielded(claimed_lease(**COUNTED, state=1)))
    assert is_free(run)
    assert (run.status, run.tenant_admitted_at, run.state) == ("running", LONG_AGO, 1)
    assert counts(run) == (0, 0, 1, 4)
    assert run.wake_at is not None
    assert before <= run.wake_at <= database_now("default")


@pytest.mark.conformance(111)
@pytest.mark.parametrize("until", [datetime(2030, 1, 1, tzinfo=UTC), LONG_AGO])
def test_snoozing_until_a_time_clears_the_place_even_when_it_is_past(until: datetime) -> None:
    run = after(runs.Snoozed(claimed_lease(**COUNTED), until))
    assert is_free(run)
    assert (run.status, run.wake_at, run.tenant_admitted_at) == ("running", until, None)
    assert counts(run) == (0, 0, 1, 4)


@pytest.mark.conformance(111)
def test_snoozing_for_a_delay_is_counted_by_the_database() -> None:
    before = database_now("default")
    run = after(runs.Snoozed(claimed_lease(), delay=timedelta(hours=1), state={"n": 1}))
    assert run.wake_at is not None
    assert before <= run.wake_at - timedelta(hours=1) <= database_now("default")
    assert (run.state, run.checkpoint_seq, run.tenant_admitted_at) == ({"n": 1}, 1, None)


@pytest.mark.conformance(111)
def test_waiting_clears_place_and_due_time() -> None:
    run = after(runs.Waiting(claimed_lease(**COUNTED), state=None))
    assert is_free(run)
    assert (run.status, run.wake_at, run.tenant_admitted_at, run.finished_at) == ("waiting", None, None, None)
    assert counts(run) == (0, 0, 1, 5)


@pytest.mark.parametrize(
    ("pending", "consumed", "status", "left"),
    [
        ([], 0, "waiting", []),
        (["a"], 0, "running", ["a"]),
        (["a"], 1, "waiting", []),
        (["a", "b", "c"], 2, "running", ["c"]),
        (["a"], 5, "waiting", []),
    ],
)
def test_a_wait_with_a_signal_left_is_queued_at_once(
    pending: list[str], consumed: int, status: str, left: list[str]
) -> None:
    run = after(runs.Waiting(claimed_lease(pending_signals=pending), consumed=consumed))
    assert (run.status, run.pending_signals, run.tenant_admitted_at) == (status, left, None)
    assert runs.get(run.run_id).state == ("queued" if status == "running" else "waiting")


@pytest.mark.parametrize("kind", [runs.Yielded, runs.Snoozed])
def test_consumed_signals_are_dropped_by_every_parting(kind: Any) -> None:
    delay = {"delay": timedelta(0)} if kind is runs.Snoozed else {}
    run = after(kind(claimed_lease(pending_signals=["a", "b"]), consumed=1, **delay))
    assert run.pending_signals == ["b"]


@pytest.mark.conformance(113)
def test_releasing_a_started_run_keeps_place_and_spent_attempt() -> None:
    before = Run.objects.get(run_id=(lease := claimed_lease(**COUNTED)).run_id)
    run = after(runs.Released(lease, started=True))
    assert is_free(run)
    assert (run.status, run.tenant_admitted_at) == ("running", LONG_AGO)
    assert counts(run) == (2, 3, 1, 4)
    assert (run.worker_ids, run.started_at) == (before.worker_ids, before.started_at)
    assert run.updated_at == before.updated_at


@pytest.mark.conformance(113)
def test_releasing_an_unstarted_run_gives_the_attempt_back() -> None:
    run = after(runs.Released(claimed_lease(**COUNTED), started=False))
    assert is_free(run)
    assert (run.status, run.tenant_admitted_at) == ("running", LONG_AGO)
    assert counts(run) == (1, 3, 1, 4)
    assert (run.worker_ids, run.started_at, run.last_attempted_at) == ([], None, None)


def test_giving_a_later_start_back_keeps_the_first() -> None:
    run = after(runs.Released(claimed_lease(worker_ids=["a", "b"]), started=False))
    assert (run.worker_ids, run.started_at) == (["a"], LONG_AGO)


def test_a_claim_and_its_release_leave_the_run_as_new() -> None:
    policy_in_force()
    run_id = runs.enqueue(add, tenant_id="acme")
    for _ in range(7):
        runs.finish([runs.Released(claim().leases[0], started=False)])
    run = runs.get(run_id)
    assert (run.state, run.claim_attempts, run.worker_ids, run.started_at) == ("ready", 0, [], None)


@pytest.mark.conformance(114)
def test_abandoning_gives_the_attempt_back_and_clears_the_place() -> None:
    before = Run.objects.get(run_id=(lease := claimed_lease(**COUNTED)).run_id)
    run = after(runs.Abandoned(lease, "no module named x"))
    assert is_free(run)
    assert (run.status, run.tenant_admitted_at) == ("running", None)
    assert counts(run) == (1, 4, 1, 4)
    assert (run.worker_ids, run.started_at, run.updated_at) == ([], None, before.updated_at)
    assert run.errors == [{"exception_class_path": "builtins.ImportError", "traceback": "no module named x"}]


@pytest.mark.conformance(115)
def test_abandoning_backs_off_from_30_s_to_an_hour_and_never_poisons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    policy_in_force(max_attempts=1)
    run_id = runs.enqueue(add, tenant_id="acme")
    delays = []
    for _ in range(9):
        lease = claim().leases[0]
        before = database_now("default")
        run = after(runs.Abandoned(lease, "unknown task"))
        assert run.wake_at is not None
        delays.append(round((run.wake_at - before).total_seconds()))
        assert run.poisoned_at is None
        Run.objects.filter(run_id=run_id).update(wake_at=LONG_AGO)
    assert delays == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert len(run.errors) == 1
    lease = claim().leases[0]
    runs.checkpoint(lease, None)
    assert runs.get(run_id).claim_abandons == 0


@pytest.mark.parametrize("times", [0, 1, 5, 30, 10_000, 2**31])
def test_back_off_is_jittered_and_bounded(times: int) -> None:
    for _ in range(50):
        assert (
            timedelta(0)
            <= outcomes.retry_backoff(times)
            <= min(timedelta(hours=1), timedelta(seconds=5 * 2 ** min(times, 20)))
        )
        bound = min(timedelta(hours=1), timedelta(seconds=30 * 2 ** min(times, 20)))
        assert bound / 2 <= outcomes.abandon_backoff(times) <= bound


def test_back_off_is_spread_over_its_whole_range() -> None:
    retries = [outcomes.retry_backoff(0) for _ in range(100)]
    assert min(retries) < timedelta(seconds=2) < timedelta(seconds=3) < max(retries)
    abandons = [outcomes.abandon_backoff(0) for _ in range(100)]
    assert min(abandons) < timedelta(seconds=20) < timedelta(seconds=25) < max(abandons)


@pytest.mark.conformance(109)
def test_a_checkpoint_keeps_claim_and_place_and_starts_attempts_anew() -> None:
    lease = claimed_lease(**COUNTED)
    before = database_now("default")
    assert runs.checkpoint(lease, {"page": 1}) == 5
    run = Run.objects.get(run_id=lease.run_id)
    assert (run.claim_token, run.tenant_admitted_at, run.state) == (lease.claim_token, LONG_AGO, {"page": 1})
    assert counts(run) == (0, 0, 1, 5)
    assert run.claimed_at is not None
    assert before <= run.claimed_at <= database_now("default")


def test_checkpoints_move_the_fence() -> None:
    lease = claimed_lease()
    later = lease._replace(checkpoint_seq=runs.checkpoint(lease, 1))
    with pytest.raises(StaleClaim):
        runs.checkpoint(lease, 2)
    assert runs.checkpoint(later, 3) == 2
    assert runs.finish([runs.Snoozed(lease, delay=timedelta(0), state=4)]) == set()
    assert runs.finish([runs.Completed(lease, 5)]) == {lease.run_id}
    assert Run.objects.get(run_id=lease.run_id).state == 3


@pytest.mark.conformance(113)
def test_heartbeats_keep_claim_and_place_and_never_move_back() -> None:
    ahead = datetime(2099, 1, 1, tzinfo=UTC)
    late, early = claimed_lease(), claimed_lease(claimed_at=ahead)
    before = database_now("default")
    assert runs.heartbeat([late, early]) == {late.run_id, early.run_id}
    run = Run.objects.get(run_id=late.run_id)
    assert run.claimed_at is not None
    assert before <= run.claimed_at <= database_now("default")
    assert (run.claim_token, run.tenant_admitted_at, run.claim_attempts) == (late.claim_token, LONG_AGO, 1)
    assert Run.objects.get(run_id=early.run_id).claimed_at == ahead


def test_heartbeats_name_the_leases_that_hold() -> None:
    held, lost, gone = claimed_lease(), claimed_lease(), claimed_lease()
    runs.cancel(lost.run_id)
    Run.objects.filter(run_id=gone.run_id).delete()
    assert runs.heartbeat([held, lost, gone]) == {held.run_id}
    assert runs.heartbeat([]) == set()


def test_a_mixed_batch_is_one_statement_with_one_result_per_run(django_assert_num_queries: Any) -> None:
    leases = [claimed_lease(tenant_id=f"t{number % 3}") for number in range(9)]
    stale = leases[8]._replace(claim_token=RunFactory.build(claimed=True).claim_token)
    batch: list[runs.Outcome] = [
        runs.Completed(leases[0], 1),
        runs.Retry(leases[1], ERROR),
        runs.Failed(leases[2], ERROR),
        runs.Yielded(leases[3], state=1),
        runs.Snoozed(leases[4], delay=timedelta(days=1)),
        runs.Waiting(leases[5]),
        runs.Released(leases[6], started=False),
        runs.Abandoned(leases[7], "why"),
        runs.Completed(stale, 1),
    ]
    with django_assert_num_queries(3):  # a savepoint around it, since this test is a transaction
        accepted = runs.finish(batch)
    assert accepted == {lease.run_id for lease in leases[:8]}
    assert [runs.get(lease.run_id).state for lease in leases] == [
        "completed",
        "scheduled",
        "failed",
        "ready",
        "scheduled",
        "waiting",
        "ready",
        "scheduled",
        "claimed",
    ]


def test_an_empty_batch_is_no_statement(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert runs.finish([]) == set()


def test_repeating_a_batch_changes_nothing() -> None:
    lease = claimed_lease()
    batch = [runs.Retry(lease, ERROR, timedelta(0))]
    assert runs.finish(batch) == {lease.run_id}
    before = snapshot(lease.run_id)
    assert runs.finish(batch) == set()
    assert snapshot(lease.run_id) == before


def test_the_first_of_two_outcomes_for_one_run_counts() -> None:
    lease = claimed_lease()
    assert runs.finish([runs.Completed(lease, 1), runs.Failed(lease, ERROR)]) == {lease.run_id}
    assert runs.get(lease.run_id).state == "completed"


def test_the_last_ten_errors_are_kept() -> None:
    errors = [{**ERROR, "traceback": str(number)} for number in range(10)]
    run = after(runs.Retry(claimed_lease(errors=errors, retry_limit=99), {**ERROR, "traceback": "10"}))
    assert [error["traceback"] for error in run.errors] == [str(number) for number in range(1, 11)]


@pytest.mark.parametrize("value", UNSTORABLE.values(), ids=UNSTORABLE.keys())
def test_an_unstorable_result_fails_its_run_and_no_other(value: object) -> None:
    bad, good = claimed_lease(), claimed_lease()
    assert runs.finish([runs.Completed(bad, value), runs.Completed(good, 1)]) == {bad.run_id, good.run_id}
    run = Run.objects.get(run_id=bad.run_id)
    assert is_free(run)
    assert (run.status, run.tenant_admitted_at, run.result) == ("failed", None, None)
    assert run.errors[0]["exception_class_path"] == "tenantfair.exceptions.InvalidPayload"
    assert len(str(run.errors)) < 10_000
    assert runs.get(good.run_id).result == 1


@pytest.mark.parametrize("kind", [runs.Yielded, runs.Waiting])
def test_an_unstorable_state_fails_its_run(kind: Any) -> None:
    lease = claimed_lease(state=1)
    assert after(kind(lease, state=float("nan"))).status == "failed"
    assert Run.objects.get(run_id=lease.run_id).state == 1


@pytest.mark.conformance(119)
def test_an_unstorable_checkpoint_is_refused_and_leaves_everything() -> None:
    lease = claimed_lease()
    before = snapshot(lease.run_id)
    with pytest.raises(InvalidPayload):
        runs.checkpoint(lease, "\ud800")
    assert snapshot(lease.run_id) == before


def test_an_error_text_of_any_kind_is_stored_bounded() -> None:
    record = {"exception_class_path": "x" * 10_000, "traceback": "a\x00\ud800" + "x" * 1_000_000}
    run = after(runs.Failed(claimed_lease(), record))
    assert len(run.errors[0]["traceback"].encode()) <= 8192
    run = after(runs.Abandoned(claimed_lease(), "a\x00\ud800" * 1_000_000))
    assert run.status == "running"


def test_results_up_to_the_limit_are_stored() -> None:
    wide = "x" * (256 * 1024 - 2)
    leases = [claimed_lease() for _ in range(4)]
    assert runs.finish([runs.Completed(lease, wide) for lease in leases]) == {
        lease.run_id for lease in leases
    }
    assert runs.get(leases[3].run_id).result == wide


def test_values_the_database_refuses_end_their_own_run_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever slips past the checks: jsonb is the judge."""
    monkeypatch.setattr(payloads, "encode", lambda value, what: '"\\u0000"' if value == "bad" else "1")
    leases = [claimed_lease() for _ in range(3)]
    batch = [
        runs.Completed(leases[0], "good"),
        runs.Completed(leases[1], "bad"),
        runs.Yielded(leases[2], "bad"),
    ]
    assert runs.finish(batch) == {lease.run_id for lease in leases}
    assert [runs.get(lease.run_id).state for lease in leases] == ["completed", "failed", "failed"]
    run = Run.objects.get(run_id=leases[1].run_id)
    assert is_free(run)
    assert (run.tenant_admitted_at, run.failures) == (None, 1)
    assert "refused" in run.errors[0]["traceback"]


@pytest.mark.parametrize("sqlstate", ["TF001", "55000", "21000", "P0001", "23514"])
def test_what_a_trigger_of_the_hosts_refuses_for_its_result_ends_its_own_run_failed(sqlstate: str) -> None:
    leases = [claimed_lease() for _ in range(3)]
    with connection.cursor() as cursor:
        cursor.execute(f"""
            CREATE FUNCTION pg_temp.refuse() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE EXCEPTION 'not this' USING ERRCODE = '{sqlstate}'; END $$;
            CREATE TRIGGER host_refuses BEFORE UPDATE ON tenantfair_run FOR EACH ROW
                WHEN (NEW.result = '"bad"') EXECUTE FUNCTION pg_temp.refuse();
        """)
    batch = [runs.Completed(lease, value) for lease, value in zip(leases, [1, "bad", 2], strict=True)]
    assert runs.finish(batch) == {lease.run_id for lease in leases}
    assert [runs.get(lease.run_id).state for lease in leases] == ["completed", "failed", "completed"]


def test_a_value_that_raises_while_it_is_read_ends_its_own_run_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def encode(value: object, what: str) -> str:
        if value == "bad":
            raise RuntimeError("dictionary changed size during iteration")
        return "1"

    monkeypatch.setattr(payloads, "encode", encode)
    leases = [claimed_lease() for _ in range(2)]
    batch = [runs.Completed(leases[0], "bad"), runs.Completed(leases[1], "good")]
    assert runs.finish(batch) == {lease.run_id for lease in leases}
    assert [runs.get(lease.run_id).state for lease in leases] == ["failed", "completed"]
    assert runs.get(leases[0].run_id).errors[0]["exception_class_path"] == "builtins.RuntimeError"


def test_the_last_resort_is_fenced_too() -> None:
    """A fence that is lost between the refusal and the last resort."""
    lease = claimed_lease()
    Run.objects.filter(run_id=lease.run_id).update(claim_token=uuid.uuid4())
    before = snapshot(lease.run_id)
    with connection.cursor() as cursor:
        params = {"run_id": lease.run_id, "claim_token": lease.claim_token, "bounded": False}
        cursor.execute(load("fail_run"), params)
        assert cursor.fetchall() == []
    assert snapshot(lease.run_id) == before


@pytest.mark.parametrize("text", ["\ud800", "a\x00"])
def test_text_that_the_driver_refuses_ends_its_own_run_failed(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "encode", lambda value, what: text if value == "bad" else "1")
    leases = [claimed_lease() for _ in range(2)]
    batch = [runs.Completed(leases[0], "bad"), runs.Completed(leases[1], "good")]
    assert runs.finish(batch) == {lease.run_id for lease in leases}
    assert [runs.get(lease.run_id).state for lease in leases] == ["failed", "completed"]


def test_a_trigger_of_the_hosts_that_refuses_strands_no_neighbour(caplog: pytest.LogCaptureFixture) -> None:
    leases = [claimed_lease(tenant_id=tenant) for tenant in ("a", "refused", "b")]
    with connection.cursor() as cursor:
        cursor.execute("""
            CREATE FUNCTION pg_temp.refuse() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE EXCEPTION 'not with me'; END $$;
            CREATE TRIGGER host_refuses BEFORE UPDATE ON tenantfair_run FOR EACH ROW
                WHEN (NEW.tenant_id = 'refused') EXECUTE FUNCTION pg_temp.refuse();
        """)
    with caplog.at_level(logging.ERROR, "tenantfair.runs"):
        accepted = runs.finish([runs.Completed(lease, 1) for lease in leases])
    assert accepted == {leases[0].run_id, leases[2].run_id}
    assert runs.get(leases[1].run_id).state == "claimed"
    (record,) = caplog.records
    assert record.event == "outcome_refused"


def test_errors_that_are_not_about_data_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import ProgrammingError

    lease = claimed_lease()
    monkeypatch.setattr(finishing, "load", lambda name: "SELECT missing")
    with pytest.raises(ProgrammingError), transaction.atomic():
        runs.finish([runs.Completed(lease, 1)])
    assert runs.get(lease.run_id).state == "claimed"


@pytest.mark.parametrize(
    "make",
    [
        lambda lease: runs.Retry(lease, ERROR, timedelta(seconds=-1)),
        lambda lease: runs.Retry(lease, ERROR, timedelta.max),
        lambda lease: runs.Retry(lease, ERROR, 10**12),
        lambda lease: runs.Retry(lease, ERROR, float("nan")),
        runs.Snoozed,
        lambda lease: runs.Snoozed(lease, LONG_AGO, timedelta(0)),
        lambda lease: runs.Snoozed(lease, datetime(2030, 1, 1)),
        lambda lease: runs.Snoozed(lease, timedelta(0)),
        lambda lease: runs.Snoozed(lease, delay=timedelta.max),
        lambda lease: runs.Waiting(lease, consumed=-1),
        lambda lease: runs.Yielded(lease, consumed=True),
    ],
)
def test_an_outcome_that_cannot_be_is_not_made(make: Any) -> None:
    with pytest.raises(InvalidRun):
        make(claimed_lease())


def test_no_outcome_shows_payload_or_token() -> None:
    lease = claimed_lease(args=["secret"])
    for outcome in (
        runs.Completed(lease, "secret"),
        runs.Failed(lease, {"traceback": "secret"}),
        runs.Yielded(lease, "secret"),
    ):
        assert "secret" not in repr(outcome)
        assert str(lease.claim_token) not in repr(outcome)


def test_every_outcome_has_its_row() -> None:
    lease = claimed_lease()
    kinds = {
        _writes.write(outcome).kind
        for outcome in (
            runs.Completed(lease, 1),
            runs.Failed(lease, ERROR),
            runs.Retry(lease, ERROR),
            runs.Yielded(lease),
            runs.Snoozed(lease, delay=timedelta(0)),
            runs.Waiting(lease),
            runs.Released(lease, started=True),
            runs.Released(lease, started=False),
            runs.Abandoned(lease, "x"),
        )
    }
    assert len(kinds) == 9
