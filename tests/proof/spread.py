"""Units of work spread over two processes, each on a database of its own with a fresh install."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from tests.proof.record import Row

PROCESSES = 2


def spread(units: Sequence[Any], work: Callable[[Any], Row], processes: int = PROCESSES) -> Iterator[Row]:
    """Yield `work(unit)` of each unit as it is done, its seconds shared among the processes.

    `work` is a plain function of a module. An exception of one unit ends them all.
    """
    context = multiprocessing.get_context("spawn")
    numbers = context.Value("i", 0)
    pool = ProcessPoolExecutor(processes, context, _begin, (os.environ["DATABASE_URL"], numbers, os.getpid()))
    try:
        for future in as_completed([pool.submit(work, unit) for unit in units]):
            row = future.result()
            yield replace(row, seconds=row.seconds / processes)
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(url: str, numbers: Any, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with numbers.get_lock():
        numbers.value += 1
        number = numbers.value
    os.environ["DATABASE_URL"] = own_database(url, f"spread_{number}")
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def own_database(url: str, name: str) -> str:
    """Make an empty database beside the one of `url` and return its URL."""
    parts = urlsplit(url)
    name = f"{parts.path.lstrip('/')}_{name}"
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        session.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return urlunsplit(parts._replace(path=f"/{name}"))
