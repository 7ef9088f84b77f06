"""The judge: goes along with the claim calls, opens and closes windows, and holds them against the bound.

A *window* of a scope opens before the first call at whose beginning the scope is on the ring and something
of it could be granted, and closes at its next grant. It is *eligible* if the ring, the caps and the policy
stay as they are, no call is missing and the scope stays grantable all the time. A window that is not, or not
known to be, is counted under its reason, and never passed.

What no claim may do whatever the window is a violation: grants at a place where the cursor has not come by,
more outcomes or calls than there may be, a scope inspected in vain without anybody at work on its runs.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tenantfair.certify.bound import GRANTS, QUANTUM, Counts, bound
from tenantfair.certify.opening import Opening
from tenantfair.certify.ring import Cursor, Ring
from tenantfair.certify.verdict import Call, Grant, Reason, Rule, Violation, Window


class _Lost(Exception):
    """No walk leads to what a call has done: the rule, what was seen, and whose."""


@dataclass
class Judge:
    """Knows what holds before the first call; then it is told of events and calls in their order.

    With `midway` the recording began while others were waiting: the windows at the first call are older.
    """

    ring: Ring
    budget: int
    cursor: Cursor
    failures: int = 0
    quantum: int = QUANTUM
    midway: bool = False
    windows: list[Window] = field(default_factory=list)
    ineligible: Counter[Reason] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    calls: int = 0
    _open: dict[str, Opening] = field(default_factory=dict)
    _stale: set[str] = field(default_factory=set)
    _grants: int = 0
    _outcomes: int = 0
    # The scopes granted something, the last one last, with the number of grants until then.
    _granted: OrderedDict[str, int] = field(default_factory=OrderedDict)
    # Why the walk of the next call is not known, if it is not; the scope that joined, if that is all.
    _unsettled: Reason | None = None
    _newcomer: str | None = None

    def event(
        self,
        reason: Reason,
        *,
        ring: Mapping[int, str] | None = None,
        budget: int | None = None,
        newcomer: str | None = None,
    ) -> None:
        """Something changed before or during the next call, whose walk therefore is not known.

        `newcomer` is the scope whose joining of the ring is all that changed.
        """
        if reason in (Reason.MISSING, Reason.ROLLED_BACK):
            # What nobody saw may have opened a window for anybody.
            for scope in self.ring.scopes.values():
                self._open.setdefault(scope, Opening(reason=reason))
        self._spoil(self._open, reason)
        self.ring = self.ring if ring is None else Ring(ring)
        self.budget = self.budget if budget is None else budget
        self._newcomer = None if self._unsettled else newcomer
        self._unsettled = self._unsettled or reason

    def violation(self, rule: Rule, detail: str, scope: str | None = None) -> None:
        """Note a rule broken at the current call."""
        self.violations.append(Violation(rule, scope, self.calls or None, detail))

    def call(self, call: Call) -> None:
        """Judge one call."""
        self.calls += 1
        if call.before != self.cursor:
            self.event(Reason.MISSING)
        self._open_and_spoil(call)
        self._check_sizes(call)
        visits = None if self._unsettled else self._walk(call)
        if visits is None:
            self._close_blindly(call)
        else:
            self._close(call, visits)
        self.cursor = call.after
        self._unsettled = self._newcomer = None

    def finish(self, cursor: Cursor) -> None:
        """Conclude what is open; `cursor` is where the database says it stands."""
        if cursor != self.cursor:
            self.event(Reason.MISSING)
        for scope, window in self._open.items():
            if not window.stale:
                found = self._measured(scope, window, window.certain)
                if found.seen.calls >= found.limit.calls or not found.holds:
                    self._breach(found, window)
                    continue
            self.ineligible[window.reason or Reason.OPEN] += 1
        self._open.clear()

    def refuse(self, reason: Reason) -> None:
        """No window is eligible after all."""
        self.ineligible[reason] += len(self.windows)
        self.windows.clear()
        self.violations = [found for found in self.violations if found.rule is not Rule.BOUND]

    def _open_and_spoil(self, call: Call) -> None:
        reason = self._unsettled or (Reason.BEGAN if self.midway and self.calls == 1 else None)
        known = self._open.keys()
        for scope in call.admissible - known:
            if scope in self.ring:
                self._open[scope] = Opening(reason=reason)
                self._stale.add(scope)
        self._spoil(known - call.admissible, Reason.NOT_ADMISSIBLE)
        if not self._unsettled:
            self._begin_anew(call)
        for scope in call.dawning:
            if scope in self.ring and scope not in self._open:
                clear = scope == self._newcomer or not self._unsettled
                self._open[scope] = Opening(first=self._totals(), reason=None if clear else self._unsettled)
                self._stale.add(scope)

    def _begin_anew(self, call: Call) -> None:
        """Let the counts begin of windows that have just opened, or that something has spoiled."""
        for scope in self._stale & call.admissible:
            if scope in self.ring:
                window = self._open[scope]
                window.certain, window.failures = self._totals(), 0
                window.first = window.first or window.certain
                window.passes = self.ring.passes(scope, call.before)
                window.stale = False
                self._stale.discard(scope)

    def _spoil(self, scopes: Iterable[str], reason: Reason) -> None:
        for scope in scopes:
            window = self._open[scope]
            window.reason = window.reason or reason
            window.stale = True
            self._stale.add(scope)

    def _check_sizes(self, call: Call) -> None:
        for scope, epochs, outcomes in call.grants:
            if not 1 <= epochs <= outcomes:
                self.violation(Rule.EPOCH, f"{outcomes} outcomes moved it by {epochs}", scope)
            elif outcomes > self.quantum * epochs:
                self.violation(Rule.QUANTUM, f"{outcomes} outcomes in {epochs} grants", scope)
        epochs = sum(grant.epochs for grant in call.grants)
        if epochs > GRANTS:
            self.violation(Rule.BUDGET, f"{epochs} grants")

    def _walk(self, call: Call) -> list[int] | None:
        """Return at which visit of the call each grant came to pass, the first being 0; None if none did.

        Where a call went round more than once, the earliest visit that fits: laps in vain are not recorded.
        """
        try:
            return self._visits(call)
        except _Lost as lost:
            self.violation(*lost.args)
            self._spoil(self._open, Reason.VIOLATED)
            return None

    def _visits(self, call: Call) -> list[int]:
        steps = self.ring.visits(call.before, call.after)
        if steps is None:
            raise _Lost(Rule.WALK, f"from {tuple(call.before)} to {tuple(call.after)}")
        if steps > self.budget:
            raise _Lost(Rule.BUDGET, f"{steps} visits, the scan budget is {self.budget}")
        found, next_visit = [], 0
        for grant in call.grants:
            if grant.scope not in self.ring:
                raise _Lost(Rule.WALK, "granted something without a place on the ring", grant.scope)
            visit = self.ring.visit_of(grant.scope, call.before, next_visit)
            next_visit = visit + 1 + (max(grant.epochs, 1) - 1) * len(self.ring)
            if next_visit > steps:
                raise _Lost(Rule.WALK, f"granted something where none of {steps} visits came by", grant.scope)
            found.append(visit)
        epochs = sum(grant.epochs for grant in call.grants)
        if steps < self.budget and epochs < GRANTS:
            self._pin(call, found, steps)
        return found

    def _pin(self, call: Call, found: list[int], steps: int) -> None:
        """A call ends before its time only by the grant that fills it, at its last visit."""
        if not found or call.grants[-1].scope != self.ring.last_of(call.after):
            self.violation(Rule.STOPPED, f"{steps} of {self.budget} visits, the last without a grant")
        else:
            found[-1] = steps - 1 - (max(call.grants[-1].epochs, 1) - 1) * len(self.ring)

    def _close_blindly(self, call: Call) -> None:
        """A call whose walk is not known: windows close, each with a reason."""
        for scope in {grant.scope for grant in call.grants}:
            window = self._pop(scope)
            self.ineligible[(window and window.reason) or Reason.LATE] += 1
        for grant in call.grants:
            self._count(grant)

    def _close(self, call: Call, visits: Sequence[int]) -> None:
        served: set[str] = set()
        for grant, visit in zip(call.grants, visits, strict=True):
            if grant.scope not in served:
                served.add(grant.scope)
                window = self._open.get(grant.scope)
                if window is None:
                    self.ineligible[Reason.LATE] += 1
                else:
                    failed = self.ring.lap_of(call.before, visit) - window.passes
                    self._fail(call, grant.scope, window, failed)
                    self._conclude(grant.scope, window)
                    self._pop(grant.scope)
            self._count(grant)
        for scope in self.ring.passed(call.before, call.after):
            window = self._open.get(scope)
            if window:
                self._fail(call, scope, window, self.ring.passes(scope, call.after) - window.passes)

    def _pop(self, scope: str) -> Opening | None:
        self._stale.discard(scope)
        return self._open.pop(scope, None)

    def _fail(self, call: Call, scope: str, window: Opening, failed: int) -> None:
        """Of the scope's inspections, so many have been in vain since its counts began."""
        if window.stale or failed <= window.failures:
            return
        window.failures = failed
        if failed <= self.failures:
            return
        if scope in call.disturbed:
            self._spoil([scope], Reason.DISTURBED)
        else:
            self._spoil([scope], Reason.VIOLATED)
            self.violation(
                Rule.FAILURES, f"inspected in vain {failed} times in a row, at most {self.failures}", scope
            )

    def _conclude(self, scope: str, window: Opening) -> None:
        found = None if window.stale else self._measured(scope, window, window.certain)
        if found and not found.holds:
            self._breach(found, window)
        elif not found or window.reason:
            self.ineligible[window.reason or Reason.LATE] += 1
        else:
            whole = self._measured(scope, window, window.first or window.certain)
            if whole.holds:
                self.windows.append(whole)
            else:
                self.ineligible[Reason.DAWN] += 1

    def _breach(self, found: Window, window: Opening) -> None:
        """More went before than may: a violation, also where the window as a whole is not eligible."""
        if window.reason:
            self.ineligible[window.reason] += 1
        else:
            self.windows.append(found)
        counts = ", ".join(
            f"{seen} of {limit} {what}"
            for what, seen, limit in zip(Counts._fields, found.seen, found.limit, strict=True)
        )
        self.violation(Rule.BOUND, counts, found.scope)

    def _totals(self) -> Counts:
        """Return what has been counted before the current call."""
        return Counts(self._grants, self._outcomes, self.calls - 1)

    def _measured(self, scope: str, window: Opening, since: Counts) -> Window:
        """Return the window as it looks from the totals `since`."""
        seen = Counts(self._grants - since.grants, self._outcomes - since.outcomes, self.calls - since.calls)
        cohort = 1
        for grants in reversed(self._granted.values()):
            if grants <= since.grants:
                break
            cohort += 1
        limit = bound(
            cohort=cohort,
            ring=len(self.ring),
            failures=window.failures,
            budget=self.budget,
            quantum=self.quantum,
        )
        return Window(scope, cohort, len(self.ring), window.failures, self.budget, seen, limit)

    def _count(self, grant: Grant) -> None:
        self._grants += max(grant.epochs, 1)
        self._outcomes += grant.outcomes
        self._granted[grant.scope] = self._grants
        self._granted.move_to_end(grant.scope)
