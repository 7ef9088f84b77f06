"""What a new run is made of, checked whole before anything reaches SQL."""

from __future__ import annotations

import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from types import NoneType
from typing import Any, Final, NamedTuple
from uuid import UUID

from tenantfair import payloads
from tenantfair.compat import AnyTask, Task
from tenantfair.conf import Settings, get_settings
from tenantfair.exceptions import InvalidPayload, InvalidRun, InvalidTenant
from tenantfair.run_ids import new_run_id
from tenantfair.runs import _arguments
from tenantfair.tenants import validate_tenant

_PLAIN: Final = (tuple, list)
_NAMED: Final = (dict, NoneType)


class Tenantless(Enum):
    """The type of `TENANTLESS`."""

    TENANTLESS = "tenantless"


# Asks for the tenantless scope by name, which "no tenant given" never does by accident.
TENANTLESS: Final = Tenantless.TENANTLESS


class RunDefaults(NamedTuple):
    """What a task's backend says of its runs, as its `run_defaults`; None leaves it to the settings."""

    database: str | None = None
    retry_limit: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRun:
    """One run to enqueue. What is None comes from the task and its backend, then from the settings.

    `run_after` is an aware datetime, or a timedelta counted from the database's clock. `retry_limit` is the
    number of attempts that may fail before the run fails.
    """

    task: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    tenant_id: str | Tenantless | None = None
    run_id: UUID | str | None = None
    run_after: datetime | timedelta | None = None
    queue_name: str | None = None
    retry_limit: int | None = None


class Columns(NamedTuple):
    """The columns of one new row that the caller decides."""

    run_id: UUID
    tenant_id: str | None
    task_path: str
    args: str
    kwargs: str
    queue_name: str
    backend: str
    retry_limit: int
    run_after: datetime | None
    delay: timedelta | None


class _Known(NamedTuple):
    """What one task decides for all of its runs."""

    task: AnyTask
    path: str
    queue: str
    backend: str
    retry_limit: int
    database: str


class Preparation:
    """Turns `NewRun`s into `Columns` under one reading of the settings."""

    def __init__(self) -> None:
        self._settings: Settings = get_settings()
        # Keyed by identity: equal tasks may belong to different tenants. The task is kept, so the key is too.
        self._tasks: dict[int, _Known] = {}
        self._tenants: set[str] = set()

    def columns(self, new: NewRun) -> Columns:
        """Return the row for `new`; `InvalidRun`, `InvalidTenant` or `InvalidPayload` says what is wrong."""
        task, path, queue, backend, limit, _ = self._tasks.get(id(new.task)) or self._known(new.task)
        after = task.run_after if new.run_after is None else new.run_after
        if new.queue_name is not None:
            queue = _queue(task, new.queue_name, task.get_backend().queues)
        if new.retry_limit is not None:
            limit = _arguments.count(new.retry_limit, what="retry_limit", low=0, high=32_767)
        args, kwargs = self._payload(new.args, new.kwargs)
        return Columns(
            new_run_id() if new.run_id is None else _arguments.run_id(new.run_id),
            self._tenant(new.tenant_id, task),
            path,
            args,
            kwargs,
            queue,
            backend,
            limit,
            *_arguments.due(after, what="run_after"),
        )

    def database(self, using: str | None) -> str:
        """Return `using`, else the alias that holds the runs of all tasks met; `InvalidRun` for several."""
        if using is not None:
            return using
        found = {known.database for known in self._tasks.values()} or {self._settings.database}
        if len(found) > 1:
            raise InvalidRun(
                f"the tasks belong to several databases ({', '.join(sorted(found))}): enqueue those of each"
                " database by a call of its own, or name one by using="
            )
        return found.pop()

    def _known(self, task: object) -> _Known:
        if not isinstance(task, Task):
            raise InvalidRun(f"only a Task object can be enqueued, not {type(task).__name__}")
        _require_findable(task)
        alias = _arguments.label(task.backend, what="backend")
        backend = task.get_backend()
        queue = _queue(task, task.queue_name, backend.queues)
        said = getattr(backend, "run_defaults", None)
        database, limit = said if isinstance(said, RunDefaults) else (None, None)
        known = _Known(
            task,
            task.module_path,
            queue,
            alias,
            self._settings.retry_limit if limit is None else limit,
            database or self._settings.database,
        )
        self._tasks[id(task)] = known
        return known

    def _tenant(self, given: object, task: AnyTask) -> str | None:
        wanted = getattr(task, "tenant", None) if given is None else given
        if wanted is TENANTLESS:
            return None
        if self._settings.tenant_mode == "none":
            if wanted is not None:
                raise InvalidTenant("TENANT_MODE is 'none': runs have no tenant")
            return None
        if wanted is None:
            raise InvalidTenant("a run needs a tenant id; runs.TENANTLESS asks for the tenantless scope")
        if type(wanted) is str and wanted in self._tenants:
            return wanted
        tenant = validate_tenant(wanted)
        self._tenants.add(tenant)
        return tenant

    def _payload(self, args: object, kwargs: object) -> tuple[str, str]:
        if type(args) in _PLAIN and type(kwargs) in _NAMED and not args and not kwargs:
            return "[]", "{}"
        if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
            raise InvalidRun(f"args is a list or a tuple, not {type(args).__name__}")
        if kwargs is None:
            kwargs = {}
        if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
            raise InvalidRun("kwargs is a mapping whose keys are strings")
        encoded = (
            payloads.encode(args, what="args", limits=self._settings),
            payloads.encode(kwargs, what="kwargs", limits=self._settings),
        )
        size = sum(map(payloads.size_of, encoded))
        if size > self._settings.max_payload_bytes:
            limit = self._settings.max_payload_bytes
            raise InvalidPayload(f"args and kwargs have {size} bytes of JSON together, the limit is {limit}")
        return encoded


def _require_findable(task: AnyTask) -> None:
    """`InvalidRun` unless a worker will find a Task object under the path that the run stores."""
    module = sys.modules.get(task.func.__module__)
    found = getattr(module, task.func.__qualname__, None)
    if not isinstance(found, Task) or not task.module_path.isprintable():
        raise InvalidRun(f"there is no Task object at {task.module_path!r:.200}")


def _queue(task: AnyTask, name: object, queues: Container[str]) -> str:
    checked = _arguments.label(name, what="queue_name")
    if queues and checked not in queues:
        raise InvalidRun(f"queue {checked!r} is not one of the QUEUES of backend {task.backend!r}")
    return checked
