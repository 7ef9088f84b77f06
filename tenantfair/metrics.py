"""Counters of this process, free of identities, and a plain-text exposition of them.

Every label value comes from a closed set written in `FAMILIES`; anything else is counted as `other`. So no
tenant, scope, run, task path, cursor or token can become a label, whatever a caller passes.

`connect()` counts claims from the `claim_observed` signal; a worker counts the rest by `increment()`.
`snapshot()` is a consistent copy, `render()` the Prometheus text format, version 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Any, Final

from tenantfair.signals import claim_observed

__all__ = ["CONTENT_TYPE", "FAMILIES", "Family", "connect", "increment", "render", "reset", "snapshot"]

OTHER: Final = "other"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One counter and the values each of its labels may take."""

    name: str
    help: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_REFUSALS: Final = (
    "read_only_transaction",
    "unsupported_isolation",
    "lock_contention",
    "not_initialized",
    "inactive_engine",
    "malformed_policy",
    "open_transaction",
)

FAMILIES: Final = (
    Family(
        name="tenantfair_claim_calls_total",
        help="Claim calls by engine and result.",
        labels={"engine": ("tenant_fair", "legacy"), "result": ("ok", *_REFUSALS, "error")},
    ),
    Family(name="tenantfair_claim_seconds_total", help="Seconds spent in claim calls."),
    Family(name="tenantfair_claim_demand_total", help="Outcomes asked for."),
    Family(name="tenantfair_claim_inspections_total", help="Ring positions visited."),
    Family(name="tenantfair_claim_attempts_total", help="Sum of the attempt numbers of the leases granted."),
    Family(
        name="tenantfair_claim_outcomes_total",
        help="Outcomes granted, by what they were.",
        labels={"outcome": ("promotion", "reacquire", "steal", "admitted_poison", "queued_poison")},
    ),
    Family(
        name="tenantfair_claim_denials_total",
        help="Fruitless inspections, by disposition.",
        labels={
            "disposition": (
                "partition_lock_skip",
                "empty_page",
                "lock_miss",
                "stale",
                "cap_debt_denial",
                "denied",
            )
        },
    ),
    Family(
        name="tenantfair_claim_contentions_total",
        help="Claim calls that gave up waiting for a lock, by phase.",
        labels={"phase": ("policy_cursor",)},
    ),
    Family(
        name="tenantfair_admission_releases_total",
        help="Slots given back by workers, by what gave them back.",
        labels={
            "reason": (
                "scheduled",
                "waiting",
                "completed",
                "failed",
                "abandoned",
                "poison",
            )
        },
    ),
    Family(
        name="tenantfair_task_outcomes_total",
        help="Leases that ended here, by outcome.",
        labels={
            "outcome": (
                "completed",
                "retry",
                "failed",
                "yielded",
                "snoozed",
                "waiting",
                "released",
                "abandoned",
            )
        },
    ),
    Family(name="tenantfair_task_seconds_total", help="Seconds that tasks have run here."),
    Family(
        name="tenantfair_fences_lost_total",
        help="Writes refused because the claim was no longer ours, by operation.",
        labels={"operation": ("heartbeat", "checkpoint", "finish")},
    ),
    Family(
        name="tenantfair_worker_events_total",
        help="What else happened to the worker.",
        labels={
            "event": (
                "started",
                "draining",
                "stopped",
                "poll",
                "idle",
                "wakeup",
                "listener_lost",
                "claim_error",
                "heartbeat_error",
                "outcome_error",
                "launch_error",
            )
        },
    ),
)

Key = tuple[str, tuple[tuple[str, str], ...]]

_BY_NAME: Final = {family.name: family for family in FAMILIES}
_lock: Final = Lock()
_values: Final[dict[Key, float]] = {}


def increment(name: str, amount: float = 1, /, **labels: str) -> None:
    """Add `amount` to one counter. `KeyError` for a family or label that `FAMILIES` does not have."""
    _add([(_key(name, tuple(labels.items())), amount)])


def _add(amounts: Iterable[tuple[Key, float]]) -> None:
    """Add to several counters at once; a snapshot has all of it or nothing."""
    with _lock:
        for key, amount in amounts:
            _values[key] = _values.get(key, 0) + amount


@lru_cache(maxsize=512)
def _key(name: str, given: tuple[tuple[str, str], ...]) -> Key:
    """Return the counter's key, in which a word that the family does not know is `OTHER`."""
    labels, allowed = dict(given), _BY_NAME[name].labels
    if labels.keys() != allowed.keys():
        raise KeyError(f"{name} has the labels {sorted(allowed)}, not {sorted(labels)}")
    return name, tuple(
        (label, labels[label] if labels[label] in words else OTHER) for label, words in allowed.items()
    )


def snapshot() -> dict[Key, float]:
    """Return all counters that have moved, by family name and (label, value) pairs."""
    with _lock:
        return dict(_values)


def reset() -> None:
    """Forget everything counted so far; for tests and for a process that has forked."""
    with _lock:
        _values.clear()


def render(values: Mapping[Key, float] | None = None) -> str:
    """Return `values`, by default a new snapshot, as Prometheus text; counters without labels start at 0."""
    found = snapshot() if values is None else values
    lines: list[str] = []
    for family in FAMILIES:
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} counter"]
        moved = sorted((labels, value) for (name, labels), value in found.items() if name == family.name)
        if not moved and not family.labels:
            moved = [((), 0)]
        for labels, value in moved:
            # Label values are words from FAMILIES: nothing to escape.
            inner = ",".join(f'{label}="{word}"' for label, word in labels)
            lines.append(f"{family.name}{{{inner}}} {value:.15g}" if inner else f"{family.name} {value:.15g}")
    return "\n".join(lines) + "\n"


def _count_claim(
    *,
    engine: str,
    result: str,
    phase: str | None,
    demand: int,
    duration: float,
    inspections: int,
    outcomes: Mapping[str, int],
    denials: Mapping[str, int],
    claim_attempts: int,
    **_: Any,
) -> None:
    found = [
        (_key("tenantfair_claim_calls_total", (("engine", engine), ("result", result))), 1.0),
        (_key("tenantfair_claim_seconds_total", ()), duration),
        (_key("tenantfair_claim_demand_total", ()), demand),
        (_key("tenantfair_claim_inspections_total", ()), inspections),
        (_key("tenantfair_claim_attempts_total", ()), claim_attempts),
    ]
    for outcome, count in outcomes.items():
        if count:
            found.append((_key("tenantfair_claim_outcomes_total", (("outcome", outcome),)), count))
    for disposition, count in denials.items():
        if count:
            found.append((_key("tenantfair_claim_denials_total", (("disposition", disposition),)), count))
    if phase is not None:
        found.append((_key("tenantfair_claim_contentions_total", (("phase", phase),)), 1))
    if poisoned := outcomes.get("admitted_poison"):
        found.append((_key("tenantfair_admission_releases_total", (("reason", "poison"),)), poisoned))
    _add(found)


def connect() -> None:
    """Count claims from now on; calling it again changes nothing."""
    claim_observed.connect(_count_claim, weak=False, dispatch_uid="tenantfair.metrics")
