"""Where the cursor goes: the places of the ring in order, and the visits of a call on it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple


class Cursor(NamedTuple):
    """Laps and place: never the same twice while the cursor moves on, also on a ring of one."""

    laps: int
    place: int


class Ring:
    """The scopes with unfinished runs by their places, for as long as they stay the same."""

    def __init__(self, scopes: Mapping[int, str]) -> None:
        self.scopes = dict(scopes)
        self._places = sorted(scopes)
        self._place_of = {scope: place for place, scope in scopes.items()}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, scope: object) -> bool:
        return scope in self._place_of

    def place_of(self, scope: str) -> int:
        """Return the place of a scope of the ring."""
        return self._place_of[scope]

    def passes(self, scope: str, cursor: Cursor) -> int:
        """Return how often the cursor has been at the scope's place when it has come to `cursor`."""
        return cursor.laps + (self._place_of[scope] <= cursor.place)

    def visits(self, before: Cursor, after: Cursor) -> int | None:
        """Return how many places were visited from `before` to `after`; None when no walk leads there."""
        if after.place not in self.scopes:
            return None
        passed = bisect_right(self._places, after.place) - bisect_right(self._places, before.place)
        found = (after.laps - before.laps) * len(self) + passed
        return found if found > 0 else None

    def passed(self, before: Cursor, after: Cursor) -> list[str]:
        """Return the scopes that a walk from `before` to `after` has visited, each once."""
        start = bisect_right(self._places, before.place)
        number = min(self.visits(before, after) or 0, len(self))
        return [self.scopes[self._places[(start + step) % len(self)]] for step in range(number)]

    def visit_of(self, scope: str, before: Cursor, earliest: int) -> int:
        """Return which visit after `before` is the first at the scope's place, not before the `earliest`."""
        places = len(self)
        start = bisect_right(self._places, before.place)
        own = bisect_right(self._places, self._place_of[scope]) - 1
        first = (own - start) % places
        missing = max(0, earliest - first)
        return first + -(-missing // places) * places

    def lap_of(self, before: Cursor, visit: int) -> int:
        """Return the lap of the visit with this number, counted from 0, of a walk that began at `before`."""
        return before.laps + (bisect_right(self._places, before.place) + visit) // len(self)

    def last_of(self, cursor: Cursor) -> str:
        """Return the scope that the cursor stands at."""
        return self.scopes[cursor.place]
