"""Where the mutants' databases are: on the server that DATABASE_URL names, else on a private one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import SplitResult, urlsplit, urlunsplit

import psycopg

from example_project.postgres import PrivateServer


@contextmanager
def databases(jobs: int) -> Iterator[list[str]]:
    """Yield the URL of a database for each job; they are gone afterwards."""
    given = os.environ.get("DATABASE_URL")
    if given is None:
        with PrivateServer() as server:
            yield from _made(server.url(), jobs)
        return
    yield from _made(given, jobs)


def _made(url: str, jobs: int) -> Iterator[list[str]]:
    # Of this process, so that two runs at one server do not meet.
    names = [f"mutants_{os.getpid()}_{job}" for job in range(jobs)]
    parts = urlsplit(url)
    with psycopg.connect(_at(parts, "postgres"), autocommit=True) as session:
        for name in names:
            session.execute(f"CREATE DATABASE {name}")
    try:
        yield [_at(parts, name) for name in names]
    finally:
        with psycopg.connect(_at(parts, "postgres"), autocommit=True) as session:
            for name in names:
                # pytest leaves its own behind when it is stopped in the middle.
                session.execute(f"DROP DATABASE IF EXISTS test_{name} WITH (FORCE)")
                session.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def _at(parts: SplitResult, name: str) -> str:
    return urlunsplit(parts._replace(path=f"/{name}"))
