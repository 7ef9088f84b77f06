"""Outcome rules that several cases share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.interleavings.case import Case
from tests.interleavings.seen import Seen

Rule = Callable[[Case, Seen], Iterator[str]]


def of(*outcomes: str) -> frozenset[str]:
    return frozenset(outcomes)


def seen_from(gate: str, *words: str, unless: tuple[str, ...] = ()) -> Rule:
    """When B has committed before A passes its gate, A is told one of `words`; else it is told none of
    `unless`.

    `unless` is about B having written nothing before A was done.
    """

    def rule(case: Case, seen: Seen) -> Iterator[str]:
        if seen.done != "AB":
            return
        if seen.before("B", f"A:{gate}") and seen.word("A") not in words:
            yield f"B had committed before A passed {gate}, and A was told {seen.word('A')}"
        if seen.trace.index("A:done") < _written(seen, "B") and seen.word("A") in unless:
            yield f"A was done before B had written, and was told {seen.word('A')}"

    return rule


def _written(seen: Seen, letter: str) -> int:
    """Return the place of a session's first stop after its last statement that writes."""
    writes = {f"{letter}:{word}" for word in ("insert", "update", "delete", "copy", "with")}
    after = max((place for place, what in enumerate(seen.trace) if what in writes), default=-1)
    return next(place for place, what in enumerate(seen.trace) if place > after and what[0] == letter)


def fifo(names: tuple[str, ...]) -> Rule:
    """Of claims for one run each, those that commit get `names` in the order in which they do."""

    def rule(case: Case, seen: Seen) -> Iterator[str]:
        order = [what[0] for what in seen.trace if what.endswith(":done") and what[0] in seen.done]
        got = [seen.word(letter) for letter in order]
        if got != [*names, *["nothing"] * len(got)][: len(got)]:
            yield f"claims that committed in the order {order} got {got}"

    return rule


def no_signal_lost(case: Case, seen: Seen) -> Iterator[str]:
    """A signal that was taken is kept until it is consumed, and no run waits beside it."""
    run = seen.looks[-1].runs["r1"]
    if "B" in seen.done and seen.word("B").startswith("told"):
        if run["signals"] != ["hello"]:
            yield f"the signal is gone: {run['signals']}"
        if run["status"] == "waiting":
            yield "the run waits, and its signal is there"


def stolen_only_when_expired(case: Case, seen: Seen) -> Iterator[str]:
    """A takes over only a lease that had not been extended, and afterwards the old holder is told that it
    is lost.
    """
    if "A" not in seen.done:
        return
    for name, _, since in seen.jobs["A"].result.leases:
        if since.year > 2020:
            yield f"A took {name} over, whose lease was extended at {since}"
        if (
            "B" in seen.done
            and seen.trace.index("A:done") < _written(seen, "B")
            and seen.word("B") in ("held", "1")
        ):
            yield f"A had taken {name} over, and its old holder was told {seen.word('B')}"
