"""What a replay prints: about the log, and the tenants' waits under both engines side by side."""

from collections.abc import Callable, Sequence

from example_project.replay.figures import Figures, jain, percentile
from example_project.replay.run import Pace, Replayed
from example_project.replay.swf import Log

_NOTE = """\
Note: this log gives no submit times; what stands in their place are start times. The waits below
are those of jobs submitted when the originals started."""
_SUMMARY = """\
Slowdown is (wait + run) / run. Jain's index of the tenants' slowdowns is 1 when all are slowed down
alike, which one queue for all brings about by making everybody wait for the busiest."""


def about(name: str, log: Log, pace: Pace) -> str:
    """Return what is replayed, and how."""
    users = len({job.user for job in log.jobs})
    span = log.jobs[-1].submit - log.jobs[0].submit
    lines = [
        f"{name}: {len(log.jobs):,} jobs of {users} users over {span / 3600:,.1f} hours,"
        f" {len(log.problems)} bad lines skipped.",
        f"Replayed {pace.speed:,.0f} times as fast by one worker with {pace.concurrency} threads.",
        f"TenantFair admits at most {pace.cap} runs of a user at a time.",
    ]
    if span:
        load = sum(job.run for job in log.jobs) / span / pace.concurrency
        lines.append(f"While jobs are being submitted, {load:.0%} of the worker's time is asked for.")
    return "\n".join([*lines, _NOTE] if log.submits_are_starts else lines)


def table(left: Replayed, right: Replayed) -> str:
    """Return waits in seconds of compressed time and slowdowns, the tenant with the most jobs first."""
    both = (left, right)
    header = "".join(f"{name:>9}" for name in ("p50", "p95", "max", "slowdown"))
    counts = {user: figures.jobs for each in both for user, figures in each.tenants.items()}
    return "\n".join(
        [
            f"{'waits in seconds':24}" + "".join(f"   {each.engine.name:^36}" for each in both).rstrip(),
            f"{'tenant':16}{'jobs':>8}" + f"   {header}" * 2,
            *(
                f"{user:16}{count:8,}" + "".join(f"   {_cells(each.tenants.get(user))}" for each in both)
                for user, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            ),
            _summary("median slowdown", both, lambda values: f"{percentile(values, 0.5):.1f}"),
            _summary("Jain's index", both, lambda values: f"{jain(values):.3f}"),
            "",
            _SUMMARY,
        ]
    )


def _cells(figures: Figures | None) -> str:
    if figures is None:
        return "-".rjust(9) * 4
    waits = (figures.p50, figures.p95, figures.longest)
    return "".join(f"{wait:9.3f}" for wait in waits) + f"{figures.slowdown:9.1f}"


def _summary(title: str, both: Sequence[Replayed], figure: Callable[[Sequence[float]], str]) -> str:
    slowdowns = [sorted(figures.slowdown for figures in each.tenants.values()) for each in both]
    return f"{title:24}" + "".join(f"{figure(values) if values else '-':>39}" for values in slowdowns)
