"""What a walk over schedules saw, and how a failing schedule prints itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.interleavings.seen import Seen


@dataclass
class Walk:
    """What a walk saw. `keys` are the distinct schedules; `outcomes` an order that led to each outcome."""

    keys: set[str] = field(default_factory=set)
    outcomes: dict[str, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    played: int = 0
    is_whole: bool = False
    # Which sessions could be moved, after each beginning of an order.
    _movable: dict[str, str] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)

    def note(self, seen: Seen) -> None:
        self._ended.add(seen.order)
        for place, movable in enumerate(seen.enabled):
            self._movable[seen.order[:place]] = movable

    def orders_covered(self, steps: Mapping[str, int]) -> int:
        """Return how many orders of so many steps each come to a schedule of this walk.

        A step of a session that waits or has ended is left out, as `replay` does.
        """
        covered = 0
        # Orders are followed together while they came to the same: (steps left, played so far) -> how many.
        heads = {(tuple(sorted(steps.items())), ""): 1}
        for _ in range(sum(steps.values())):
            further: dict[tuple[tuple[tuple[str, int], ...], str], int] = {}
            for (left, played), number in heads.items():
                for letter, n in left:
                    if n:
                        rest = tuple((other, m - (other == letter)) for other, m in left)
                        after = played + letter if letter in self._movable.get(played, "") else played
                        further[rest, after] = further.get((rest, after), 0) + number
            heads = further
        for (_, played), number in heads.items():
            order = played
            while movable := self._movable.get(order):
                order += movable[0]
            covered += number * (order in self._ended)
        return covered

    def __iadd__(self, other: Walk) -> Walk:
        self.keys |= other.keys
        self.outcomes = other.outcomes | self.outcomes
        self.failures += other.failures
        self.played += other.played
        self.is_whole = self.is_whole and other.is_whole
        return self


@dataclass(frozen=True)
class Failure:
    case: str
    order: str
    ends: str
    problems: tuple[str, ...]
    trace: str = ""

    def as_test(self) -> str:
        """Return the source of a test that plays this very schedule."""
        name = "".join(letter if letter.isalnum() else "_" for letter in self.case.lower())
        problems = "".join(f"    # {problem}\n" for problem in self.problems)
        ends = f", {self.ends}" if self.ends else ""
        call = f'replay("{self.case}", "{self.order}"{ends})'
        return f"def test_schedule_of_{name}() -> None:\n{problems}    {call}\n"
