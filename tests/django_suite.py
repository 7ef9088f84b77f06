"""Django's own tests of `django.tasks`, which ship in its source distribution and nowhere else.

They are fetched once per version by pip, from the index it is configured for, into `.cache/` of this tree.
Beside Django 5.2 stands the backport, whose distribution has no tests; there the suite of Django 6.0, which
the backport was written against, has its names changed to the backport's.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import django

CACHE = Path(__file__).resolve().parent.parent / ".cache"
IS_BACKPORT = django.VERSION < (6,)
REQUIREMENT = "django>=6.0,<6.1" if IS_BACKPORT else f"django=={django.__version__}"

_SECONDS = 300
_BACKPORTED_NAMES = {
    r"\bdjango\.tasks\b": "django_tasks",
    r"\bInvalidTask\b": "InvalidTaskError",
    r"\bInvalidTaskBackend\b": "InvalidTaskBackendError",
    r"support async Tasks\.": "support async tasks.",
}


def fetch() -> Path:
    """Return the folder whose package `tasks` is the suite for the installed framework."""
    home = CACHE / f"django-suite-{'backport' if IS_BACKPORT else django.__version__}"
    if not home.exists():
        CACHE.mkdir(exist_ok=True)
        (CACHE / ".gitignore").write_text("*\n")
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            _extract(_download(Path(folder)), Path(folder) / "suite")
            # Into place in one step, for another run may be doing the same.
            try:
                (Path(folder) / "suite").rename(home)
            except OSError:
                if not home.exists():
                    raise
    return home


def _download(folder: Path) -> Path:
    # Django 6 refuses Python 3.11, where its tests are only read.
    version = ["--ignore-requires-python"] if IS_BACKPORT else []
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, *version, "--no-deps", "--no-binary", ":all:", "--dest", str(folder), REQUIREMENT],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"pip cannot download the sources of {REQUIREMENT}:\n{done.stderr.strip()}")
    (archive,) = folder.glob("*.tar.gz")
    return archive


def _extract(archive: Path, target: Path) -> None:
    package = target / "tasks"
    package.mkdir(parents=True)
    with tarfile.open(archive) as sources:
        for member in sources:
            path = Path(member.name)
            if member.isfile() and path.suffix == ".py" and path.parts[1:-1] == ("tests", "tasks"):
                found = sources.extractfile(member)
                assert found is not None
                (package / path.name).write_text(_adapted(found.read().decode()))
    assert (package / "tasks.py").exists(), f"{archive.name} has no tests/tasks"


def _adapted(text: str) -> str:
    if IS_BACKPORT:
        for name, backported in _BACKPORTED_NAMES.items():
            text = re.sub(name, backported, text)
    return text
