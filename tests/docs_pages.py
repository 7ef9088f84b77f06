"""The documentation as data: its pages, their fenced blocks, tables and links.

A Python block whose first line is a comment with a path (`# shop/tasks.py`) is that file; with `, at the end`
it is added to what is there. A comment `<!-- no-test: reason -->` above a block keeps it from being run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial.md"

_BLOCK = re.compile(
    r"(?:^<!-- (?P<note>.*?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_FILE = re.compile(r"# (?P<path>[\w/]+\.py)(?P<adds>, at the end)?\n")
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<text>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block. `note` is what the HTML comment above it says."""

    page: Path
    line: int
    language: str
    text: str
    note: str | None

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run(self) -> bool:
        return not (self.note or "").startswith("no-test")

    @property
    def file(self) -> tuple[str, bool] | None:
        """The path of the file that this block is, and whether it only adds to it."""
        found = _FILE.match(self.text) if self.language == "python" else None
        return None if found is None else (found["path"], found["adds"] is not None)

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block, continuation lines joined."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [" ".join(line.split()) for line in lines if line and not line.startswith("#")]


def pages() -> list[Path]:
    """Every page that people read, the decisions included."""
    return [ROOT / "README.md", ROOT / "SECURITY.md", *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page, text.count("\n", 0, found.start("language")) + 1, *found.group("language", "text", "note")
        )
        for found in _BLOCK.finditer(text)
    ]


def table(page: Path, heading: str) -> list[list[str]]:
    """The cells of the rows of the table under a heading, without its header."""
    rows = [cells(line) for line in section(page, heading).splitlines() if line.startswith("|")]
    assert rows, f"{page.name} has no table under {heading!r}"
    return rows[2:]


def cells(line: str) -> list[str]:
    """The cells of one line of a table."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def section(page: Path, heading: str) -> str:
    """The text under a heading, up to the next one of the same or a higher level."""
    text = page.read_text(encoding="utf-8")
    # A comment at the start of a line of code is no heading.
    bare = _BLOCK.sub(lambda found: " " * len(found[0]), text)
    start = re.search(rf"^(#+) {re.escape(heading)}$", bare, re.MULTILINE)
    assert start is not None, f"{page.name} has no heading {heading!r}"
    end = re.compile(rf"^#{{1,{len(start[1])}}} ", re.MULTILINE).search(bare, start.end())
    return text[start.end() : end.start() if end else None]


def code(cell: str) -> list[str]:
    """What stands in backticks in a table's cell."""
    return re.findall(r"`([^`]+)`", cell)


def links(page: Path) -> Iterator[str]:
    """The targets of a page's links, those in code left out."""
    text = re.sub(r"`[^`\n]+`", "", _BLOCK.sub("", page.read_text(encoding="utf-8")))
    yield from (found["target"] for found in _LINK.finditer(text))


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get where Markdown is shown."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    return {_anchor(found["text"]) for found in _HEADING.finditer(text)}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
