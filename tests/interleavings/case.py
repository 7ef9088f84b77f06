"""One meeting of sessions: where it begins, who does what, what may come of it; and the judgement of a
schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tests.interleavings.actors import COMMIT, Aborted, Job
from tests.interleavings.look import Domain
from tests.interleavings.operations import Operation, Told
from tests.interleavings.seen import End, Seen
from tests.interleavings.state import State

# A session that was cancelled, terminated or rolled back by the stage may end with these.
_ABORTS = ("Aborted", "QueryCanceled", "AdminShutdown", "OperationalError", "InterfaceError")


@dataclass(frozen=True)
class Case:
    """`outcomes` are all that may come of it when every session commits; empty, where `rule` alone decides.

    An outcome names what each session was told, "-" for one that did not commit, and how each run stands at
    the end: `r2 | accepted | r1 completed, r2 claimed@A`. `rule` sees what no outcome tells, such as which
    came first. `may_owe` names the scopes whose cap is changed, where debt is right. `is_ring_judged` is
    False where the ring is emptied on the way.
    """

    name: str
    state: State
    sessions: Mapping[str, Operation]
    outcomes: frozenset[str] = frozenset()
    rule: Callable[[Case, Seen], Iterator[str]] | None = None
    may_owe: frozenset[str] = frozenset()
    is_ring_judged: bool = True

    @property
    def title(self) -> str:
        return " / ".join(operation.name for operation in self.sessions.values())

    def outcome(self, seen: Seen) -> str:
        """Return what came of a schedule, as `outcomes` says it."""
        words = [_word(self.sessions[letter], job) for letter, job in seen.jobs.items()]
        return " | ".join([*words, seen.looks[-1].words])

    def judge(self, seen: Seen, first: Domain) -> Iterator[str]:
        """Yield what is wrong with a schedule played from `first`, but for the domain itself."""
        yield from self._errors(seen)
        if self.is_ring_judged:
            yield from _ring(seen, first)
        yield from _leases(seen)
        if self.rule is not None:
            yield from self.rule(self, seen)
        outcome = self.outcome(seen)
        if self.outcomes and seen.done == "".join(self.sessions) and outcome not in self.outcomes:
            yield f"outcome: {outcome}"

    def _errors(self, seen: Seen) -> Iterator[str]:
        for letter, job in seen.jobs.items():
            if job.error is None or isinstance(job.error, Aborted):
                continue
            allowed = self.sessions[letter].errors
            if job.is_aborted:
                allowed += _ABORTS
            names = {type(job.error).__name__, type(job.error.__cause__).__name__}
            if not names & set(allowed):
                yield f"I25 {letter} failed: {type(job.error.__cause__ or job.error).__name__}: {job.error}"


def _word(operation: Operation, job: Job) -> str:
    if job.committed:
        return str(job.result.word)
    if job.error is not None and not job.is_aborted:
        return type(job.error).__name__
    return "-"


def _told(seen: Seen) -> dict[str, Told]:
    """Return what those were told who committed, in the order in which they did."""
    letters = [what[0] for what in seen.trace if what.endswith(":done")]
    return {letter: seen.jobs[letter].result for letter in letters if seen.jobs[letter].committed}


def _ring(seen: Seen, first: Domain) -> Iterator[str]:
    """The cursor goes from call to call without a gap (I18), each epoch with the grants (I19)."""
    cursor, last = first.cursor, seen.looks[-1]
    grants: dict[str, int] = {}
    calls: dict[str, int] = {}
    for letter, told in _told(seen).items():
        for scope in told.scopes:
            grants[scope] = grants.get(scope, 0) + 1
        for scope in set(told.scopes):
            calls[scope] = calls.get(scope, 0) + 1
        if told.call is None:
            continue
        if told.call.before != cursor:
            yield f"I18 {letter} went on from {told.call.before} and the cursor was at {cursor}"
        cursor = told.call.after
        if told.call.inspections and cursor == told.call.before and len(first.ring) > 1:
            yield f"I18 {letter} inspected {told.call.inspections} positions and left the cursor at {cursor}"
        if told.call.inspections > 32 or told.call.outcomes > told.call.demand:
            yield f"I21 {letter} made {told.call.inspections} inspections and {told.call.outcomes} outcomes"
    if last.cursor != cursor:
        yield f"I18 the cursor is at {last.cursor} and the last call left it at {cursor}"
    for scope, row in last.partitions.items():
        epoch = row["epoch"]
        if not calls.get(scope, 0) <= epoch <= grants.get(scope, 0):
            yield f"I19 {scope!r} has epoch {epoch} after {grants.get(scope, 0)} grants"


def _leases(seen: Seen) -> Iterator[str]:
    """No token is given twice, and of one claim at most one outcome is accepted (I4, I15)."""
    told = _told(seen)
    tokens = [claim_token for one in told.values() for _, claim_token, _ in one.leases]
    if len(tokens) != len(set(tokens)):
        yield "I4 one token was given to two claims"
    accepted = [name for one in told.values() for name in one.accepted]
    yield from (
        f"I15 {name} had {accepted.count(name)} outcomes accepted"
        for name in set(accepted)
        if accepted.count(name) > 1
    )


def ends(letters: str, **how: End) -> dict[str, End]:
    """Return an end for each session: COMMIT unless it is named."""
    return {letter: how.get(letter, End(COMMIT)) for letter in letters}
