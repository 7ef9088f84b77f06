"""Runs parts, each in a process of its own, and keeps what they report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from tests.proof.build import ROOT
from tests.proof.parts import Part
from tests.proof.record import Row, Store

# A part that reports nothing for so long hangs.
SILENCE_SECONDS = 1500.0
_GRACE_SECONDS = 20.0


@dataclass
class Result:
    """What is known of one part: its rows of this build, and whether it was gone through to the end."""

    part: Part
    rows: list[Row]
    is_complete: bool
    seconds: float = 0.0


@dataclass
class Runner:
    """`database` makes a new database for a part and returns its URL; `say` is told each row as it comes.

    `is_same` says whether the package is still what the run began with; what came after is not kept.
    """

    folder: Path
    build: str
    facts: Mapping[str, str]
    database: Callable[[str], str]
    quick: bool = False
    say: Callable[[Row], None] = lambda row: None
    is_same: Callable[[], bool] = lambda: True
    silence: float = SILENCE_SECONDS
    _running: list[subprocess.Popen[str]] = field(default_factory=list)
    _is_stopping: bool = False

    def store(self, part: Part) -> Store:
        return Store(self.folder, part.name, self.build)

    def run(self, parts: Iterable[Part]) -> list[Result]:
        """Run the parts in order, those that need not be alone two at a time. Stops them all on Ctrl-C."""
        chosen = list(parts)
        crashes: dict[str, list[Row]] = {}

        def one(part: Part) -> None:
            crashes[part.name] = [] if self._is_stopping else self._run(part)

        try:
            with ThreadPoolExecutor(2) as pool:
                try:
                    list(pool.map(one, [part for part in chosen if not part.alone]))
                except BaseException:
                    self.stop()
                    raise
            for part in chosen:
                if part.alone:
                    one(part)
        finally:
            self.stop()
        return [self.result(part, crashes[part.name]) for part in chosen]

    def result(self, part: Part, crashes: Sequence[Row] = ()) -> Result:
        store = self.store(part)
        return Result(part, [*store.rows(), *crashes], not crashes and store.facts() is not None)

    def stop(self) -> None:
        """End every process of every part that still runs."""
        self._is_stopping = True
        for process in [*self._running]:
            _end(process)

    def _run(self, part: Part) -> list[Row]:
        """Run a part and return its rows that are not kept: that it is missing, or crashed."""
        if not _exists(part.module):
            return [_nothing(part, f"not run: there is no {part.module}")]
        store = self.store(part)
        reading, writing = os.pipe()
        log = self.folder / f"{part.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        arguments = [sys.executable, "-m", "tests.proof.child", part.module, str(writing)]
        with log.open("w", encoding="utf-8") as output, os.fdopen(reading, encoding="utf-8") as rows:
            process = subprocess.Popen(
                [*arguments, *(["--quick"] if self.quick else [])],
                cwd=ROOT,
                env={**os.environ, "DATABASE_URL": self.database(part.name), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                pass_fds=[writing],
                start_new_session=True,  # Ctrl-C must reach the runner alone, which then ends the part
            )
            os.close(writing)
            self._running.append(process)
            has_ended, has_changed = False, False
            try:
                with process.stdin as units:
                    json.dump(sorted(store.done()), units)
                watch = _Watch(process, self.silence)
                for line in rows:
                    watch.heard()
                    found = json.loads(line)
                    if not self.is_same():
                        has_changed = True
                        break
                    if found is None:
                        has_ended = True
                        store.end(dict(self.facts))
                    else:
                        store.add(Row(**found))
                        self.say(Row(**found))
                watch.end()
                code = None if has_changed else process.wait()
            finally:
                _end(process)
                self._running.remove(process)
        if self._is_stopping or (has_ended and code == 0):
            return []
        why = "the package changed meanwhile" if has_changed else f"its process ended with {code}"
        why = f"silent for {self.silence:g} s" if watch.has_barked else why
        crash = Row(part.name, "crash", "the part itself", 0, None, "", 1, 0.0, f"{why}, see {log}")
        self.say(crash)
        return [crash]


class _Watch:
    """Kills a process of which nothing is heard for too long."""

    has_barked = False

    def __init__(self, process: subprocess.Popen[str], seconds: float) -> None:
        self._process, self._seconds = process, seconds
        self._timer = self._start()

    def heard(self) -> None:
        self._timer.cancel()
        self._timer = self._start()

    def end(self) -> None:
        self._timer.cancel()

    def _start(self) -> threading.Timer:
        timer = threading.Timer(self._seconds, self._bark)
        timer.daemon = True
        timer.start()
        return timer

    def _bark(self) -> None:
        self.has_barked = True
        _end(self._process, at_once=True)


def _end(process: subprocess.Popen[str], *, at_once: bool = False) -> None:
    """End a part's process and all it started in its session."""
    if process.poll() is None and not at_once:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _nothing(part: Part, note: str) -> Row:
    return Row(part.name, "all", part.name, 0, None, "", 0, 0.0, note, not_run=True)
