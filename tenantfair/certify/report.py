"""What a recording proves, as it is printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tenantfair.certify.bound import Counts, shares
from tenantfair.certify.replay import Peak
from tenantfair.certify.verdict import Reason, Violation, Window


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """The verdict on one recording. `ended_by` is `seconds`, `calls`, `rows` or `asked`."""

    database: str
    started_at: datetime
    seconds: float
    ended_by: str
    calls: int
    rows: int
    failures: int
    claim_function: str
    windows: Sequence[Window]
    ineligible: Mapping[Reason, int]
    violations: Sequence[Violation]
    peaks: Mapping[str, Peak]

    @property
    def contended(self) -> list[Window]:
        """The eligible windows of scopes that were not alone on the ring: only these prove anything."""
        return [window for window in self.windows if window.ring > 1]

    @property
    def holds(self) -> bool:
        """Whether something was proven and nothing broken."""
        return bool(self.contended) and not self.violations

    @property
    def ratio(self) -> float:
        """The largest share of its bound that any window took up; 0 without one."""
        return max((window.ratio for window in self.contended), default=0.0)

    @property
    def ratios(self) -> dict[str, float]:
        """The largest share of its limit that each of the counts took up in any window."""
        return {
            what: max((shares(each.seen, each.limit)[place] for each in self.contended), default=0.0)
            for place, what in enumerate(Counts._fields)
        }

    def worst(self) -> list[tuple[Window, int]]:
        """Return for each scope its window nearest to the bound and how many it had, the nearest first."""
        number = Counter(window.scope for window in self.contended)
        found: dict[str, Window] = {}
        for window in self.contended:
            known = found.get(window.scope)
            if known is None or (window.ratio, window.seen) > (known.ratio, known.seen):
                found[window.scope] = window
        ordered = sorted(found.values(), key=lambda one: (-one.ratio, one.scope))
        return [(window, number[window.scope]) for window in ordered]
