"""A copy of the project, in which one mutant at a time is applied and the named tests are run."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from xml.etree import ElementTree

from tests.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("tenantfair", "tests", "example_project", "pyproject.toml", "README.md")
LEFT_OUT = ("__pycache__", "mutants", "results", "*.pyc")

# A statement that waits for a lock for ever fails its test instead of ending with the whole run.
_SESSION_OPTIONS = "-c statement_timeout=20s"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What pytest said: its exit code, and which tests passed, failed, or had an error around them."""

    code: int
    passed: frozenset[str]
    failed: frozenset[str]
    errors: frozenset[str]
    output: str


class Workshop:
    """One copy, with the name of a database of its own on the server that `database_url` leads to.

    Byte code is kept in the folder `bytecode`, whatever the environment says: without it pytest starts half
    as fast. It is found by time and size, so each text that a file is given gets a time of its own.
    """

    def __init__(self, database_url: str, bytecode: Path) -> None:
        self._database_url = database_url
        self._bytecode = bytecode
        self.root = Path(tempfile.mkdtemp(prefix="tenantfair-mutant-"))
        self._times = itertools.count(1_000_000_000)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.root / name, ignore=shutil.ignore_patterns(*LEFT_OUT))
            else:
                shutil.copy2(source, self.root / name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Have the copy be `mutant` inside the block."""
        path = self.root / "tenantfair" / mutant.file
        original = path.read_text(encoding="utf-8")
        self._write(path, mutant.applied_to(original))
        try:
            yield
        finally:
            self._write(path, original)

    def test(self, tests: Sequence[str], *, until_failure: bool = False, longest: float = 90) -> Outcome:
        """Run tests, given as node ids below `tests/`, on a new database, for `longest` seconds at most."""
        report = self.root / "report.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "--create-db", "-p", "no:cacheprovider", "--tb=line"]
        command += [
            f"--junitxml={report}",
            *(["-x"] if until_failure else []),
            *(f"tests/{test}" for test in tests),
        ]
        environment = os.environ | {
            "DATABASE_URL": self._database_url,
            "PGOPTIONS": _SESSION_OPTIONS,
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPATH": str(self.root),
            "PYTHONPYCACHEPREFIX": str(self._bytecode),
        }
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=longest)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return Outcome(-1, frozenset(), frozenset(), frozenset(), f"{output}\nno end after {longest} s")
        return _outcome(process.returncode, report, output)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        time = next(self._times)
        os.utime(path, (time, time))


def _outcome(code: int, report: Path, output: str) -> Outcome:
    passed: set[str] = set()
    failed: set[str] = set()
    errors: set[str] = set()
    if report.exists():
        for case in ElementTree.parse(report).iter("testcase"):
            kinds = {child.tag for child in case}
            found = errors if "error" in kinds else failed if "failure" in kinds else passed
            found.add(_node_id(case.get("classname", ""), case.get("name", "")))
    return Outcome(code, frozenset(passed - failed - errors), frozenset(failed), frozenset(errors), output)


def _node_id(class_name: str, name: str) -> str:
    """Return a test's id as mutants name it, so tests.cases.test_a.TestB is cases/test_a.py::TestB."""
    _, *parts = class_name.split(".")
    modules = [part for part in parts if not part.startswith("Test")]
    classes = [part for part in parts if part.startswith("Test")]
    return "::".join(["/".join(modules) + ".py", *classes, re.sub(r"\[.*", "", name, flags=re.DOTALL)])
