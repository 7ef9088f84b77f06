"""Tasks for workers that run inside the test's process, where tests reach them by `GATES`."""

from __future__ import annotations

import os
import threading
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from tenantfair.compat import task
from tenantfair.models import Run
from tests.worker_parts import GATES


@task
def thread_name() -> str:
    return threading.current_thread().name


@task(takes_context=True)
def meet(context: Any, name: str) -> list[bool]:
    """Say `NAME started`, wait for `NAME`, and tell what the context knows then."""
    GATES[f"{name} started"].set()
    GATES.wait(name)
    return [context.still_owner(), context.should_yield()]


@task
async def meet_async(name: str) -> int:
    GATES[f"{name} started"].set()
    await sync_to_async(GATES.wait, thread_sensitive=False)(name)
    return await Run.objects.acount()


@task
def session() -> list[Any]:
    """Return who the task is to the server, in which isolation, and the server process."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('application_name'), current_setting('transaction_isolation'),"
            " pg_backend_pid()"
        )
        return list(cursor.fetchone())


@task
def leave_transaction_open() -> int:
    """Insert inside a block that is never left."""
    transaction.atomic().__enter__()
    Run.objects.create(
        tenant_id="left open", task_path="never", status="completed", finished_at="2020-01-01T00:00Z"
    )
    return os.getpid()


@task
def kill_own_session() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
