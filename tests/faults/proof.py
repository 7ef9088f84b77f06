"""The part "faults" of the proof: every scenario, and the tests that show the other faults."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

from tests.faults import matrix
from tests.faults.scenario import NotRun, Scenario
from tests.faults.server import World
from tests.proof import pytests
from tests.proof.record import Row

PART = "faults"
# They wait for leases most of the time.
_AT_ONCE = 4
_LONGEST_NOTE = 400


def rows(*, quick: bool, done: frozenset[str]) -> Iterator[Row]:
    """Yield one row per scenario: how often the fault was done, and whether anything broke."""
    wanted = [
        each for each in matrix.scenarios().values() if each.unit not in done and (each.quick or not quick)
    ]
    with World() as world:
        yield from _together(world, [each for each in wanted if not each.own_server], quick)
    # These bring a server down, stop it or fill its disk: nobody else may be on it, nor wait for the clock.
    for each in wanted:
        if each.own_server:
            with World() as world:
                yield strike(each, world, quick=quick)
    if "by tests" not in done and not quick:
        yield pytests.run(PART, "by tests", "tests that show a fault elsewhere", *matrix.tests())


def _together(world: World, wanted: list[Scenario], quick: bool) -> Iterator[Row]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        jobs = [pool.submit(strike, each, world, quick=quick) for each in wanted]
        for job in as_completed(jobs):
            yield job.result()


def strike(each: Scenario, world: World, *, quick: bool) -> Row:
    """Run one scenario; whatever it raises is its violation, unless it could not be run at all."""
    times = 1 if quick else each.times
    began = time.monotonic()
    done, failures, note, not_run = 0, 0, "", False
    try:
        done = each.strike(world, times)
    except NotRun as reason:
        note, not_run = f"not run: {reason}", True
    except Exception as error:  # a scenario that breaks down has shown nothing
        failures, note = 1, _told(error)
    seconds = time.monotonic() - began
    return Row(PART, each.unit, each.what, done, None, "", failures, seconds, note, not_run)


def _told(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {where.name}:{where.lineno}: {error}"[-_LONGEST_NOTE:]
