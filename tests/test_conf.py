"""`settings.TENANTFAIR`: every key is checked, read late, and not taken for another that equals it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from tenantfair.conf import Settings, get_settings, require_default_cap
from tenantfair.exceptions import ConfigurationError


def reading(**values: Any) -> Settings:
    with override_settings(TENANTFAIR=values):
        return get_settings()


def test_nothing_set_is_tenants_required_and_no_cap() -> None:
    found = reading()

    assert (found.tenant_mode, found.engine, found.default_max_active_runs) == (
        "required",
        "tenant_fair",
        None,
    )
    assert found.heartbeat_seconds == found.lease_seconds / 4
    with pytest.raises(ConfigurationError, match="DEFAULT_MAX_ACTIVE_RUNS"):
        require_default_cap(found)


def test_no_tenants_means_the_legacy_engine_unless_another_is_named() -> None:
    assert reading(TENANT_MODE="none").engine == "legacy"
    assert reading(TENANT_MODE="none", ENGINE="tenant_fair").engine == "tenant_fair"
    with pytest.raises(ConfigurationError, match="knows no tenants"):
        reading(ENGINE="legacy")


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("DEFAULT_MAX_ACTIVE_RUNS", [0, -1, 2_147_483_648, True, "4", 4.0]),
        ("CONCURRENCY", [0, 1001, True, "8"]),
        ("LEASE_SECONDS", [0, 86_401, 60.0]),
        ("MAX_ATTEMPTS", [0, 32_768]),
        ("RETRY_LIMIT", [-1, 32_768]),
        ("MAX_PAYLOAD_BYTES", [1, 64 * 1024 * 1024 + 1]),
        ("MAX_PAYLOAD_DEPTH", [0, 257]),
        ("POLL_INTERVAL", [0, 3601, "1", True, float("nan")]),
        ("DRAIN_TIMEOUT", [-1, 86_401]),
        ("HEARTBEAT_INTERVAL", [0, 28_801, True]),
        ("TENANT_MODE", ["some", None]),
        ("ENGINE", ["fair", None]),
        ("DATABASE", ["elsewhere", 1, None]),
        ("LISTEN_DATABASE", ["elsewhere"]),
        ("LISTEN", ["yes", 1]),
        ("LOG_TENANTS", ["yes", 0]),
        ("TASK_MODULES", ["app.tasks", [1]]),
        ("TENANT_FROM_REQUEST", [1]),
        ("default_max_active_runs", [4]),
        ("UNKNOWN", [1]),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_its_key(key: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigurationError, match=key):
            reading(**{key: value})


def test_three_heartbeats_fit_into_a_lease() -> None:
    assert reading(LEASE_SECONDS=31, HEARTBEAT_INTERVAL=10).heartbeat_seconds == 10
    with pytest.raises(ConfigurationError, match="three heartbeats"):
        reading(LEASE_SECONDS=30, HEARTBEAT_INTERVAL=10)


def test_a_change_is_seen_at_once_also_inside_the_same_dictionary() -> None:
    values: dict[str, Any] = {"CONCURRENCY": 1}
    with override_settings(TENANTFAIR=values):
        assert get_settings().concurrency == 1
        values["CONCURRENCY"] = 2
        assert get_settings().concurrency == 2
        values["CONCURRENCY"] = True
        with pytest.raises(ConfigurationError, match="CONCURRENCY"):
            get_settings()
        values["CONCURRENCY"] = 1
        assert get_settings().concurrency == 1


@override_settings(TENANTFAIR=[])
def test_anything_but_a_dictionary_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="dictionary"):
        get_settings()
