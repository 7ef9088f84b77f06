"""What the policy facade returns, and what it accepts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from tenantfair.conf import MAX_CAP
from tenantfair.exceptions import InvalidCap, InvalidScanBudget, InvalidVersion
from tenantfair.models import MAX_SCAN_BUDGET, MIN_SCAN_BUDGET

MAX_VERSION: Final = 2**63 - 1

Mode = Literal["legacy", "tenant_fair"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DefaultPolicy:
    """The domain's values. `cap` is None until the first boot; `configured` is what settings last asked for.

    `updated_at` is when the row was last written, by a claim as well, and None when there is no row.
    """

    cap: int | None
    version: int
    configured: int | None
    mode: Mode
    scan_budget: int
    lease_seconds: int
    max_attempts: int
    updated_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    """One scope's override; `cap` None means that the scope inherits the default."""

    scope_key: str
    cap: int | None
    version: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """One scope's cap and committed work, as one statement saw them; free of claim tokens.

    `queued`, `admitted_ready` and `admitted_claimed` count healthy runs that are due or claimed; `debt` is
    how many more runs are admitted than the cap allows; `unfinished` counts everything not finished, future,
    waiting and poisoned runs included; `oldest_due_wait` is how long the first unclaimed run has been due.
    `cap` is None until the domain is initialised, `ring_position` until the scope has a partition. Caps hold
    in mode `tenant_fair` only.
    """

    scope_key: str
    cap: int | None
    source: Literal["override", "default"]
    default_version: int
    override_version: int
    queued: int
    admitted_ready: int
    admitted_claimed: int
    debt: int
    unfinished: int
    oldest_due_wait: timedelta | None
    ring_position: int | None
    admission_epoch: int
    mode: Mode


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncResult:
    """What a worker start did: whether it wrote, whether it switched the mode, how many claims it adopted."""

    changed: bool
    switched: bool
    adopted: int
    policy: DefaultPolicy


def _is_integer(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def validate_cap(cap: int) -> None:
    """Raise `InvalidCap` unless `cap` is an integer in 1..2147483647."""
    if not _is_integer(cap, 1, MAX_CAP):
        raise InvalidCap(f"a cap is an integer in 1..{MAX_CAP}, not {cap!r}")


def validate_scan_budget(budget: int) -> None:
    """Raise `InvalidScanBudget` unless `budget` is an integer in 32..4096."""
    if not _is_integer(budget, MIN_SCAN_BUDGET, MAX_SCAN_BUDGET):
        raise InvalidScanBudget(
            f"a scan budget is an integer in {MIN_SCAN_BUDGET}..{MAX_SCAN_BUDGET}, not {budget!r}"
        )


def validate_version(version: int | None) -> None:
    """Raise `InvalidVersion` unless `version` is None or an integer in 0..2**63-1."""
    if version is not None and not _is_integer(version, 0, MAX_VERSION):
        raise InvalidVersion(f"an expected version is an integer in 0..2**63-1, not {version!r}")
