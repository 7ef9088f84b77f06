"""Reading a job log in Standard Workload Format: a line of 18 numbers per job, `;` before everything else.

https://www.cs.huji.ac.il/labs/parallel/workload/swf.html
"""

import gzip
import math
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

FIELDS = 18
_SUBMIT, _WAIT, _RUN, _USER = 1, 2, 3, 11
_STARTS_FOR_SUBMITS = re.compile(r"submit\s+times\s+are\s+(actually\s+)?start\s+times", re.IGNORECASE)


class UnreadableLog(Exception):
    """The file cannot be read, or holds no job; the message says which."""


class BadLine(ValueError):
    """A line that describes no job which could be replayed."""


class Job(NamedTuple):
    """One job: who submitted it when and how long it ran. Seconds; `wait` is None where the log has none."""

    submit: float
    wait: float | None
    run: float
    user: str


@dataclass
class Log:
    """The jobs in the order of their submission, and the (number, reason) of every line left out."""

    jobs: list[Job] = field(default_factory=list)
    problems: list[tuple[int, str]] = field(default_factory=list)
    header: str = ""

    @property
    def submits_are_starts(self) -> bool:
        """Whether the log has no submit times of its own: by its header, or because nobody ever waited."""
        return bool(_STARTS_FOR_SUBMITS.search(self.header)) or not any(job.wait for job in self.jobs)


def read_log(path: Path, limit: int | None = None) -> Log:
    """Read a plain or gzipped log, up to `limit` jobs; `UnreadableLog` when there is none in it."""
    try:
        with path.open("rb") as plain:
            packed = plain.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as lines:
            log = parse_log((line.decode("utf-8", "replace") for line in lines), limit)
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableLog(f"{path} cannot be read: {error}") from error
    if not log.jobs:
        raise UnreadableLog(f"{path} holds no jobs")
    return log


def parse_log(lines: Iterable[str], limit: int | None = None) -> Log:
    """Read the lines of a log; bad ones are noted and skipped."""
    log = Log()
    header: list[str] = []
    for number, line in enumerate(lines, start=1):
        if limit is not None and len(log.jobs) >= limit:
            break
        text = line.strip()
        if text.startswith(";"):
            header.append(text.lstrip("; "))
        elif text:
            try:
                log.jobs.append(parse_job(text))
            except BadLine as error:
                log.problems.append((number, str(error)))
    log.header = " ".join(header)
    log.jobs.sort(key=lambda job: job.submit)
    return log


def parse_job(line: str) -> Job:
    """Read one line; `BadLine` says what is wrong with it. A -1 stands for what is not known."""
    fields = line.split()
    if len(fields) != FIELDS:
        raise BadLine(f"{len(fields)} fields instead of {FIELDS}")
    numbers = [_number(place, text) for place, text in enumerate(fields, start=1)]
    submit, wait, run, user = (numbers[place] for place in (_SUBMIT, _WAIT, _RUN, _USER))
    if submit < 0:
        raise BadLine("no submit time")
    if run < 0:
        raise BadLine("no run time")
    if user < 0 or user != int(user):
        raise BadLine("no user")
    return Job(submit, wait if wait >= 0 else None, run, f"user-{int(user)}")


def _number(place: int, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise BadLine(f"field {place} is no number: {text[:40]!r}") from None
    if not math.isfinite(number):
        raise BadLine(f"field {place} is no number: {text[:40]!r}")
    return number
