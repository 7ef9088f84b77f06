"""What a fault scenario is, and the list of all of them.

A scenario gets the world and how often to strike; it returns how often it has struck and raises
AssertionError for whatever must not happen. `NotRun` says that this machine lacks what it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests import invariants
from tests.faults.server import FaultStage, World
from tests.faults.soak_checker import Checker

Strike = Callable[[World, int], int]


class NotRun(Exception):
    """This machine has no such tool, right or server."""


@dataclass(frozen=True)
class Scenario:
    """`faults` are those it covers; `quick` ones belong to the short run, once, `times` to the long one.

    An `own_server` scenario brings the server down, or needs it changed.
    """

    unit: str
    what: str
    faults: tuple[str, ...]
    strike: Strike
    quick: bool = True
    times: int = 3
    own_server: bool = False


SCENARIOS: dict[str, Scenario] = {}


def enter(each: Scenario) -> None:
    """Put a scenario into the list."""
    assert each.unit not in SCENARIOS, each.unit
    SCENARIOS[each.unit] = each


def scenario(
    *faults: str, quick: bool = True, times: int = 3, own_server: bool = False
) -> Callable[[Strike], Strike]:
    """Put a function into the list; the first line of its docstring is what it does."""

    def put(strike: Strike) -> Strike:
        assert strike.__doc__
        unit = f"{faults[0]} {strike.__name__.replace('_', ' ')}"
        what = strike.__doc__.splitlines()[0].rstrip(".")
        enter(Scenario(unit, what, faults, strike, quick, times, own_server))
        return strike

    return put


def assert_sound(stage: FaultStage) -> None:
    """Every invariant that a row can show holds now."""
    checker = Checker(stage.connect)
    with stage.connect() as connection:
        checker.check(connection)
        found = [*checker.found, *invariants.violations(connection)]
    assert found == []
