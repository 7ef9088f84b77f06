"""Whether the tasks of unfinished runs can be found on this host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.db import connections

from tenantfair.execution.resolve import UnknownTask, resolve
from tenantfair.sql import load

MOST_TASKS: Final = 1000

Pair = tuple[str, str, int]


def named_tasks(alias: str) -> list[Pair]:
    """Return path, backend and number of runs of each task, of the `MOST_TASKS` + 1 most frequent."""
    with connections[alias].cursor() as cursor:
        cursor.execute(load("doctor_tasks"), {"most_tasks": MOST_TASKS})
        return list(cursor.fetchall())


def unknown_tasks(pairs: list[Pair]) -> Iterator[tuple[str, int, list[str]]]:
    """Yield what is wrong with the tasks. Imports their modules: call it outside any transaction."""
    for path, backend, number in pairs[:MOST_TASKS]:
        try:
            resolve(path, backend)
        except UnknownTask as unknown:
            yield "task_unknown", 1, [f"{number} runs of {path} ({backend}): {unknown.reason}"]
    if len(pairs) > MOST_TASKS:
        yield "tasks_unchecked", 1, [f"the {MOST_TASKS} most frequent were looked up"]
