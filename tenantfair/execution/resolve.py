"""From the dotted path of a run to the `Task` object that it names."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from tenantfair.compat import AnyTask, Task, copy_task, task_backends
from tenantfair.conf import get_settings
from tenantfair.exceptions import TenantFairError
from tenantfair.payloads import safe_error_text

_REASON_BYTES = 1024
_MOST_COPIES = 1000


class UnknownTask(TenantFairError):
    """This host cannot run the task; another one, or a later version of this one, may.

    `reason` is one storable line of at most 1 KiB.
    """

    def __init__(self, reason: str) -> None:
        self.reason = safe_error_text(reason, _REASON_BYTES)
        super().__init__(self.reason)


def resolve(task_path: str, backend: str, queue_name: str | None = None) -> AnyTask:
    """Return the task named by `task_path`, bound to the backend alias and the queue name of the run.

    The path is a module and one attribute of it, which must be a `Task` object. `UnknownTask` says what is
    in the way: the path, `TASK_MODULES`, whatever the import raised (`SystemExit` included), or a backend
    alias that this host does not have.
    """
    module_name, _, name = task_path.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in task_path.split(".")):
        raise UnknownTask(f"{task_path!r} is not the dotted path of a module and a task in it")
    allowed = get_settings().task_modules
    if allowed is not None and not any(_is_within(module_name, prefix) for prefix in allowed):
        raise UnknownTask(f"{module_name!r} is not among TASK_MODULES")
    try:
        found = getattr(import_module(module_name), name)
    except BaseException as error:  # a module's body may raise anything
        raise UnknownTask(f"{task_path!r} cannot be imported: {_describe(error)}") from error
    if not isinstance(found, Task):
        raise UnknownTask(f"{task_path!r} is not a Task but a {type(found).__name__}")
    try:
        task_backends[backend]
    except Exception as error:  # the constructor of any class that TASKS may name
        raise UnknownTask(f"no task backend {backend!r} on this host: {_describe(error)}") from error
    return _bound(found, task_path, backend, found.queue_name if queue_name is None else queue_name)


# The task as last found under a path, and the copy made of it. Every run of a task asks for the same one.
_copies: Final[dict[tuple[str, str, str], tuple[AnyTask, AnyTask]]] = {}


def _bound(found: AnyTask, task_path: str, backend: str, queue_name: str) -> AnyTask:
    key = (task_path, backend, queue_name)
    known = _copies.get(key)
    if known is not None and known[0] is found:
        return known[1]
    if len(_copies) >= _MOST_COPIES:
        _copies.clear()
    copy = copy_task(found, backend=backend, queue_name=queue_name)
    _copies[key] = (found, copy)
    return copy


def _is_within(module_name: str, prefix: str) -> bool:
    return module_name == prefix or module_name.startswith(f"{prefix}.")


def _describe(error: BaseException) -> str:
    """`type: text` of an exception, also of one that cannot be turned into text."""
    try:
        text = str(error)
    except BaseException:  # the exception's own code
        text = "<no text>"
    return f"{type(error).__name__}: {text}"
