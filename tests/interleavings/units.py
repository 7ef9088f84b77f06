"""The proof in pieces: for each case all its schedules, then those in which a session ends otherwise."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tests.interleavings.actors import COMMIT, ROLLBACK, TERMINATE
from tests.interleavings.case import Case
from tests.interleavings.explore import EXHAUSTIVE, Explorer
from tests.interleavings.seen import End
from tests.interleavings.specs import CASES, spec_of
from tests.interleavings.stage import Stage
from tests.interleavings.walk import Walk
from tests.proof.record import Row

PART = "schedules"
SEED = 1


@dataclass(frozen=True)
class Depth:
    """How far it goes.

    All schedules are walked where they are no more than `whole`, or `rollback_whole` when a session is rolled
    back last; where they are more, that many from one beginning and a sample of the others. `stops` is the
    distance of the stops of a session at which it is ended, `at_each_stop` the sample there.
    """

    whole: int
    sample: int
    rollback_whole: int
    rollback_sample: int
    terminate_sample: int
    stops: int
    at_each_stop: int


FULL = Depth(
    whole=EXHAUSTIVE,
    sample=1_000,
    rollback_whole=3_100,
    rollback_sample=500,
    terminate_sample=12,
    stops=1,
    at_each_stop=4,
)
QUICK = Depth(
    whole=0,
    sample=20,
    rollback_whole=0,
    rollback_sample=5,
    terminate_sample=2,
    stops=4,
    at_each_stop=1,
)


@dataclass(frozen=True)
class Unit:
    """`kind` is "commit", "last" (a rollback or a terminated backend as the last step) or "stop" (S22)."""

    case: str
    kind: str

    @property
    def name(self) -> str:
        return self.case if self.kind == "commit" else f"{self.case} {self.kind}"


def units() -> list[Unit]:
    return [Unit(name, kind) for kind in ("commit", "last", "stop") for name in CASES]


def run(unit: Unit, stage: Stage, *, quick: bool) -> Row:
    """Walk the schedules of one unit."""
    case = CASES[unit.case]
    depth = QUICK if quick else FULL
    started = time.monotonic()
    walks = list(_walks(unit, case, stage, depth))
    total = Walk(is_whole=True)
    for walk, _ in walks:
        total += walk
    note = ""
    if total.failures:
        note = f"{len(total.failures)} schedules, the first: {total.failures[0].as_test()}"
    elif unit.name == "S3" and total.is_whole:
        note = f"all {walks[0][0].orders_covered(dict.fromkeys('ABC', 4)):,} orders of 3 x 4 steps"
    return Row(
        part=PART,
        unit=unit.name,
        what=_what(unit, case),
        done=len(total.keys),
        of=sum(of for _, of in walks),
        seeds="" if total.is_whole else f"{SEED}-{SEED}",
        failures=len(total.failures),
        seconds=time.monotonic() - started,
        note=note,
    )


def _walks(unit: Unit, case: Case, stage: Stage, depth: Depth) -> Iterator[tuple[Walk, int]]:
    """Yield each walk with the number of schedules that it was out of."""
    explorer = Explorer(stage, case)
    if unit.kind == "commit":
        yield _walk(explorer, depth.whole, depth.sample)
    elif unit.kind == "last":
        for how in _last_steps(case):
            explorer.end(how)
            if any(end.how == TERMINATE for end in how.values()):
                yield _walk(explorer, 0, depth.terminate_sample)
            else:
                yield _walk(explorer, depth.rollback_whole, depth.rollback_sample)
    else:
        for letter in _abortable(case):
            for place in range(0, explorer.alone().steps[letter], depth.stops):
                for how, number in (
                    (ROLLBACK, depth.at_each_stop),
                    (TERMINATE, max(1, depth.at_each_stop // 4)),
                ):
                    yield _walk(explorer.end({letter: End(how, place)}), 0, number)


def _walk(explorer: Explorer, whole: int, sample: int) -> tuple[Walk, int]:
    if not whole:
        walk = explorer.sample(sample, SEED)
    else:
        walk = explorer.all(whole)
        if walk.is_whole:
            return walk, len(walk.keys)
        walk += explorer.sample(sample, SEED)
    return walk, max(len(walk.keys), explorer.orders)


def _last_steps(case: Case) -> Iterator[dict[str, End]]:
    """Yield every way for two sessions to end but both by COMMIT; of three, one at a time."""
    letters = _abortable(case)
    if len(case.sessions) > 2 or len(letters) < len(case.sessions):
        for letter, how in product(letters, (ROLLBACK, TERMINATE)):
            yield {letter: End(how)}
        return
    for first, second in product((COMMIT, ROLLBACK, TERMINATE), repeat=2):
        if (first, second) != (COMMIT, COMMIT):
            yield {letters[0]: End(first), letters[1]: End(second)}


def _abortable(case: Case) -> list[str]:
    return [letter for letter, operation in case.sessions.items() if not operation.autocommit]


def _what(unit: Unit, case: Case) -> str:
    if unit.kind == "stop":
        return "S22 rolled back or terminated at each stop of each"
    if unit.kind == "last":
        return "S1-S21 rolled back or terminated last"
    return f"{spec_of(case)} {TITLES[spec_of(case)]}"


TITLES = {
    "S1": "claim / claim, one tenant",
    "S2": "claim / claim, two tenants",
    "S3": "claim / claim / claim",
    "S4": "claim / finish",
    "S5": "claim / cap lowered",
    "S6": "claim / cap raised",
    "S7": "claim / enqueue of an older run",
    "S8": "claim / first enqueue of a tenant",
    "S9": "claim / cancel",
    "S10": "steal / finish by the old holder",
    "S11": "steal / heartbeat",
    "S12": "steal / steal",
    "S13": "poison / everything else",
    "S14": "finish / cancel",
    "S15": "wait / signal / claim",
    "S16": "prune / retry",
    "S17": "partition deleted / enqueue",
    "S18": "enqueue / enqueue, crossed",
    "S19": "bulk finish / bulk enqueue",
    "S20": "claim / default cap",
    "S21": "claim / flush",
}
