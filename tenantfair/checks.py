"""System checks. Ids are stable; `CHECKS` lists each with what it means and what to do.

Checks that ask the database run only for the aliases they are given, as `check --database` and `migrate` do.
Unapplied migrations are no finding: Django reports them, and `migrate` must pass the checks to apply them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from django.apps import AppConfig
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.module_loading import import_string

from tenantfair import schema
from tenantfair.backend import Options, TenantFairBackend
from tenantfair.compat import InvalidTaskBackend
from tenantfair.conf import Settings, get_settings, require_default_cap
from tenantfair.exceptions import ConfigurationError
from tenantfair.models import Run

__all__ = ["CHECKS", "Check", "register_checks"]

Databases = Sequence[str] | None


class Check(NamedTuple):
    """One thing that is checked: a stable id, what a finding means, and the hint shown with it."""

    id: str
    meaning: str
    hint: str


CHECKS: Final = {
    check.id: check
    for check in (
        Check(
            "tenantfair.E001",
            "settings.TENANTFAIR cannot work as it is.",
            "Correct the named key; the settings reference lists all keys and their ranges.",
        ),
        Check(
            "tenantfair.E002",
            "No default cap is configured, so no worker would start.",
            'Add to settings: TENANTFAIR = {"DEFAULT_MAX_ACTIVE_RUNS": 4}.',
        ),
        Check(
            "tenantfair.E003",
            "The database is not PostgreSQL.",
            'Let TENANTFAIR["DATABASE"], TENANTFAIR["LISTEN_DATABASE"] and OPTIONS["database"] of entries of'
            ' TASKS name aliases with ENGINE "django.db.backends.postgresql".',
        ),
        Check(
            "tenantfair.E004",
            "TENANT_FROM_REQUEST leads to no callable, so no request would be answered.",
            "Give the dotted path of a callable that takes a request and returns a tenant id or None.",
        ),
        Check(
            "tenantfair.E005",
            "The connection runs on psycopg2.",
            "Install psycopg 3.2 or newer; Django prefers it where both are installed.",
        ),
        Check(
            "tenantfair.E006",
            "A database router keeps tenantfair's tables off the database that its runs belong to.",
            "Let allow_migrate() accept the app label tenantfair on that alias, or change"
            ' TENANTFAIR["DATABASE"] or OPTIONS["database"] of the entry of TASKS.',
        ),
        Check(
            "tenantfair.E007",
            "The PostgreSQL server is too old.",
            "PostgreSQL 15 or newer is needed.",
        ),
        Check(
            "tenantfair.E008",
            "The database is not encoded in UTF8, so task arguments and tenant ids would not fit.",
            "Create the database with ENCODING 'UTF8' and migrate it.",
        ),
        Check(
            "tenantfair.E009",
            "All migrations are applied, but the database lacks what they install: counts would not move and"
            " runs would not be claimed.",
            "Run `manage.py tenantfair_doctor --reinstall --fix`; it names what is left.",
        ),
        Check(
            "tenantfair.W001",
            "No entry of TASKS uses tenantfair, so task.enqueue() does not reach it.",
            'Add to settings: TASKS = {"default": {"BACKEND": "tenantfair.backend.TenantFairBackend"}}.',
        ),
        Check(
            "tenantfair.W002",
            "Database routers send queries about tenantfair's models to another alias than"
            ' TENANTFAIR["DATABASE"].',
            "Let db_for_read() and db_for_write() return that alias for the app label tenantfair.",
        ),
        Check(
            "tenantfair.W003",
            "Transactions do not start at READ COMMITTED. Workers do, but elsewhere claims are refused, and a"
            " commit that enqueues can fail with 40001 beside another for the same tenant.",
            'Retry such commits, or remove "isolation_level" from the alias\'s OPTIONS (and'
            " default_transaction_isolation from the database and role).",
        ),
    )
}


def register_checks() -> None:
    """Register all checks with Django; calling it again changes nothing."""
    register(check_settings, "tenantfair")
    register(check_connection, "tenantfair")
    register(check_tasks, "tenantfair")
    register(check_database, "tenantfair", Tags.database)


def _error(check_id: str, detail: str) -> Error:
    return Error(detail, hint=CHECKS[check_id].hint, id=check_id)


def _warning(check_id: str, detail: str) -> Warning:
    return Warning(detail, hint=CHECKS[check_id].hint, id=check_id)


def _settings() -> Settings | None:
    """Return the settings, or None where `check_settings` has reported them."""
    try:
        return get_settings()
    except ConfigurationError:
        return None


def check_settings(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """E001, E002, E004: the settings can work, a default cap is there for the engine that needs one."""
    try:
        settings = get_settings()
    except ConfigurationError as error:
        return [_error("tenantfair.E001", str(error))]
    if settings.engine == "tenant_fair":
        try:
            require_default_cap(settings)
        except ConfigurationError as error:
            return [_error("tenantfair.E002", str(error))]
    path = settings.tenant_from_request
    if path is not None and not _is_callable(path):
        return [_error("tenantfair.E004", f"there is no callable at {path!r}")]
    return []


def _is_callable(path: str) -> bool:
    try:
        return callable(import_string(path))
    except ImportError:
        return False


def _our_entries() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the alias and the parameters of each entry of TASKS that leads to tenantfair."""
    for alias, params in getattr(django_settings, "TASKS", {}).items():
        try:
            backend = import_string(params["BACKEND"])
        except (ImportError, KeyError):
            continue  # Django's own check names it.
        if isinstance(backend, type) and issubclass(backend, TenantFairBackend):
            yield alias, params


def _aliases(settings: Settings) -> list[str]:
    """Return the aliases that hold runs: the one of the settings, then those that entries of TASKS name."""
    found = {settings.database: None}
    for alias, params in _our_entries():
        try:
            database = Options.of(params.get("OPTIONS", {}), alias).database
        except InvalidTaskBackend:
            continue  # E101 names it.
        if database is not None:
            found[database] = None
    return list(found)


def check_connection(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """E003, E005, E006, W002, W003: tenantfair can work on the aliases, without asking the databases."""
    settings = _settings()
    if settings is None:
        return []
    messages = [message for alias in _aliases(settings) for message in _alias_messages(alias, settings)]
    listening = settings.listen_database
    if listening is not None and listening not in _aliases(settings):
        messages += _vendor_messages(listening)
    return messages


def _alias_messages(alias: str, settings: Settings) -> Iterator[CheckMessage]:
    other_vendor = list(_vendor_messages(alias))
    if other_vendor:
        yield from other_vendor
        return
    yield from _driver_messages(connections[alias])
    if not router.allow_migrate_model(alias, Run):
        yield _error("tenantfair.E006", f"no router allows tenantfair's tables on the alias {alias!r}")
    # Routers can answer one alias only; whoever asks another domain names its alias.
    if alias == settings.database:
        yield from _router_messages(alias)


def _vendor_messages(alias: str) -> Iterator[CheckMessage]:
    if connections[alias].vendor != "postgresql":
        yield _error("tenantfair.E003", f"the alias {alias!r} is {connections[alias].display_name}")


def _driver_messages(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    # Imports psycopg, which a project on another database need not have.
    from django.db.backends.postgresql.psycopg_any import IsolationLevel, is_psycopg3  # noqa: PLC0415

    if not is_psycopg3:
        yield _error("tenantfair.E005", f"the alias {connection.alias!r} runs on psycopg2")
    level = connection.settings_dict["OPTIONS"].get("isolation_level")
    if level is not None and level != IsolationLevel.READ_COMMITTED:
        yield _warning("tenantfair.W003", f"the alias {connection.alias!r} sets isolation_level {level!r}")


def _router_messages(alias: str) -> Iterator[CheckMessage]:
    for question, answer in (("read", router.db_for_read(Run)), ("write", router.db_for_write(Run))):
        if answer != alias:
            yield _warning(
                "tenantfair.W002", f"db_for_{question}() answers {answer!r}, but runs are in {alias!r}"
            )


def check_tasks(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """W001: the framework's front door leads to tenantfair."""
    if any(_our_entries()):
        return []
    return [_warning("tenantfair.W001", "no entry of TASKS uses tenantfair")]


def check_database(
    app_configs: Sequence[AppConfig] | None, databases: Databases = None, **_: Any
) -> list[CheckMessage]:
    """E007 to E009, W003: the servers and the installed objects, asked of the databases themselves."""
    settings = _settings()
    if settings is None:
        return []
    asked = [alias for alias in _aliases(settings) if alias in (databases or ())]
    return [message for alias in asked for message in _database_messages(alias)]


def _database_messages(alias: str) -> list[CheckMessage]:
    if connections[alias].vendor != "postgresql" or not router.allow_migrate_model(alias, Run):
        return []
    messages: list[CheckMessage] = []
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('server_version_num')::integer, current_setting('server_encoding'),"
            " current_setting('transaction_isolation')"
        )
        version, encoding, isolation = cursor.fetchone()
    if version < schema.MIN_SERVER_VERSION:
        messages.append(_error("tenantfair.E007", f"the server is PostgreSQL {version // 10_000}"))
    if encoding != "UTF8":
        messages.append(_error("tenantfair.E008", f"the server encoding is {encoding}"))
    if isolation != "read committed":
        messages.append(_warning("tenantfair.W003", f"transactions on {alias!r} start at {isolation}"))
    if schema.has_tables(alias) and not schema.pending_migrations(alias):
        messages += (_error("tenantfair.E009", problem) for problem in schema.object_problems(alias))
    return messages
