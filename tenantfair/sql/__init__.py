"""The SQL that ships with the package, one file per function or statement.

`NAME.vN.sql` is installed by exactly one migration and never edited once released; the stem is the
function's name in the database, so an error message leads to the file. A file without a version is a
statement run as it is. Imports nothing of ours: migrations depend on it.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

# Functions bind to the schema they are installed in by SET search_path FROM CURRENT. What they must store
# is that schema and then pg_temp, whatever path the migration runs under (decision 0001).
_PIN = """
SELECT set_config('tenantfair.caller_search_path', current_setting('search_path'), true);
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
"""
_UNPIN = """
SELECT set_config('search_path', current_setting('tenantfair.caller_search_path'), true);
"""


@cache
def load(name: str) -> str:
    """Return the text of `name`.sql."""
    return files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8")


def install(name: str) -> str:
    """Return the text of `name`.sql to be installed into the current schema, and only there."""
    return _PIN + load(name) + _UNPIN
