"""When the dispatcher claims, how much, and for which class; on a real database, in a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError

from tenantfair import claim, metrics
from tenantfair.claim import due_work_exists
from tenantfair.claim.base import Answer, ClaimBatch
from tenantfair.claim.tenant_fair import TenantFair
from tenantfair.exceptions import ClaimUnavailable, InactiveEngine, SchemaMismatch
from tenantfair.models import Policy, Run
from tests.factories import policy_in_force, run_in
from tests.rows import Session, sessions
from tests.threads import until_someone_waits_for
from tests.worker_parts import NEVER, Bench, logging_that_raises, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def counting() -> Iterator[None]:
    policy_in_force()
    metrics.connect()
    metrics.reset()
    yield
    metrics.reset()


def events(name: str) -> float:
    return metrics.snapshot().get(("tenantfair_worker_events_total", (("event", name),)), 0)


@pytest.fixture
def other() -> Iterator[Session]:
    with sessions() as another:
        yield another()


@pytest.fixture
def observer() -> Iterator[Session]:
    with sessions() as another:
        yield another()


class Clock:
    """Stands in for the dispatcher's `time`, and stands still unless the test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tenantfair.worker.dispatcher.time", clock)
    return clock


def hold_policy(session: Session) -> None:
    session.execute("BEGIN")
    session.execute("SELECT FROM tenantfair_policy FOR UPDATE")


@pytest.mark.conformance(164)
def test_full_places_claim_nothing_and_a_freed_one_claims_at_once() -> None:
    for _ in range(4):
        run_in("queued")

    with Bench(places=2) as bench:
        bench.until_launched(2)
        bench.dispatcher.request()
        bench.exit_one()
        bench.until_launched(3)

    assert bench.demands == [2, 1]


@pytest.mark.conformance(165)
def test_any_number_of_requests_during_a_poll_are_one_more_poll(other: Session, observer: Session) -> None:
    other.execute("BEGIN")
    other.execute("LOCK TABLE tenantfair_run IN ACCESS EXCLUSIVE MODE")

    with Bench(places=1) as bench:
        until_someone_waits_for(other, observer)
        for _ in range(200):
            bench.dispatcher.request()
        other.execute("ROLLBACK")
        until(lambda: events("idle") == 2, "the poll in flight and one more have ended")
        # Had there been more of them, they would all come before what this asks for.
        bench.dispatcher.request()
        until(lambda: events("idle") >= 3, "a further request is a further poll")

    assert events("poll") == 3


@pytest.mark.conformance(166)
def test_the_preference_alternates_with_successful_claims_of_one(other: Session) -> None:
    for _ in range(3):
        run_in("ready")
        run_in("claimed")

    with Bench(places=1) as bench:
        bench.until_launched(1)
        bench.exit_one()
        bench.until_launched(2)
        # Neither a refusal nor a claim of two moves it on.
        hold_policy(other)
        bench.exit_one()
        until(lambda: "lock_contention" in bench.results, "a claim is refused")
        other.execute("ROLLBACK")
        bench.until_launched(3)
        bench.places = 3
        bench.dispatcher.request()
        bench.until_launched(5)
        bench.live.clear()
        bench.places = 1
        bench.dispatcher.request()
        bench.until_launched(6)

    assert [lease.work_class for lease in bench.launched[:3]] == [
        "admitted_ready",
        "expired",
        "admitted_ready",
    ]
    assert sorted(lease.work_class for lease in bench.launched[3:5]) == ["admitted_ready", "expired"]
    assert bench.demands[-2:] == [2, 1]
    assert bench.launched[5].work_class == "expired"


@pytest.mark.conformance(166)
def test_the_preference_alternates_through_walks_as_well() -> None:
    """Each lap is three calls, one and then two in one exchange; the third is granted something."""
    for number in range(70):
        run_in("scheduled", tenant_id=f"idle {number}")
    for _ in range(2):
        run_in("ready", tenant_id="last")
        run_in("claimed", tenant_id="last")

    with Bench(places=1) as bench:
        bench.until_launched(1)
        bench.exit_one()
        bench.until_launched(2)
        bench.exit_one()
        bench.until_launched(3)

    assert [lease.work_class for lease in bench.launched] == ["admitted_ready", "expired", "admitted_ready"]


@pytest.mark.conformance(169)
def test_contention_is_waited_out_and_requests_do_not_shorten_the_wait(clock: Clock) -> None:
    """At least 50 ms, then twice as long each time, up to the interval; the later half of each is jitter."""
    dispatcher = Bench(places=1, interval=1.0).dispatcher

    pauses = []
    for _ in range(12):
        dispatcher._refused(ClaimUnavailable("lock_contention", "policy_cursor"))
        dispatcher.request()
        assert dispatcher._earliest == dispatcher._latest
        pauses.append(dispatcher._latest - clock.now)

    longest = [0.1, 0.2, 0.4, 0.8] + [1.0] * 8
    rounding = 1e-9
    assert [
        (pause, at_most)
        for pause, at_most in zip(pauses, longest, strict=True)
        if not at_most / 2 - rounding <= pause <= at_most + rounding
    ] == []


def test_claims_that_are_refused_for_more_than_5_s_are_an_error_once(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason; a claim that succeeds in between begins the count again."""
    bench = Bench(places=1)
    claim_due = claim.claim_due

    def refuse(*_: Any, **__: Any) -> ClaimBatch:
        raise ClaimUnavailable("lock_contention", "policy_cursor")

    def alarms(*, at: float, refused: bool = True) -> list[str]:
        clock.now = 1000.0 + at
        monkeypatch.setattr(claim, "claim_due", refuse if refused else claim_due)
        caplog.clear()
        run_in("queued")
        bench.live.clear()
        bench.dispatcher._poll_safely()
        assert bool(bench.live) is not refused
        return [
            record.getMessage()
            for record in caplog.records
            if (getattr(record, "event", None), record.levelname) == ("claims_refused", "ERROR")
        ]

    alarm = ["Claims have been refused for more than 5 s: lock_contention"]
    assert alarms(at=0) == alarms(at=5) == []
    assert alarms(at=5.1) == alarm
    assert alarms(at=60) == []
    assert alarms(at=61, refused=False) == []
    assert alarms(at=62) == alarms(at=67) == []
    assert alarms(at=67.1) == alarm


@pytest.mark.conformance(169, 172)
def test_a_claim_refused_by_a_held_policy_row_is_made_again_once_it_is_free(other: Session) -> None:
    run_in("queued")
    hold_policy(other)

    with Bench(places=1) as bench:
        until(lambda: bench.results.count("lock_contention") == 2, "claims are refused")
        other.execute("ROLLBACK")
        bench.until_launched(1)

    assert set(bench.results) == {"lock_contention", "ok"}
    contentions = metrics.snapshot()["tenantfair_claim_contentions_total", (("phase", "policy_cursor"),)]
    assert contentions == bench.results.count("lock_contention")


@pytest.mark.conformance(167)
def test_poison_is_reported_and_its_place_is_claimed_for_at_once() -> None:
    for _ in range(3):
        run_in("queued", tenant_id="acme", claim_attempts=5)
    run_in("queued", tenant_id="globex")
    reported = []

    with Bench(
        places=1, report=lambda event, **facts: reported.append((event, facts["run"].tenant_id))
    ) as bench:
        bench.until_launched(1)

    # The second claim goes on along the ring, and what it is granted takes the place.
    assert reported == [("run_poisoned", "acme")]
    assert [lease.tenant_id for lease in bench.launched] == ["globex"]


@pytest.mark.conformance(167)
def test_a_launch_that_failed_is_followed_by_a_pause(clock: Clock) -> None:
    """The run went back with its place, so a claim made at once would only bring it here again."""
    run_in("queued")
    dispatcher = Bench(places=1).dispatcher
    dispatcher._launch = lambda leases, asked_at: 0

    dispatcher._poll_safely()
    dispatcher.request()

    assert dispatcher._earliest == dispatcher._latest
    assert clock.now + 0.05 <= dispatcher._earliest <= clock.now + 0.1


def test_an_unfilled_claim_is_followed_by_others_until_a_lap_is_done() -> None:
    """One poll finds work behind 70 idle scopes, which are more than two budgets."""
    for number in range(70):
        run_in("scheduled", tenant_id=f"idle {number}")
    run_in("queued", tenant_id="last")

    with Bench(places=2) as bench:
        bench.until_launched(1)
        until(
            lambda: events("poll") == 1 and len(bench.demands) >= 3,
            "the lap is walked on for the second place",
        )

    policy = Policy.objects.get()
    assert (policy.scan_laps, policy.scan_ring_position) >= (1, 0)
    assert set(bench.results) == {"ok"}


def test_a_walk_in_vain_goes_on_in_one_exchange_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call looks at 32 idle scopes; what follows, to a lap from where it began, is one question."""
    for number in range(70):
        run_in("scheduled", tenant_id=f"idle {number}")
    run_in("queued", tenant_id="last")
    claimed, ends = claim.claim_due, []

    def claim_due(demand: int, **options: Any) -> ClaimBatch:
        ends.append(options["until"])
        return claimed(demand, **options)

    monkeypatch.setattr(claim, "claim_due", claim_due)
    with Bench(places=2) as bench:
        bench.until_launched(1)

    assert ends == [None, (1, 0)]
    assert len(bench.demands) == 3


def test_nothing_that_could_be_granted_is_no_claim() -> None:
    policy_in_force(max_active=1)
    run_in("scheduled")
    run_in("waiting")
    run_in("claimed", tenant_id="full", claimed_at="2999-01-01T00:00Z")
    run_in("queued", tenant_id="full")
    assert not due_work_exists()

    with Bench(places=2) as bench:
        until(lambda: events("idle") == 1, "the poll ends")

    assert bench.demands == []


def test_a_fruitless_lap_is_followed_by_twenty_times_its_length() -> None:
    dispatcher = Bench(places=1, interval=0.01).dispatcher
    before = time.monotonic()

    dispatcher._regular_pause(3.0)

    assert dispatcher._latest >= before + 60
    assert dispatcher._earliest == 0.0


def test_pauses_are_spread_over_the_whole_interval() -> None:
    dispatcher = Bench(places=1, interval=NEVER).dispatcher
    pauses = set()
    for _ in range(200):
        before = time.monotonic()
        dispatcher._regular_pause(0.0)
        pauses.add(dispatcher._latest - before)

    assert len(pauses) > 100
    assert min(pauses) < NEVER / 4
    assert max(pauses) > NEVER * 3 / 4
    assert max(pauses) <= NEVER + 1


def test_a_policy_that_was_flushed_is_synchronised_again() -> None:
    run_in("queued")
    Policy.objects.all().delete()
    Policy.objects.create()
    bench = Bench(places=1)
    bench.dispatcher._prepare = policy_in_force

    with bench:
        bench.until_launched(1)

    assert bench.results[0] in {"not_initialized", "inactive_engine"}
    assert bench.results[-1] == "ok"


def test_a_domain_of_another_engine_is_fatal() -> None:
    run_in("queued")
    Policy.objects.update(admission_mode="legacy")

    def prepare() -> None:
        raise InactiveEngine("legacy")

    bench = Bench(places=1)
    bench.dispatcher._prepare = prepare
    with bench:
        until(lambda: bench.dispatcher.stopping, "the dispatcher gives up")

    assert isinstance(bench.dispatcher.fatal, InactiveEngine)
    assert Run.objects.get().claim_token is None


def test_a_claim_function_that_answers_in_another_shape_is_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    run_in("queued")

    def another_shape(*_: Any, **__: Any) -> Any:
        return TenantFair().decode(Answer(["row_kind"], [("surprise",)]), demand=1)

    monkeypatch.setattr(claim, "claim_due", another_shape)
    bench = Bench(places=1)
    with bench:
        until(lambda: bench.dispatcher.stopping, "the dispatcher gives up")

    assert isinstance(bench.dispatcher.fatal, SchemaMismatch)


@pytest.mark.parametrize("error", [RuntimeError("no token"), OperationalError("no session")], ids=repr)
def test_a_dispatcher_goes_on_after_any_error_and_whatever_logging_does(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    run_in("queued")
    errors = iter([error])
    claimed = claim.claim_due

    def fail_first(demand: int, **options: Any) -> ClaimBatch:
        if (found := next(errors, None)) is not None:
            raise found
        return claimed(demand, **options)

    monkeypatch.setattr(claim, "claim_due", fail_first)
    with logging_that_raises("tenantfair.worker"), Bench(places=1) as bench:
        until(lambda: bench.launched or bench.ended, "the run is launched")

    assert len(bench.launched) == 1


def test_poison_is_reported_and_others_launched_whatever_logging_does() -> None:
    for tenant in ("acme", "globex"):
        run_in("queued", tenant_id=tenant, claim_attempts=5)
        run_in("queued", tenant_id=tenant)

    with logging_that_raises("tenantfair.worker"), Bench(places=4) as bench:
        until(lambda: len(bench.launched) == 2 or bench.ended, "both are launched")

    assert [lease.tenant_id for lease in bench.launched] == ["acme", "globex"]


def test_a_dispatcher_is_stamped_by_answers_and_not_while_it_waits_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_in("queued")
    failures = []
    bench = Bench(places=1, interval=0.01)

    def fail(alias: str, **_: Any) -> bool:
        failures.append(bench.dispatcher.beat)
        raise OperationalError("the database is away")

    bench.dispatcher.beat = 0.0
    with monkeypatch.context() as patch:
        patch.setattr(claim, "due_work_exists", lambda **_: fail("default"))
        bench.dispatcher._poll_safely()
        bench.dispatcher.request()
        with bench:
            until(lambda: len(failures) > 3, "it has tried again and again")
    assert set(failures) == {0.0}

    answered = Bench(places=1).dispatcher
    answered.beat = 0.0
    answered._poll()
    assert answered.beat > 0.0


def test_full_places_end_no_row_of_failures() -> None:
    """A poll that asked nothing is no answer: the health file must not become fresh by it."""
    dispatcher = Bench(places=0).dispatcher
    dispatcher._back_off()
    dispatcher.beat = 0.0

    dispatcher._poll_safely()
    dispatcher.request()
    assert dispatcher._wait()

    assert dispatcher.beat == 0.0


def test_a_refusal_is_an_answer() -> None:
    dispatcher = Bench(places=1).dispatcher
    dispatcher.beat = 0.0

    dispatcher._refused(ClaimUnavailable("lock_contention", "policy_cursor"))

    assert dispatcher.beat > 0.0
