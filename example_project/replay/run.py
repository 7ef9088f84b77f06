"""One replay: the same jobs, at the same compressed times, under one engine and a real worker."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from example_project.database import load_sql
from example_project.engines import TENANT_FAIR, Engine, Site, site
from example_project.judge import Verdict, judge
from example_project.processes import ChildFailed, pause
from example_project.replay.figures import Figures, Finished, by_tenant
from example_project.replay.swf import Job

# Jobs shorter than this many seconds of the log count as this long in a slowdown, as is the custom.
SHORTEST = 10.0
_PATIENCE = 60.0


@dataclass(frozen=True)
class Pace:
    """How fast the log is replayed, and by how much: `speed` seconds of the log pass in one."""

    speed: float
    concurrency: int
    cap: int


@dataclass(frozen=True)
class Replayed:
    """What came of it. `verdict` is None where no promise was made."""

    engine: Engine
    tenants: dict[str, Figures]
    verdict: Verdict | None
    unfinished: int


def replay(engine: Engine, jobs: Sequence[Job], pace: Pace, server_url: str) -> Replayed:
    """Run `jobs` through a worker under `engine`, in a database that is gone afterwards."""
    with site(server_url, engine, purpose="replay", cap=pace.cap) as place:
        with place.working(processes=1, threads=pace.concurrency):
            place.manage("feed", stdin=_schedule(jobs, pace.speed))
            _wait_for_the_last(place, sum(job.run for job in jobs) / pace.speed)
        with place.connection() as connection:
            rows = connection.execute(load_sql("replay_outcomes")).fetchall()
        verdict = judge(place.record()) if engine is TENANT_FAIR else None
    finished = [Finished(user, wait, run) for user, wait, run, completed in rows if completed]
    tenants = by_tenant(finished, shortest=SHORTEST / pace.speed)
    return Replayed(engine, tenants, verdict, len(jobs) - len(finished))


def _schedule(jobs: Sequence[Job], speed: float) -> str:
    first = jobs[0].submit
    return "".join(
        json.dumps({"at": (job.submit - first) / speed, "user": job.user, "seconds": job.run / speed}) + "\n"
        for job in jobs
    )


def _wait_for_the_last(place: Site, work: float) -> None:
    """Return once nothing is left to do; by itself that takes at most the sum of all run times."""
    give_up = time.monotonic() + work + _PATIENCE
    with place.connection() as connection:
        while connection.execute(load_sql("unfinished")).fetchone()[0] > 0:
            if time.monotonic() > give_up:
                raise ChildFailed("the worker did not finish the replayed jobs in time")
            pause(0.1, *place.workers)
