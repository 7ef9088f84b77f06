"""Rules that only a history can break, judged afterwards from what was written down while it happened.

Knows nothing of the package. `tests/records.py` says what is written down.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations, pairwise
from typing import TypeVar

from tests import oracle
from tests.invariants import Violation
from tests.records import Claimed, Executed, History

Record = TypeVar("Record")

HISTORY = {
    "I13": "executions of one run do not overlap while their leases hold; else one outcome counts",
    "I14": "what was enqueued and committed is there or has ended once, what was rolled back is not",
    "I15": "of a claim's outcomes one is accepted, and of a run's ends one is",
    "I16": "no tenant has more executions in progress than its cap allowed when they were claimed",
    "I17": "a tenant's runs are promoted in the order of (wake_at, id)",
    "I18": "the cursor goes on where it stood, a place at each inspection, and not for what is rolled back",
    "I19": "each grant moves its scope's epoch by one, and nothing else does",
    "I20": "between two inspections of a target a competitor gets one grant; no wait is above its bound",
    "I21": "a call makes at most 32 grants and 256 outcomes, an inspection locks at most 16 rows",
    "I22": "due work with a free slot is granted within its bound",
    "I23": "once faults stop, every claim is live or gone within a lease and two polls",
    "I24": "no deadlock, no lock wait of a claim above 250 ms, no session of ours idle in a transaction",
    "I25": "the server logs no error that is not on the list",
}

MOST_GRANTS, MOST_OUTCOMES, MOST_LOCKED = 32, 256, 16
# Of a claim, in seconds; what it is woken up later than its lock_timeout says is the machine's doing.
LONGEST_LOCK_WAIT, LONGEST_IDLE, SLACK = 0.25, 1.0, 0.25
FINAL = frozenset({"completed", "failed", "cancelled"})


def judge(history: History) -> list[Violation]:
    """Return every violation that the history shows."""
    return [Violation(name, detail) for name, check in CHECKS.items() for detail in check(history)]


def _overlaps(history: History) -> Iterator[str]:
    accepted = {outcome.token for outcome in history.accepted}
    for run, executions in _grouped(history.executed, lambda one: one.run).items():
        for one, other in combinations(sorted(executions, key=lambda each: each.start), 2):
            if one.token == other.token or other.start >= one.end:
                continue
            if one.lease_ok and other.lease_ok:
                yield f"run {run} was executed twice at {other.start}, under {one.token} and {other.token}"
            elif {one.token, other.token} <= accepted:
                yield f"run {run} has outcomes of both {one.token} and {other.token}"


def _vanished(history: History) -> Iterator[str]:
    if history.stored is None:
        return
    for enqueued in history.enqueued:
        is_there = enqueued.run in history.stored
        if enqueued.committed and not is_there and enqueued.run not in history.removed:
            yield f"run {enqueued.run} was enqueued and has vanished"
        if enqueued.committed is False and is_there:
            yield f"run {enqueued.run} was rolled back and is there"
    for run in history.stored.keys() - {enqueued.run for enqueued in history.enqueued}:
        if history.enqueued:
            yield f"run {run} is there and nobody enqueued it"


def _outcomes(history: History) -> Iterator[str]:
    for token, number in Counter(outcome.token for outcome in history.accepted).items():
        if number > 1:
            yield f"claim {token} has {number} accepted outcomes"
    ends = [outcome for outcome in history.accepted if outcome.outcome in FINAL]
    for run, accepted in _grouped(ends, lambda one: one.run).items():
        if len(accepted) > 1 and run not in history.revived:
            yield f"run {run} ended {len(accepted)} times"
        said = {outcome.outcome for outcome in accepted}
        stored = (history.stored or {}).get(run)
        if stored is not None and run not in history.revived and said != {stored}:
            yield f"run {run} ended {said} and is {stored}"


def _overshoots(history: History) -> Iterator[str]:
    caps = {claim.token: claim.cap for claim in history.claimed}
    events: dict[str, list[tuple[float, int, Executed | Claimed]]] = defaultdict(list)
    for one in history.executed:
        if one.lease_ok:
            events[one.tenant].append((one.start, 1, one))
    for claim in history.claimed:
        events[claim.tenant].append((claim.at, 0, claim))
    for tenant, found in events.items():
        running: list[Executed] = []
        for at, _, event in sorted(found, key=lambda each: each[:2]):
            running = [one for one in running if one.end > at]
            if isinstance(event, Executed):
                running.append(event)
                allowed = max((caps[one.token] for one in running if one.token in caps), default=None)
                if allowed is not None and len(running) > allowed:
                    yield f"{tenant!r} had {len(running)} executions at {at}, cap {allowed}"
            # Under a lowered cap older claims go on, but nobody may join them.
            elif event.promoted and len(running) >= event.cap:
                yield f"run {event.run} of {tenant!r} was promoted beside {len(running)}, cap {event.cap}"


def _promotions(history: History) -> Iterator[str]:
    for tenant, promoted in _grouped(history.promoted, lambda one: one.tenant).items():
        for earlier, later in combinations(promoted, 2):
            was_there = later.visible is not None and later.visible < earlier.at
            was_due = later.wake_at <= earlier.at
            if was_there and was_due and (later.wake_at, later.id) < (earlier.wake_at, earlier.id):
                yield f"run {later.run} of {tenant!r} was passed over by {earlier.run}"


def _cursor(history: History) -> Iterator[str]:
    committed = [call for call in history.calls if call.committed]
    for call, following in pairwise(committed):
        if call.after != following.before:
            yield f"a call ended at {call.after}, the next began at {following.before}"
    for call in committed:
        laps, cursor = call.before
        for visit in call.visits:
            if visit.before != cursor:
                yield f"a visit began at {visit.before}, the cursor was at {cursor}"
            laps, cursor = laps + (visit.after <= cursor), visit.after
        if (laps, cursor) != call.after:
            yield f"a call's visits ended at {(laps, cursor)}, it says {call.after}"


def _epochs(history: History) -> Iterator[str]:
    if history.epochs is None:
        return
    granted = Counter(
        visit.scope for call in history.calls if call.committed for visit in call.visits if visit.outcomes
    )
    for scope in granted.keys() | history.epochs.keys():
        if granted[scope] != history.epochs.get(scope, 0):
            yield f"{scope!r} had {granted[scope]} grants, its epoch moved by {history.epochs.get(scope, 0)}"


def _rotation(history: History) -> Iterator[str]:
    visits = [visit for call in history.calls if call.committed for visit in call.visits]
    for target in history.steady:
        since: Counter[str] = Counter()
        for visit in visits:
            if visit.scope == target:
                since.clear()
            elif visit.outcomes:
                since[visit.scope] += 1
                if since[visit.scope] > 1 and visit.scope in history.steady:
                    yield f"{visit.scope!r} had two grants between two inspections of {target!r}"
    for window in history.windows:
        try:
            verdicts = oracle.check_trace(window.trace, window.target, window.cohort, window.failures)
        except oracle.Refused as refused:
            yield f"the trace of {window.target!r} is refused: {refused}"
            continue
        for verdict in verdicts:
            if verdict.judgement is oracle.Judgement.BREACH:
                yield f"{window.target!r} waited for {verdict.seen}, the bound is {verdict.bound}"


def _work(history: History) -> Iterator[str]:
    for call in history.calls:
        grants = sum(visit.outcomes > 0 for visit in call.visits)
        outcomes = sum(visit.outcomes for visit in call.visits)
        locked = max((visit.locked for visit in call.visits), default=0)
        if grants > MOST_GRANTS or outcomes > MOST_OUTCOMES or locked > MOST_LOCKED:
            yield f"a call made {grants} grants, {outcomes} outcomes, locked {locked} rows in one inspection"


def _late(history: History) -> Iterator[str]:
    for due in history.due:
        if due.at is None or due.at - due.since > due.within:
            waited = "for ever" if due.at is None else f"{due.at - due.since:.3f} s"
            yield f"{due.tenant!r} waited {waited}, allowed are {due.within:.3f} s"


def _left(history: History) -> Iterator[str]:
    for held in history.held:
        limit = held.stopped + held.lease + 2 * held.poll
        if not held.is_live and (held.gone is None or held.gone > limit):
            yield f"the claim of run {held.run} was there after {limit - held.stopped:.3f} s"


def _troubles(history: History) -> Iterator[str]:
    for trouble in history.troubles:
        if trouble.sqlstate == "40P01":
            yield "a deadlock"
        if trouble.claim_waited > LONGEST_LOCK_WAIT + SLACK:
            yield f"a claim waited {trouble.claim_waited:.3f} s for a lock"
        if trouble.idle_in_transaction > LONGEST_IDLE:
            yield f"a session was idle in a transaction for {trouble.idle_in_transaction:.3f} s"


def _errors(history: History) -> Iterator[str]:
    for sqlstate, number in Counter(history.logged).items():
        if sqlstate not in history.allowed:
            yield f"{number} errors with SQLSTATE {sqlstate}"


def _grouped(records: Iterable[Record], key: Callable[[Record], str]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[key(record)].append(record)
    return found


CHECKS: dict[str, Callable[[History], Iterator[str]]] = {
    "I13": _overlaps,
    "I14": _vanished,
    "I15": _outcomes,
    "I16": _overshoots,
    "I17": _promotions,
    "I18": _cursor,
    "I19": _epochs,
    "I20": _rotation,
    "I21": _work,
    "I22": _late,
    "I23": _left,
    "I24": _troubles,
    "I25": _errors,
}
