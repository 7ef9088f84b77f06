"""Whether the installed functions are the ones that this version ships."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Final

from tenantfair import schema, sql

_FILE: Final = re.compile(r"(?P<stem>\w+)\.v(?P<version>\d+)\.sql")
_FUNCTION: Final = re.compile(
    r"^CREATE OR REPLACE (?:FUNCTION|PROCEDURE) (?P<name>\w+)\(.*?\$(?P=name)\$(?P<body>.*?)\$(?P=name)\$",
    re.DOTALL | re.MULTILINE,
)


def newest_files() -> list[str]:
    """Return the names of the shipped files with a version, the newest of each, for `sql.load()`."""
    newest: dict[str, int] = {}
    for path in files(sql).iterdir():
        if found := _FILE.fullmatch(path.name):
            newest[found["stem"]] = max(newest.get(found["stem"], 0), int(found["version"]))
    return [f"{stem}.v{version}" for stem, version in sorted(newest.items())]


def shipped_bodies() -> dict[str, str]:
    """Return the body of each function by name, from the newest version of each shipped file."""
    return {
        function["name"]: function["body"]
        for name in newest_files()
        for function in _FUNCTION.finditer(sql.load(name))
    }


def changed_functions(alias: str) -> Iterator[str]:
    """Yield the names of installed functions whose body is not the shipped one."""
    installed = schema.function_sources(alias)
    for name, body in sorted(shipped_bodies().items()):
        if name in installed and installed[name] != body:
            yield name
