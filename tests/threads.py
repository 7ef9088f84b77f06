"""Work through Django's own connections in several threads at once, each connection closed at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Barrier, Thread
from typing import Any

from django.db import connections

from tests.rows import Session, in_background

LONGEST_WAIT_SECONDS = 30


def in_django_thread(work: Callable[[], Any]) -> Future[Any]:
    """Run `work` in a thread with connections of its own; the future carries its result or its exception."""

    def run() -> Any:
        try:
            return work()
        finally:
            connections.close_all()

    return in_background(run)


def all_at_once(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Let all of `works` connect, then start together; return what each returned, or its exception."""
    barrier = Barrier(len(works))
    outcomes: list[Any] = [None] * len(works)

    def run(number: int) -> None:
        try:
            connections["default"].ensure_connection()
            barrier.wait(timeout=LONGEST_WAIT_SECONDS)
            outcomes[number] = works[number]()
        except Exception as error:
            outcomes[number] = error
        finally:
            connections.close_all()

    threads = [Thread(target=run, args=[number]) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=LONGEST_WAIT_SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    return outcomes


def until_someone_waits_for(holder: Session, observer: Session) -> None:
    """Return once a session of the server waits for a lock that `holder` has."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while observer.execute(query, [holder.info.backend_pid]).fetchone() == (0,):
        assert time.monotonic() < deadline, "nobody ever waited"
        time.sleep(0.01)
