"""The schedules of S1-S22 as a part of the proof, in two processes that have a database each."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import ExitStack
from queue import Empty
from typing import Any

PART = "schedules"
PROCESSES = 2

_stage: Any = None


def rows(*, quick: bool, done: frozenset[str]) -> Iterator[Any]:
    """Yield a row for each unit that is not done yet."""
    _set_up()
    from tests.interleavings.bed import database
    from tests.interleavings.units import units

    left = [unit for unit in units() if unit.name not in done]
    if not left:
        return
    spawning = multiprocessing.get_context("spawn")
    names = spawning.Queue()
    with ExitStack() as stack:
        for number in range(PROCESSES):
            names.put(stack.enter_context(database(f"interleavings_{os.getpid()}_{number}")))
        with spawning.Pool(PROCESSES, _begin, [names]) as pool:
            yield from pool.imap_unordered(_run, [(unit, quick) for unit in left])
            # The sessions of the workers end before their databases go.
            pool.close()
            pool.join()


def _set_up() -> None:
    """Load Django with its tables but without wake-ups, whose thread would be a session of its own."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django
    from django.conf import settings

    django.setup()
    settings.TENANTFAIR = {**settings.TENANTFAIR, "LISTEN": False}


def _begin(names: Any) -> None:
    global _stage  # noqa: PLW0603 - what a worker of the pool has
    _set_up()
    from tests.interleavings.stage import Stage

    try:
        name = names.get(timeout=60)
    except Empty:
        raise RuntimeError("there is no database for this worker") from None
    # Its cycles cost a tenth of the time when collected as usual; a walk collects them now and then.
    gc.freeze()
    gc.disable()
    _stage = Stage(name)


def _run(task: tuple[Any, bool]) -> Any:
    from tests.interleavings.units import run

    unit, quick = task
    return run(unit, _stage, quick=quick)
