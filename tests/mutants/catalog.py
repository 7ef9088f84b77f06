"""All mutants, by what they change."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Final

from tests.mutants import changes
from tests.mutants.mutant import Mutant


def _collected() -> tuple[Mutant, ...]:
    modules = sorted(module.name for module in pkgutil.iter_modules(changes.__path__))
    return tuple(
        mutant for name in modules for mutant in importlib.import_module(f"{changes.__name__}.{name}").MUTANTS
    )


ALL: Final = _collected()
SQL: Final = tuple(mutant for mutant in ALL if mutant.is_sql)
PYTHON: Final = tuple(mutant for mutant in ALL if not mutant.is_sql)
