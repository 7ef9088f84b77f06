"""The built wheel is the package, whole and alone."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tenantfair"


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the files in a freshly built wheel, less those of its metadata folder."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(command, check=False, text=True, capture_output=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = folder.glob("tenantfair-*.whl")
    with zipfile.ZipFile(wheel) as content:
        return {name for name in content.namelist() if ".dist-info/" not in name}


def files_below(*folders: str) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in PACKAGE.rglob(f"{folder}/**/*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_nothing_but_the_package(wheel_names: set[str]) -> None:
    assert {name for name in wheel_names if not name.startswith("tenantfair/")} == set()


def test_the_wheel_holds_every_module(wheel_names: set[str]) -> None:
    assert {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py")} <= wheel_names


def test_the_wheel_holds_every_sql_file(wheel_names: set[str]) -> None:
    sql = {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.sql")}

    assert sql, "there is no SQL in the tree: this test looks in the wrong place"
    assert sql <= wheel_names


def test_the_wheel_holds_templates_static_files_and_translations(wheel_names: set[str]) -> None:
    assert files_below("templates", "static", "locale") <= wheel_names


def test_the_wheel_says_that_it_is_typed(wheel_names: set[str]) -> None:
    assert "tenantfair/py.typed" in wheel_names
