"""Tasks that misuse what they are given, and one that shows what they left behind."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.db import connection, transaction

from tenantfair.compat import task
from tenantfair.models import Run
from tenantfair.runs import interrupt


def note(text: str) -> None:
    """Leave a row that tells what has been committed."""
    Run.objects.create(tenant_id=text, task_path="note", status="completed", finished_at="2020-01-01T00:00Z")


@task
def write(text: str) -> None:
    note(text)


@task
def begin_and_leave() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
    note("uncommitted")


@task
def turn_autocommit_off() -> None:
    transaction.set_autocommit(False)
    note("uncommitted")


@task
def fork_a_child(way: str) -> int:
    """Fork a child that leaves the task by `way`; return its exit status."""
    connection.ensure_connection()
    child = os.fork()
    if child == 0:
        if way == "exit":
            sys.exit(3)
        if way == "raise":
            raise ValueError("in the child")
        return -1
    _, status = os.waitpid(child, 0)
    note("parent")
    return os.waitstatus_to_exitcode(status)


@task(takes_context=True)
def yield_after_a_rollback(context: Any, inside: str) -> str:
    """Lose a checkpoint to a rollback, then go on by a `yield_` that saves another state."""
    if context.state == "saved":
        return "done"
    try:
        with transaction.atomic():
            context.checkpoint("lost")
            raise ValueError(inside)
    except ValueError:
        pass
    if inside == "checkpoint":
        context.checkpoint("first")
    context.yield_(state="saved")


@task(takes_context=True)
def interrupt_itself(context: Any) -> int:
    if context.attempt == 1:
        interrupt(context.run_id)
    return int(context.attempt)
