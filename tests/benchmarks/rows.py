"""One measured figure with its floors, its ratio and its target."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Measure = Literal["value", "ratio", "own_ratio"]
# One round: what each variant came to, measured one after the other.
Sample = Mapping[str, float]

FLOOR = "floor"
OWN_FLOOR = "own_floor"

_MEASURES: Mapping[str, str] = {
    "value": "{bound:g} {unit}",
    "ratio": "{bound:g} x the floor",
    "own_ratio": "{bound:g} x the same on our table",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on one measure of a row."""

    measure: Measure
    bound: float
    at_least: bool = False

    def text(self, unit: str) -> str:
        sign = ">=" if self.at_least else "<="
        return f"{sign} " + _MEASURES[self.measure].format(bound=self.bound, unit=unit)

    def is_met(self, measured: float | None) -> bool | None:
        if measured is None:
            return None
        return measured >= self.bound if self.at_least else measured <= self.bound


def at_least(bound: float, measure: Measure = "ratio") -> Target:
    return Target(measure, bound, at_least=True)


def at_most(bound: float, measure: Measure = "value") -> Target:
    return Target(measure, bound)


@dataclass(frozen=True, slots=True)
class Row:
    """What is written to the results; `ratio` and `own_ratio` are medians over pairs of one round each.

    `floor` is the simplest statement on a table with one index, `own_floor` the same work on our own table
    without claim function and triggers. `through` names the interface that was driven.
    """

    workload: str
    case: str
    demand: int | None
    clients: int
    value: float | None
    unit: str
    floor: float | None
    ratio: float | None
    target: str | None
    met: bool | None
    own_floor: float | None = None
    own_ratio: float | None = None
    through: str = ""
    rounds: Sequence[float] = ()
    note: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as one flat object, `facts` spread out."""
        found = asdict(self)
        return {**found, **found.pop("facts")}


def make_row(
    workload: str,
    case: str,
    samples: Sequence[Sample],
    variant: str,
    *,
    unit: str,
    demand: int | None = None,
    clients: int = 1,
    target: Target | None = None,
    through: str = "",
    note: str = "",
) -> Row:
    """Return the row of one variant: medians over the rounds, ratios over the pairs within them."""
    rounds = [sample[variant] for sample in samples if variant in sample]
    measured: dict[str, float | None] = {
        "value": _median(rounds),
        "ratio": _paired(samples, variant, FLOOR),
        "own_ratio": _paired(samples, variant, OWN_FLOOR),
    }
    return Row(
        workload=workload,
        case=case,
        demand=demand,
        clients=clients,
        value=_rounded(measured["value"]),
        unit=unit,
        floor=_rounded(_median([sample[FLOOR] for sample in samples if FLOOR in sample])),
        ratio=_rounded(measured["ratio"]),
        target=target.text(unit) if target else None,
        met=target.is_met(measured[target.measure]) if target else None,
        own_floor=_rounded(_median([sample[OWN_FLOOR] for sample in samples if OWN_FLOOR in sample])),
        own_ratio=_rounded(measured["own_ratio"]),
        through=through,
        rounds=[found for found in map(_rounded, rounds) if found is not None],
        note=note,
    )


def _paired(samples: Sequence[Sample], variant: str, base: str) -> float | None:
    return _median(
        [sample[variant] / sample[base] for sample in samples if variant in sample and sample.get(base)]
    )


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _rounded(value: float | None) -> float | None:
    """Four significant digits."""
    return None if value is None else float(f"{value:.4g}")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of 1 of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]
