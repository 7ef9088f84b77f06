"""Which build was proved, on what machine."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from pathlib import Path

import django
import psycopg

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "tenantfair"


def digest(package: Path = PACKAGE) -> str:
    """Return a hash of every file of the package, committed or not."""
    found = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(f"{path.relative_to(package)}\0{path.stat().st_size}\0".encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:12]


def versions(postgresql: str) -> dict[str, str]:
    return {
        "postgresql": postgresql,
        "python": platform.python_version(),
        "django": django.__version__,
        "psycopg": psycopg.__version__,
    }


def name(postgresql: str) -> str:
    """Return what a result is kept under: the same code with the same versions below it."""
    return " ".join([digest(), *(f"{what} {which}" for what, which in versions(postgresql).items())])


def facts(postgresql: str) -> dict[str, str]:
    """Return what is told beside the figures."""
    return {
        "commit": commit(),
        "package": digest(),
        "machine": f"{os.cpu_count()} cores, {_processor()}, {platform.system()}",
        **versions(postgresql),
    }


def commit() -> str:
    """Return the commit's short name, with a `+` when the package is not as committed; "" without git."""
    head = _git("rev-parse", "--short", "HEAD")
    return f"{head}+" if head and _git("status", "--porcelain", "tenantfair") else head


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next(
        (line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.machine()
    )
