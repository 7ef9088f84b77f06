"""Every error tenantfair raises on purpose.

TenantFairError
├── ConfigurationError          settings say something that cannot work
├── SchemaMismatch              the database is not the one this version needs
├── ClaimUnavailable            nothing was claimed, nothing was changed; `reason` says why
├── InvalidTenant (ValueError)  a tenant id that cannot name a scope
├── InvalidPayload (ValueError) a value that JSON or PostgreSQL cannot hold
├── InvalidRun (ValueError)     any other argument that cannot describe a run
├── InvalidCap (ValueError)     a cap that is not an integer in 1..2147483647
├── InvalidScanBudget (ValueError)
├── InvalidVersion (ValueError) an expected_version that is not an integer in 0..2**63-1
├── NotInitialized              the policy has not been initialised by a worker start yet
├── InactiveEngine              the domain runs another admission mode
├── StaleVersion                compare-and-set lost; nothing changed
├── RunNotFound                 no run has this id
├── RunExists                   a run with this id is already there; nothing was written
├── RunBusy                     another session holds the run's row, or its tenant's count
├── RunNotActive                the run's state does not allow the operation
└── StaleClaim                  the fence was lost; nothing was written
"""

from __future__ import annotations

from uuid import UUID


class TenantFairError(Exception):
    """Base of every error below; never raised itself."""


class ConfigurationError(TenantFairError):
    """A setting is missing or cannot work; the message names it and the line to write."""


class SchemaMismatch(TenantFairError):
    """The database's shape is not the one this version needs.

    `problems` lists what was found and what is needed, one sentence each.
    """

    def __init__(self, problems: list[str], remedy: str) -> None:
        self.problems = problems
        self.remedy = remedy
        super().__init__(f"{'; '.join(problems)}. {remedy}")


class ClaimUnavailable(TenantFairError):
    """A claim was refused before it inspected anything.

    `reason` is one of `read_only_transaction`, `unsupported_isolation`, `lock_contention`,
    `not_initialized`, `inactive_engine`, `malformed_policy` or `open_transaction`; `phase` is
    `policy_cursor` when the policy row was contended, else None.
    """

    def __init__(self, reason: str, phase: str | None = None) -> None:
        self.reason = reason
        self.phase = phase
        super().__init__(reason)


class InvalidTenant(TenantFairError, ValueError):
    """The tenant id is not a string of the permitted form, or the tenant mode forbids it."""


class InvalidPayload(TenantFairError, ValueError):
    """A value that JSON or PostgreSQL cannot hold, or that is too large or too deep."""


class InvalidRun(TenantFairError, ValueError):
    """An argument that cannot describe a run."""


class InvalidCap(TenantFairError, ValueError):
    """A cap is an integer in 1..2147483647; booleans are not integers here."""


class InvalidScanBudget(TenantFairError, ValueError):
    """A scan budget is an integer in 32..4096."""


class InvalidVersion(TenantFairError, ValueError):
    """An expected version is an integer in 0..2**63-1."""


class NotInitialized(TenantFairError):
    """No worker has initialised this domain's policy yet."""

    def __init__(self) -> None:
        super().__init__(
            "the policy is not initialised: start a worker once, or run `manage.py tenantfair_caps default N`"
        )


class InactiveEngine(TenantFairError):
    """The domain's admission mode is not the one the caller needs; `mode` is the stored one."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        super().__init__(f"the domain runs in mode {mode!r}")


class StaleVersion(TenantFairError):
    """The stored version is not the expected one; nothing was changed.

    `actual` is None when there is no row to compare with.
    """

    def __init__(self, expected: int, actual: int | None) -> None:
        self.expected = expected
        self.actual = actual
        found = "there is no such row" if actual is None else f"found {actual}"
        super().__init__(f"expected version {expected}, {found}")


class RunNotFound(TenantFairError, LookupError):
    """No run has this id."""

    def __init__(self, run_id: UUID) -> None:
        self.run_id = run_id
        super().__init__(str(run_id))


class RunExists(TenantFairError):
    """A run with this id is already there; the caller's transaction is still usable."""

    def __init__(self, run_id: UUID) -> None:
        self.run_id = run_id
        super().__init__(str(run_id))


class RunBusy(TenantFairError):
    """Another session holds the run's row, or its tenant's count; nothing was changed, try again."""

    def __init__(self, run_id: UUID) -> None:
        self.run_id = run_id
        super().__init__(str(run_id))


class RunNotActive(TenantFairError):
    """The run's state does not allow the operation; `state` is the one people see."""

    def __init__(self, run_id: UUID, state: str) -> None:
        self.run_id = run_id
        self.state = state
        super().__init__(f"{run_id} is {state}")


class StaleClaim(TenantFairError):
    """The claim's token or checkpoint number is no longer the stored one; nothing was written."""

    def __init__(self, run_id: UUID) -> None:
        self.run_id = run_id
        super().__init__(str(run_id))
