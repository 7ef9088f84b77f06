"""The process that forks the others: reads orders, one line of JSON each, and tells of births and ends."""

from __future__ import annotations

import ctypes
import importlib
import json
import logging
import os
import select
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1


def serve() -> None:
    """Fork until the input ends; by then nobody wants the children any more."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.faults.settings"
    _load()
    numbers: dict[int, int] = {}
    pending = b""
    wake, waker = os.pipe()
    for end in (wake, waker):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 512)
            _reap(numbers)
        if 0 in ready:
            chunk = os.read(0, 1 << 16)
            if not chunk:
                return
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                order = json.loads(line)
                if (pid := os.fork()) == 0:
                    signal.set_wakeup_fd(-1)
                    _become(order)
                numbers[pid] = order["number"]
                _tell("born", order["number"], pid)


def _load() -> None:
    import django

    django.setup()
    for name in (
        "tenantfair.management.commands.tenantfair_worker",
        "tenantfair.worker",
        "tests.faults.tasks",
    ):
        importlib.import_module(name)


def _tell(word: str, number: int, value: int) -> None:
    os.write(1, f"{word} {number} {value}\n".encode())


def _reap(numbers: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell("gone", numbers.pop(pid), os.waitstatus_to_exitcode(status))


def _become(order: dict[str, Any]) -> None:
    """Turn this fork into what was ordered; never returns."""
    code = 70
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.environ.clear()
        os.environ.update(order["environment"])
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.faults.settings"
        _read_environment()
        module, _, name = order["function"].partition(":")
        code = int(getattr(importlib.import_module(module), name)(*order["arguments"]) or 0)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _read_environment() -> None:
    """Let settings and connections be those of this child's environment."""
    from django.conf import settings
    from django.db import connections

    from tests.faults.settings import databases, tenantfair

    settings.DATABASES = databases()
    settings.TENANTFAIR = tenantfair()
    for alias in list(connections):
        with suppress(AttributeError):
            del connections[alias]
    connections._settings = None  # type: ignore[attr-defined]
    connections.__dict__.pop("settings", None)
    if point := os.environ.get("FAULT_POINT"):
        from tests.faults import points

        points.install(point)
    if unknown := os.environ.get("FAULT_UNKNOWN"):
        # As in a deployment that is older than the task.
        module, _, name = unknown.rpartition(".")
        delattr(importlib.import_module(module), name)
    if group := os.environ.get("FAULT_CGROUP"):
        Path(group, "cgroup.procs").write_text(str(os.getpid()))


def manage(*arguments: str) -> None:
    """Run one management command, as `manage.py` would."""
    from django.core.management import ManagementUtility

    ManagementUtility(["manage.py", *arguments]).execute()


if __name__ == "__main__":
    serve()
