"""What a replay is summed up in. Waits and run times are seconds of compressed time."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Finished(NamedTuple):
    """One run that is over: whose it was, how long it waited for its start, and how long it then took."""

    user: str
    wait: float
    run: float


class Figures(NamedTuple):
    """One tenant's share of a replay."""

    jobs: int
    p50: float
    p95: float
    longest: float
    slowdown: float


def by_tenant(finished: Iterable[Finished], *, shortest: float) -> dict[str, Figures]:
    """Return each tenant's figures. `shortest` bounds the slowdown of jobs that hardly ran at all."""
    jobs: defaultdict[str, list[Finished]] = defaultdict(list)
    for each in finished:
        jobs[each.user].append(each)
    return {user: _figures(of_user, shortest) for user, of_user in jobs.items()}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of sorted `values`."""
    return values[max(math.ceil(share * len(values)), 1) - 1]


def jain(values: Sequence[float]) -> float:
    """Return Jain's index: 1 when all values are alike, 1/n when one has everything."""
    squares = len(values) * sum(value * value for value in values)
    return sum(values) ** 2 / squares if squares else 1.0


def _figures(jobs: Sequence[Finished], shortest: float) -> Figures:
    waits = sorted(job.wait for job in jobs)
    slowdowns = [max((job.wait + job.run) / max(job.run, shortest), 1.0) for job in jobs]
    return Figures(
        len(jobs), percentile(waits, 0.5), percentile(waits, 0.95), waits[-1], sum(slowdowns) / len(slowdowns)
    )
