"""What the demo prints: each quiet customer's wait under both engines, and what became of the promises."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from example_project.judge import Verdict, Window
from example_project.record import Record


@dataclass(frozen=True)
class Served:
    """One customer's wait, counted from the moment when the workers first started a run. Seconds.

    `passed_over` is how many runs of others started before the customer's first.
    """

    customer: str
    passed_over: int
    first_started: float
    all_done: float


def served(record: Record, owners: Mapping[UUID, str]) -> dict[str, Served]:
    """Return the wait of every customer, by its name; `owners` says whose a run is."""
    first: dict[str, tuple[int, datetime]] = {}
    last: dict[str, datetime] = {}
    starts = [move for move in record.runs if move.after == "claimed"]
    for place, move in enumerate(starts):
        first.setdefault(owners[move.run_id], (place, move.at))
    for move in record.runs:
        if move.after == "gone":
            last[owners[move.run_id]] = move.at
    began = starts[0].at
    return {
        customer: Served(
            customer, place, (at - began).total_seconds(), (last.get(customer, at) - began).total_seconds()
        )
        for customer, (place, at) in first.items()
    }


def comparison(
    names: tuple[str, str], left: Mapping[str, Served], right: Mapping[str, Served], each: int
) -> str:
    """Return the table that sets both engines side by side, one line per customer."""
    columns = ("passed over", "first after", f"all {each} after")
    lines = [f"{'':12}" + "".join(f"  {name:^39}" for name in names), "customer    " + _cells(columns) * 2]
    for customer in sorted(left):
        cells = "".join(
            _cells((f"{each.passed_over:,}", f"{each.first_started:.2f} s", f"{each.all_done:.2f} s"))
            for each in (left[customer], right[customer])
        )
        lines.append(f"{customer:12}{cells}")
    return "\n".join(lines)


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return what to say about the caps, the bound, and how often anybody was passed over."""
    contended, breaches = verdict.contended, verdict.breaches
    top, (peak, cap) = max(verdict.peaks.items(), key=lambda item: item[1], default=("nobody", (0, 0)))
    state = f"BROKEN in {len(breaches)}" if breaches else "exceeded in none"
    alone = len(verdict.eligible) - len(contended)
    lines = [
        f"Caps    {'EXCEEDED' if verdict.over_cap else 'never exceeded'}: at most {peak} runs of a tenant"
        f" admitted ({_label(top)}), the cap is {cap}",
        f"        checked at the end of each of {verdict.calls:,} claim calls",
        *(f"        {line}" for line in verdict.over_cap),
        f"Bound   {state} of {len(contended):,} eligible windows with competitors",
        *(f"        {_window(window)}" for window in breaches),
        f"        not counted: {alone:,} windows of a tenant alone on the ring",
        *(f"        not eligible: {count:,}, {reason}" for reason, count in verdict.ineligible.most_common()),
    ]
    if contended:
        lines += [
            f"Bypass  largest: {_window(max(contended, key=lambda window: window.seen.outcomes))}",
            f"        nearest to its bound: {_window(max(contended, key=_nearness))}",
        ]
    return lines


def _cells(cells: Sequence[str]) -> str:
    return "  " + "".join(f"{cell:>13}" for cell in cells)


def _nearness(window: Window) -> tuple[float, int]:
    shares = (seen / limit for seen, limit in zip(window.seen, window.limit, strict=True) if limit)
    return max(shares, default=0.0), window.seen.outcomes


def _window(window: Window) -> str:
    pairs = zip(("grants", "runs", "claim calls"), window.seen, window.limit, strict=True)
    counts = ", ".join(f"{seen} of {limit} {what}" for what, seen, limit in pairs)
    return f"{_label(window.scope)}, by {counts}; ring of {window.ring}"


def _label(scope: str) -> str:
    return scope or "the tenantless scope"
