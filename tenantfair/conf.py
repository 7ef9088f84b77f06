"""`settings.TENANTFAIR`, read late and validated in one place.

`get_settings()` raises `ConfigurationError` naming the key and the remedy; `tenantfair.checks` turns the
same messages into system checks. Values that hold for the whole domain (cap, lease, attempts) are only
*asked for* here: a worker start writes them to the policy row, and the row is what claims obey.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any, Literal

from django.conf import settings as django_settings
from django.db import DEFAULT_DB_ALIAS

from tenantfair.exceptions import ConfigurationError

MAX_CAP = 2_147_483_647
SETTING = "TENANTFAIR"

TenantMode = Literal["required", "none"]
EngineName = Literal["tenant_fair", "legacy"]
ClaimCommits = Literal["synchronous", "asynchronous"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """One reading of `settings.TENANTFAIR`. Seconds are seconds, sizes are bytes."""

    tenant_mode: TenantMode = "required"
    engine: EngineName = "tenant_fair"
    default_max_active_runs: int | None = None
    claim_commits: ClaimCommits = "synchronous"
    database: str = DEFAULT_DB_ALIAS
    concurrency: int = 10
    poll_interval: float = 1.0
    lease_seconds: int = 60
    heartbeat_interval: float | None = None
    max_attempts: int = 5
    retry_limit: int = 3
    drain_timeout: float = 25.0
    max_payload_bytes: int = 256 * 1024
    max_payload_depth: int = 64
    listen: bool = True
    listen_database: str | None = None
    log_tenants: bool = False
    task_modules: tuple[str, ...] | None = None
    tenant_from_request: str | None = None

    @property
    def heartbeat_seconds(self) -> float:
        """How often a worker renews its leases: a quarter of the lease unless set."""
        return self.heartbeat_interval if self.heartbeat_interval is not None else self.lease_seconds / 4


def _integer(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigurationError(f"{SETTING}[{name!r}] must be an integer in {low}..{high}, not {value!r}")
    return value


def _seconds(name: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ConfigurationError(
            f"{SETTING}[{name!r}] must be a number of seconds in {low}..{high}, not {value!r}"
        )
    return float(value)


def _choice(name: str, value: object, choices: tuple[str, ...]) -> Any:
    if value not in choices:
        raise ConfigurationError(f"{SETTING}[{name!r}] must be one of {', '.join(choices)}, not {value!r}")
    return value


def _alias(name: str, value: object) -> str:
    if not isinstance(value, str) or value not in django_settings.DATABASES:
        raise ConfigurationError(f"{SETTING}[{name!r}] must name a key of DATABASES, not {value!r}")
    return value


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{SETTING}[{name!r}] must be True or False, not {value!r}")
    return value


def _modules(name: str, value: object) -> tuple[str, ...]:
    if (
        isinstance(value, str)
        or not isinstance(value, (list, tuple))
        or not all(isinstance(v, str) for v in value)
    ):
        raise ConfigurationError(f"{SETTING}[{name!r}] must be a list of module names, not {value!r}")
    return tuple(value)


@dataclass(frozen=True, slots=True)
class _Reading:
    """What was read, a copy of it that nobody changes, and what it came to."""

    raw: object
    copy: object
    seen: str
    aliases: list[str]
    settings: Settings


_last: _Reading | None = None


def get_settings() -> Settings:
    """Return the settings in force now; every call reads them again, so `override_settings` works.

    They are validated again only when they have changed: an enqueue asks several times.
    """
    global _last  # noqa: PLW0603 - replaced whole, so threads see an old or a new one
    raw, last = getattr(django_settings, SETTING, {}), _last
    aliases = list(django_settings.DATABASES)
    if last is not None and last.raw is raw and last.copy == raw and last.aliases == aliases:
        return last.settings
    # Another object is compared by repr and not by equality: True equals 1, and one of the two is refused.
    seen = repr(raw)
    known = last is not None and last.seen == seen and last.aliases == aliases
    settings = last.settings if last is not None and known else _validated(raw)
    _last = _Reading(raw, deepcopy(raw), seen, aliases, settings)
    return settings


def _validated(raw: object) -> Settings:
    if not isinstance(raw, dict):
        raise ConfigurationError(f"{SETTING} must be a dictionary, not {raw!r}")
    known = {field.name.upper() for field in fields(Settings)}
    unknown = sorted(str(key) for key in raw if key not in known)
    if unknown:
        raise ConfigurationError(
            f"{SETTING} has unknown keys: {', '.join(unknown)}. Known: {', '.join(sorted(known))}"
        )
    values: dict[str, Any] = {key.lower(): value for key, value in raw.items()}
    mode = values["tenant_mode"] = _choice(
        "TENANT_MODE", values.get("tenant_mode", "required"), ("required", "none")
    )
    default_engine = "tenant_fair" if mode == "required" else "legacy"
    engine = values["engine"] = _choice(
        "ENGINE", values.get("engine", default_engine), ("tenant_fair", "legacy")
    )
    _choice("CLAIM_COMMITS", values.get("claim_commits", "synchronous"), ("synchronous", "asynchronous"))
    if mode == "required" and engine != "tenant_fair":
        raise ConfigurationError(
            f"{SETTING}['ENGINE'] = {engine!r} knows no tenants; TENANT_MODE 'required' needs 'tenant_fair'"
        )
    if values.get("default_max_active_runs") is not None:
        _integer("DEFAULT_MAX_ACTIVE_RUNS", values["default_max_active_runs"], 1, MAX_CAP)
    for name, low, high in (
        ("CONCURRENCY", 1, 1000),
        ("LEASE_SECONDS", 1, 86_400),
        ("MAX_ATTEMPTS", 1, 32_767),
        ("RETRY_LIMIT", 0, 32_767),
        ("MAX_PAYLOAD_BYTES", 2, 64 * 1024 * 1024),
        ("MAX_PAYLOAD_DEPTH", 1, 256),
    ):
        if name.lower() in values:
            _integer(name, values[name.lower()], low, high)
    for name, lowest, highest in (("POLL_INTERVAL", 0.01, 3600.0), ("DRAIN_TIMEOUT", 0.0, 86_400.0)):
        if name.lower() in values:
            values[name.lower()] = _seconds(name, values[name.lower()], lowest, highest)
    if values.get("heartbeat_interval") is not None:
        values["heartbeat_interval"] = _seconds(
            "HEARTBEAT_INTERVAL", values["heartbeat_interval"], 0.01, 28_800.0
        )
    for name in ("DATABASE", "LISTEN_DATABASE"):
        # None means something for the second alone.
        if values.get(name.lower()) is not None or (name == "DATABASE" and name.lower() in values):
            _alias(name, values[name.lower()])
    for name in ("LISTEN", "LOG_TENANTS"):
        if name.lower() in values:
            _boolean(name, values[name.lower()])
    if values.get("task_modules") is not None:
        values["task_modules"] = _modules("TASK_MODULES", values["task_modules"])
    if values.get("tenant_from_request") is not None and not isinstance(values["tenant_from_request"], str):
        raise ConfigurationError(
            f"{SETTING}['TENANT_FROM_REQUEST'] must be a dotted path, not {values['tenant_from_request']!r}"
        )
    found = Settings(**values)
    if found.heartbeat_seconds * 3 >= found.lease_seconds:
        raise ConfigurationError(
            f"{SETTING}['LEASE_SECONDS'] = {found.lease_seconds} must be more than three heartbeats"
            f" ({found.heartbeat_seconds:g} s each)"
        )
    return found


def require_default_cap(found: Settings) -> int:
    """Return the configured default cap; `ConfigurationError` with the line to paste when there is none."""
    if found.default_max_active_runs is None:
        raise ConfigurationError(
            f'no default cap is configured. Add to settings: {SETTING} = {{"DEFAULT_MAX_ACTIVE_RUNS": 4}}'
        )
    return found.default_max_active_runs
