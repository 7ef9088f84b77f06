"""The import direction written down in pyproject.toml holds."""

from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).resolve().parent.parent


def test_imports_point_downwards(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))

    failed = lint_imports(config_filename="pyproject.toml", no_cache=True, no_logo=True)

    assert not failed, capsys.readouterr().out
