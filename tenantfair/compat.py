"""The task framework under one set of names, whichever package brings it.

Django 6 has `django.tasks`; beside Django 5.2 stands the `django-tasks` backport. Nothing else in tenantfair
imports either.
"""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import django
from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING or django.VERSION >= (6,):
    from django.tasks import (
        DEFAULT_TASK_BACKEND_ALIAS,
        Task,
        TaskContext,
        TaskResult,
        TaskResultStatus,
        signals,
        task,
        task_backends,
    )
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import (
        InvalidTask,
        InvalidTaskBackend,
        TaskResultDoesNotExist,
        TaskResultMismatch,
    )
    from django.utils.json import normalize_json
else:
    try:
        import django_tasks
    except ImportError as error:
        raise ImproperlyConfigured(
            'Django 5.2 has no django.tasks: install "tenantfair[backport]"'
            ' and add "django_tasks" to INSTALLED_APPS'
        ) from error
    from django_tasks import (
        DEFAULT_TASK_BACKEND_ALIAS,
        TaskContext,
        TaskResult,
        TaskResultStatus,
        signals,
        task,
        task_backends,
    )
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.utils import normalize_json

    # The backport has renamed these two to Django's names, after 0.12.
    _exceptions = import_module("django_tasks.exceptions")
    InvalidTask = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
    InvalidTaskBackend = (
        getattr(_exceptions, "InvalidTaskBackend", None) or _exceptions.InvalidTaskBackendError
    )
    del django_tasks, _exceptions

if TYPE_CHECKING:
    AnyTask: TypeAlias = Task[..., Any]
    AnyTaskContext: TypeAlias = TaskContext[..., Any]
    AnyTaskResult: TypeAlias = TaskResult[..., Any]
else:
    # Only the type stubs and the backport know these classes as generic.
    AnyTask, AnyTaskContext, AnyTaskResult = Task, TaskContext, TaskResult

__all__ = [
    "DEFAULT_TASK_BACKEND_ALIAS",
    "AnyTask",
    "AnyTaskContext",
    "AnyTaskResult",
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "copy_task",
    "normalize_json",
    "register_checks",
    "signals",
    "task",
    "task_backends",
]

T = TypeVar("T", bound=AnyTask)


def register_checks() -> None:
    """Have the framework's system check run: it registers itself when its module is imported."""
    import_module(f"{signals.__package__}.checks")


def copy_task(original: T, **changes: Any) -> T:
    """Return a copy of a task with some fields changed and nothing validated.

    `Task.using()` asks the backend again. A task that is already enqueued has passed that once, and must
    not be refused now because QUEUES or BACKEND changed since.
    """
    copy = object.__new__(type(original))
    for field in fields(original):
        object.__setattr__(copy, field.name, changes.get(field.name, getattr(original, field.name)))
    return copy
