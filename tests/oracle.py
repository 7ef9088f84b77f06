"""A judge of claims: does a scope wait longer than the published bound? Knows nothing of the package.

A *window* of a target scope opens before the first call at which the target is on the ring and something of
it could be granted, and closes at the target's first grant. With

    A  scopes that get a grant in the window, the target included      H  scopes on the ring
    L  inspections of the target in a row that may fail                S  inspections of a call
    Q  outcomes of a grant

it holds that

    grants to others    <= (L + 1) * (A - 1)
    outcomes of others  <= Q * (L + 1) * (A - 1)
    calls               <= (L + 1) * ((A - 1) + ceil((H - A + 1) / S))

A window in which the ring, the policy, a function or the target's admissibility changes, or a call is
missing, is ineligible, whatever came of it. A trace that no claim can leave behind is refused, with the rule
it breaks. Eligibility comes from the evidence next to the trace, never from what a visit says of itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum

# Laps and ring position: never the same twice while the cursor moves on, also on a ring of one.
Cursor = tuple[int, int]
# Ring position and scope of all scopes with unfinished runs, in order.
Ring = tuple[tuple[int, str], ...]
GRANTS = 32  # after which a call ends


class Rule(StrEnum):
    """What a refused judgement or trace breaks."""

    COHORT_SIZE = "there are 1..H scopes in the cohort"
    VISIT_BUDGET = "a call has at least one visit"
    QUANTUM = "a grant has room for at least one outcome"
    FAILURES = "the number of failures is not negative"
    TARGET = "the target is one of the cohort"
    COHORT = "the cohort is on the ring"
    RING = "ring positions are positive, in order and without duplicates"
    COMMITTED = "only what has committed counts"
    CONTIGUOUS = "a call and a visit begin where the last one ended"
    SUCCESSOR = "a visit goes to the next position of the ring"
    ORDINALS = "visits are numbered from one without a gap"
    BUDGET = "a call makes at most S visits"
    FILLED = "a call ends when its demand is filled or it has made all its grants"
    EARLY_STOP = "an unfilled call makes all its visits"
    GRANT_SIZE = "a grant has 1..Q outcomes and no more than the demand left"
    EPOCH = "a grant moves the epoch by one"
    FAILED_VISIT = "a failed visit has no outcome and moves no epoch"
    EVIDENCE = "the visits agree with the epochs and outcomes in the database"
    OUTSIDER = "no scope outside the cohort gets a grant in the window"
    ROTATION = "a competitor gets one grant at most between two inspections of the target"
    TARGET_FAILURES = "at most L inspections of the target fail in a row"


class Refused(Exception):
    def __init__(self, rule: Rule, where: object = "") -> None:
        super().__init__(f"{rule} ({where})" if where != "" else str(rule))
        self.rule = rule


def _require(holds: object, rule: Rule, where: object = "") -> None:
    if not holds:
        raise Refused(rule, where)


@dataclass(frozen=True)
class Event:
    """What makes the window it falls into ineligible; `ring` and `visits` are what holds from then on."""

    reason: str
    ring: Ring | None = None
    visits: int | None = None


@dataclass(frozen=True)
class Visit:
    ordinal: int
    before: int
    after: int
    scope: str
    disposition: str
    outcomes: int
    epoch_delta: int


@dataclass(frozen=True)
class Call:
    """`epochs` and `outcomes` count per scope what the database holds of the call; `admissible` are the
    scopes that could be granted something just before it. Without `visits` only its trace is unknown."""

    demand: int
    before: Cursor
    after: Cursor
    visits: tuple[Visit, ...] | None
    admissible: Set[str]
    epochs: Mapping[str, int]
    outcomes: Mapping[str, int]
    committed: bool = True


@dataclass(frozen=True)
class Trace:
    """Calls and events in the order of the database, which says too where the cursor began and ended."""

    ring: Ring
    start: Cursor
    entries: Sequence[Call | Event]
    end: Cursor
    visits: int = 32
    quantum: int = 8


@dataclass(frozen=True)
class Counts:
    grants: int
    outcomes: int
    calls: int


class Judgement(StrEnum):
    WITHIN = "within bound"
    BREACH = "breach"
    INELIGIBLE = "ineligible"


@dataclass(frozen=True)
class Verdict:
    judgement: Judgement
    seen: Counts
    bound: Counts | None = None
    reason: str = ""

    @property
    def ratio(self) -> float:
        """The largest share of its bound that one of the counts takes up; 0 without a bound."""
        pairs = zip(vars(self.seen).values(), vars(self.bound or self.seen).values(), strict=True)
        return max(seen / (bound or 1) for seen, bound in pairs) if self.bound else 0.0


def bounds(A: int, H: int, L: int, S: int, Q: int) -> Counts:
    """Return what may go before the target's grant; the calls include the one with it. Raises Refused."""
    _require(1 <= A <= H, Rule.COHORT_SIZE, f"A={A} H={H}")
    _require(L >= 0, Rule.FAILURES, f"L={L}")
    _require(S >= 1, Rule.VISIT_BUDGET, f"S={S}")
    _require(Q >= 1, Rule.QUANTUM, f"Q={Q}")
    grants = (L + 1) * (A - 1)
    return Counts(grants, Q * grants, (L + 1) * (A - 1 + -(-(H - A + 1) // S)))


def compare(seen: Counts, bound: Counts, *, closed: bool = True) -> Verdict:
    """Hold the counts of an eligible window against a bound. One that is still open can only fail."""
    over = seen.grants > bound.grants or seen.outcomes > bound.outcomes or seen.calls > bound.calls
    if over or (not closed and seen.calls == bound.calls):
        return Verdict(Judgement.BREACH, seen, bound)
    if closed:
        return Verdict(Judgement.WITHIN, seen, bound)
    return Verdict(Judgement.INELIGIBLE, seen, reason="the window has not closed")


def check_trace(trace: Trace, target: str, cohort: Set[str], failures: int) -> list[Verdict]:
    """Return the verdict of every window of the target, in order. Raises Refused.

    `cohort` are the scopes that may be granted something in a window, the target included. The bound is that
    of the scopes which were: naming more of them makes nothing easier. `failures` is L.
    """
    bounds(len(cohort), len(trace.ring), failures, trace.visits, trace.quantum)
    _require(target in cohort, Rule.TARGET, target)
    _require(cohort <= {scope for _, scope in trace.ring}, Rule.COHORT)
    return _Judge(trace, target, cohort, failures).verdicts


@dataclass
class _Window:
    """What has been counted since a window opened, and why it is ineligible if it is."""

    size: int
    grants: Counter[str] = field(default_factory=Counter)
    since_target: set[str] = field(default_factory=set)
    outcomes: int = 0
    calls: int = 0
    failures: int = 0
    reason: str = ""


class _Judge:
    window: _Window | None = None

    def __init__(self, trace: Trace, target: str, cohort: Set[str], failures: int) -> None:
        self.target, self.cohort, self.failures = target, cohort, failures
        self.ring, self.visits, self.quantum = _checked(trace.ring), trace.visits, trace.quantum
        self.verdicts: list[Verdict] = []
        cursor = trace.start
        for entry in trace.entries:
            if isinstance(entry, Event):
                self.event(entry)
                continue
            _require(entry.before == cursor, Rule.CONTIGUOUS, f"{entry.before} after {cursor}")
            self.call(entry)
            cursor = entry.after
        _require(cursor == trace.end, Rule.CONTIGUOUS, f"ends at {cursor}, not {trace.end}")
        if self.window:
            self.conclude(self.window, closed=False)

    def event(self, event: Event) -> None:
        self.ring = self.ring if event.ring is None else _checked(event.ring)
        self.visits = self.visits if event.visits is None else event.visits
        self.spoil(event.reason)

    def spoil(self, reason: str) -> None:
        if self.window:
            self.window.reason = self.window.reason or reason

    def call(self, call: Call) -> None:
        _require(call.committed, Rule.COMMITTED)
        # What nobody recorded may have opened a window.
        admissible = call.visits is None or self.target in call.admissible
        if self.window is None and admissible and self.target in self.ring.values():
            self.window = _Window(size=len(self.ring))
        if not admissible:
            self.spoil("the target was not admissible")
        if self.window:
            self.window.calls += 1
        if call.visits is None:
            self.spoil("a call was not recorded")
            if self.window and call.epochs.get(self.target, 0):
                self.conclude(self.window)
            return
        (laps, cursor), left, grants = call.before, call.demand, 0
        epochs: Counter[str] = Counter()
        outcomes: Counter[str] = Counter()
        for ordinal, visit in enumerate(call.visits, 1):
            _require(visit.ordinal == ordinal, Rule.ORDINALS, visit)
            _require(ordinal <= self.visits, Rule.BUDGET, visit)
            _require(left and grants < GRANTS, Rule.FILLED, visit)
            _require(visit.before == cursor, Rule.CONTIGUOUS, visit)
            _check_result(visit, min(self.quantum, left))
            self.count(visit)
            ahead = [place for place in self.ring if place > cursor]
            following = min(ahead or self.ring, default=None)
            _require(visit.after == following and self.ring[following] == visit.scope, Rule.SUCCESSOR, visit)
            laps, cursor = laps + (not ahead), visit.after
            left, grants = left - visit.outcomes, grants + (visit.outcomes > 0)
            epochs[visit.scope] += visit.epoch_delta
            outcomes[visit.scope] += visit.outcomes
        complete = not left or grants == GRANTS or not self.ring or len(call.visits) == self.visits
        _require(complete, Rule.EARLY_STOP, f"{len(call.visits)} of {self.visits} visits")
        _require(call.after == (laps, cursor), Rule.CONTIGUOUS, f"ends at {call.after}, not {(laps, cursor)}")
        durable = Counter(call.epochs), Counter(call.outcomes)
        _require((epochs, outcomes) == durable, Rule.EVIDENCE, durable)

    def count(self, visit: Visit) -> None:
        """Count a visit in the open window, which a grant of the target closes."""
        window = self.window
        if window is None:
            return
        if visit.scope == self.target:
            window.since_target.clear()
            if visit.outcomes:
                self.conclude(window)
                return
            window.failures += 1
            _require(window.failures <= self.failures or window.reason, Rule.TARGET_FAILURES, visit)
        elif visit.outcomes:
            _require(visit.scope in self.cohort or window.reason, Rule.OUTSIDER, visit)
            _require(visit.scope not in window.since_target or window.reason, Rule.ROTATION, visit)
            window.since_target.add(visit.scope)
            window.grants[visit.scope] += 1
            window.outcomes += visit.outcomes

    def conclude(self, window: _Window, *, closed: bool = True) -> None:
        seen = Counts(window.grants.total(), window.outcomes, window.calls)
        verdict = Verdict(Judgement.INELIGIBLE, seen, reason=window.reason)
        if not window.reason:
            bound = bounds(1 + len(window.grants), window.size, self.failures, self.visits, self.quantum)
            verdict = compare(seen, bound, closed=closed)
        self.verdicts.append(verdict)
        self.window = None


def _checked(ring: Ring) -> dict[int, str]:
    """Return the scopes by position."""
    found = dict(ring)
    _require(list(ring) == sorted(found.items()) and min(found, default=1) > 0, Rule.RING, ring)
    _require(len(set(found.values())) == len(found), Rule.RING, ring)
    return found


def _check_result(visit: Visit, most: int) -> None:
    if visit.disposition == "grant":
        _require(1 <= visit.outcomes <= most, Rule.GRANT_SIZE, visit)
        _require(visit.epoch_delta == 1, Rule.EPOCH, visit)
    elif visit.outcomes or visit.epoch_delta:
        raise Refused(Rule.FAILED_VISIT, visit)
