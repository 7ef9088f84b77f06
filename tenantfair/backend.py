"""The front door: a `django.tasks` backend whose queue is the host's own PostgreSQL.

    TASKS = {"default": {"BACKEND": "tenantfair.backend.TenantFairBackend"}}

| OPTIONS       | meaning                                                                                   |
|---------------|-------------------------------------------------------------------------------------------|
| `tenant`      | a callable without arguments, or its dotted path: the tenant of runs that are given none  |
| `retry_limit` | how many attempts of a run may fail, instead of `TENANTFAIR["RETRY_LIMIT"]`               |
| `database`    | the alias that holds the runs, instead of `TENANTFAIR["DATABASE"]`                        |

A run's tenant is the one named by `for_tenant()`, else the one current by `tenant()`, else what the callable
returns. A run without any is refused: it never lands in the tenantless scope by accident.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cached_property
from typing import Any, ParamSpec, TypeVar, cast

from django.conf import settings as django_settings
from django.core import checks
from django.utils.module_loading import import_string

from tenantfair import runs
from tenantfair.compat import (
    AnyTask,
    AnyTaskResult,
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    copy_task,
    signals,
)
from tenantfair.conf import get_settings
from tenantfair.exceptions import InvalidPayload, InvalidRun, InvalidTenant, RunNotFound
from tenantfair.execution import UnknownTask, change, resolve, task_errors
from tenantfair.runs import TENANTLESS, NewRun, RunView
from tenantfair.runs.enqueuing import create
from tenantfair.runs.new import RunDefaults, Tenantless
from tenantfair.tenants import current_tenant, validate_tenant

P = ParamSpec("P")
R = TypeVar("R")

_MAX_RETRY_LIMIT = 32_767
_STATUS = {
    "claimed": TaskResultStatus.RUNNING,
    "completed": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
    "poisoned": TaskResultStatus.FAILED,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class TenantTask(AnyTask):
    """A task bound to a tenant. It equals the task it was made from: the tenant is whose, not what."""

    tenant: str | Tenantless | None = field(default=None, compare=False)

    def using(self, *, tenant: str | Tenantless | None = None, **changes: Any) -> TenantTask:
        """Return a copy with other defaults, as `Task.using()`, or for another tenant."""
        changed = super().using(**changes)
        return cast("TenantTask", changed if tenant is None else for_tenant(changed, tenant))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and all(
            getattr(self, each.name) == getattr(other, each.name) for each in fields(Task)
        )

    __hash__ = Task.__hash__


def for_tenant(task: Task[P, R], tenant: str | Tenantless) -> Task[P, R]:
    """Return `task` bound to a tenant: `for_tenant(task, "acme").enqueue(...)`.

    `runs.TENANTLESS` asks for the tenantless scope by name. `InvalidTask` for what cannot name a tenant, None
    and the empty string included: a key that is missing must not mean whichever tenant is current.
    """
    if tenant is not TENANTLESS:
        try:
            validate_tenant(tenant)
        except InvalidTenant as error:
            raise InvalidTask(str(error)) from error
    return cast(
        "Task[P, R]",
        TenantTask(**{each.name: getattr(task, each.name) for each in fields(Task)}, tenant=tenant),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """OPTIONS of one alias, checked."""

    tenant: Callable[[], str | Tenantless | None] | None = None
    retry_limit: int | None = None
    database: str | None = None

    @classmethod
    def of(cls, raw: Mapping[str, Any], alias: str) -> Options:
        """Read OPTIONS; `InvalidTaskBackend` names what cannot work."""
        where = f"TASKS[{alias!r}]['OPTIONS']"
        if not isinstance(raw, Mapping):
            raise InvalidTaskBackend(f"{where} must be a mapping, not {raw!r}")
        unknown = sorted(map(str, raw.keys() - {each.name for each in fields(cls)}))
        if unknown:
            raise InvalidTaskBackend(f"{where} has unknown keys: {', '.join(unknown)}")
        tenant, limit, database = raw.get("tenant"), raw.get("retry_limit"), raw.get("database")
        if isinstance(tenant, str):
            try:
                tenant = import_string(tenant)
            except ImportError as error:
                raise InvalidTaskBackend(f"{where}['tenant'] cannot be imported: {error}") from error
        if tenant is not None and not callable(tenant):
            raise InvalidTaskBackend(
                f"{where}['tenant'] must be a callable or its dotted path, not {tenant!r}"
            )
        if limit is not None and (type(limit) is not int or not 0 <= limit <= _MAX_RETRY_LIMIT):
            raise InvalidTaskBackend(
                f"{where}['retry_limit'] must be an integer in 0..{_MAX_RETRY_LIMIT}, not {limit!r}"
            )
        if database is not None and not (isinstance(database, str) and database in django_settings.DATABASES):
            raise InvalidTaskBackend(f"{where}['database'] must name a key of DATABASES, not {database!r}")
        return cls(tenant=tenant, retry_limit=limit, database=database)


class TenantFairBackend(BaseTaskBackend):
    """Enqueues runs in the caller's transaction and reads their results."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    # Within a tenant runs start in order of their due time, so there is no priority to keep.
    supports_priority = False

    def validate_task(self, task: AnyTask) -> None:
        """As Django's, and `run_after` may also be a timedelta, counted from the enqueue."""
        run_after: object = task.run_after
        if isinstance(run_after, timedelta):
            task = copy_task(task, run_after=None)
        super().validate_task(task)

    def enqueue(self, task: Task[P, R], args: Iterable[Any], kwargs: Mapping[str, Any]) -> TaskResult[P, R]:
        """Create a run of `task`; others see it if and only if the caller's transaction commits.

        `InvalidTask`: no tenant, a bad tenant id, or a task that no worker could find. `TypeError` and
        `InvalidPayload`: arguments that cannot be stored. Nothing is written then. `task_enqueued` is sent at
        once, in the caller's transaction.
        """
        self.validate_task(task)
        result = self._queued(task, list(args), dict(kwargs))
        try:
            run_id, enqueued_at = create(
                NewRun(
                    task=task,
                    args=result.args,
                    kwargs=result.kwargs,
                    tenant_id=self._tenant_of(task),
                    retry_limit=self._checked.retry_limit,
                ),
                using=self._database,
            )
        except (InvalidRun, InvalidTenant) as error:
            raise InvalidTask(str(error)) from error
        change(result, id=str(run_id), enqueued_at=enqueued_at)
        signals.task_enqueued.send_robust(sender=type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> AnyTaskResult:
        """Return the result of a run of any alias of this backend's database.

        `TaskResultDoesNotExist`: there is no such run. `TaskResultMismatch`: its task cannot be found.
        """
        try:
            view = runs.get(result_id, using=self._database)
        except (InvalidRun, RunNotFound) as error:
            raise TaskResultDoesNotExist(result_id) from error
        try:
            task = resolve(view.task_path, view.backend)
        except UnknownTask as error:
            raise TaskResultMismatch(error.reason) from error
        return _result(copy_task(task, queue_name=view.queue_name), view)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Return what is wrong with this backend's settings, without asking the database."""
        try:
            Options.of(self.options, self.alias)
        except InvalidTaskBackend as error:
            return [checks.Error(str(error), obj=self.alias, id="tenantfair.E101")]
        return []

    @cached_property
    def run_defaults(self) -> RunDefaults:
        """What OPTIONS say of every run of this alias, however it is enqueued."""
        return RunDefaults(database=self._checked.database, retry_limit=self._checked.retry_limit)

    @cached_property
    def _checked(self) -> Options:
        return Options.of(self.options, self.alias)

    @property
    def _database(self) -> str:
        return self._checked.database or get_settings().database

    def _tenant_of(self, task: AnyTask) -> str | Tenantless | None:
        """Return whose run this will be; `InvalidTask` where nobody says and tenants are required."""
        found = getattr(task, "tenant", None)
        if found is None:
            found = current_tenant()
        if found is None and self._checked.tenant is not None:
            found = self._checked.tenant()
        if not found and get_settings().tenant_mode == "required":
            raise InvalidTask(
                f"no tenant for {task.module_path}: bind one by for_tenant(task, key) or `with tenant(key):`,"
                " or name a callable in OPTIONS['tenant']"
            )
        return found or None

    def _queued(self, task: Task[P, R], args: list[Any], kwargs: dict[str, Any]) -> TaskResult[P, R]:
        """Return the result that describes a run before it exists; `TypeError` as the framework raises it."""
        try:
            return TaskResult(
                task=task,
                id="",
                status=TaskResultStatus.READY,
                enqueued_at=None,
                started_at=None,
                finished_at=None,
                last_attempted_at=None,
                args=args,
                kwargs=kwargs,
                backend=self.alias,
                errors=[],
                worker_ids=[],
            )
        except RecursionError:
            raise InvalidPayload("the arguments are nested too deep") from None
        except ValueError as error:
            # As for bytes that are no text.
            raise InvalidPayload(f"the arguments are no JSON: {error}") from error


def _result(task: AnyTask, view: RunView) -> AnyTaskResult:
    result = TaskResult(
        task=task,
        id=str(view.run_id),
        status=_STATUS.get(view.state, TaskResultStatus.READY),
        enqueued_at=view.enqueued_at,
        started_at=view.started_at,
        finished_at=view.finished_at or view.poisoned_at,
        last_attempted_at=view.last_attempted_at,
        args=view.args,
        kwargs=view.kwargs,
        backend=view.backend,
        errors=task_errors(view.errors),
        worker_ids=list(view.worker_ids),
    )
    if result.status == TaskResultStatus.SUCCESSFUL:
        change(result, _return_value=view.result)
    return result
