"""What can become of a claimed run: one small class per outcome.

`lease` is the fence of each; an outcome whose fence is lost changes nothing. `state=UNSET` leaves the saved
state as it is. `consumed` of the signals that the lease brought are dropped; the others stay pending.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final

from tenantfair.claim.base import Lease
from tenantfair.exceptions import InvalidRun
from tenantfair.runs import _arguments

# Signals pending at one run; `runs.signal` refuses more.
MAX_SIGNALS: Final = 1_000

_RETRY_BASE: Final = timedelta(seconds=5)
_ABANDON_BASE: Final = timedelta(seconds=30)
_LONGEST_BACKOFF: Final = timedelta(hours=1)


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "unset"


# Not None, which is a state like any other.
UNSET: Final = Unset.UNSET


@dataclass(frozen=True, slots=True)
class Completed:
    """The task returned `result`."""

    lease: Lease
    result: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Failed:
    """The run ends failed, whatever retries it has left. `error` is a `payloads.error_record`."""

    lease: Lease
    error: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed with `error`: due again after `delay`, or failed for good past the retry limit.

    Without a delay it backs off: 5 s doubling with each earlier failure up to an hour, with full jitter.
    """

    lease: Lease
    error: Mapping[str, str] = field(repr=False)
    delay: timedelta | None = None

    def __post_init__(self) -> None:
        if self.delay is not None:
            _arguments.delay(self.delay, what="delay")


@dataclass(frozen=True, slots=True)
class Yielded:
    """The task gave way: due again at once, with its place among the admitted kept."""

    lease: Lease
    state: Any = field(default=UNSET, repr=False)
    consumed: int = 0

    def __post_init__(self) -> None:
        _consumed(self.consumed)


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The task goes on later: at `until`, or after `delay` by the database's clock."""

    lease: Lease
    until: datetime | None = None
    delay: timedelta | None = None
    state: Any = field(default=UNSET, repr=False)
    consumed: int = 0

    def __post_init__(self) -> None:
        _consumed(self.consumed)
        if (self.until is None) == (self.delay is None):
            raise InvalidRun("a snooze has either a time or a delay")
        if self.until is not None:
            _arguments.moment(self.until, what="until")
        else:
            _arguments.delay(self.delay, what="delay")


@dataclass(frozen=True, slots=True)
class Waiting:
    """The task waits for a signal; it is due at once when one is pending beyond those consumed."""

    lease: Lease
    state: Any = field(default=UNSET, repr=False)
    consumed: int = 0

    def __post_init__(self) -> None:
        _consumed(self.consumed)


@dataclass(frozen=True, slots=True)
class Released:
    """The worker hands the run back at once, its place kept; the start is given back unless it was made."""

    lease: Lease
    started: bool


@dataclass(frozen=True, slots=True)
class Abandoned:
    """This host cannot run the task: tried again after 30 s doubling to an hour, never poisoned for it."""

    lease: Lease
    reason: str


Outcome = Completed | Failed | Retry | Yielded | Snoozed | Waiting | Released | Abandoned


def retry_backoff(failures: int) -> timedelta:
    """Return a delay for a run that had failed `failures` times before: full jitter."""
    return random.uniform(0, 1) * _doubled(_RETRY_BASE, failures)  # noqa: S311 - jitter


def abandon_backoff(abandons: int) -> timedelta:
    """Return a delay for a run abandoned `abandons` times before: at least half, so no host spins on it."""
    return random.uniform(0.5, 1) * _doubled(_ABANDON_BASE, abandons)  # noqa: S311 - jitter


def _doubled(base: timedelta, times: int) -> timedelta:
    # The exponent is bounded before it is used: 2**10000 seconds is no timedelta.
    return min(_LONGEST_BACKOFF, base * (1 << min(times, 30)))


def _consumed(value: object) -> None:
    _arguments.count(value, what="consumed", low=0, high=MAX_SIGNALS)
