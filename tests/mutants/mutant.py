"""What a mutant is, and how it is applied to the text of its file."""

from __future__ import annotations

from dataclasses import dataclass


class NotApplicable(Exception):
    """The text that a mutant changes is not there, or is there too often: its anchor has to be renewed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """One change to one file of the package.

    `old` occurs exactly once in the file, or is the first one behind `after`, which does. More `times` than
    one say that so many places change together, because one of them alone would be harmless. `breaks` is the
    rule and where it stands: decision, item of the conformance list. `killed_by` are node ids below `tests/`.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    killed_by: tuple[str, ...]
    after: str = ""
    times: int = 1

    @property
    def is_sql(self) -> bool:
        return self.file.endswith(".sql")

    def applied_to(self, text: str) -> str:
        """Return `text` with the change made; `NotApplicable` when it does not fit."""
        if self.old == self.new:
            raise NotApplicable(f"{self.name} changes nothing")
        start = 0
        if self.after:
            if text.count(self.after) != 1:
                raise NotApplicable(
                    f"{self.name}: {self.file} has {text.count(self.after)} times {self.after!r}"
                )
            start = text.index(self.after) + len(self.after)
        found = text.count(self.old, start)
        if found < self.times or (found > self.times and not self.after):
            raise NotApplicable(f"{self.name}: {self.file} has {found} times {self.old!r}, not {self.times}")
        return text[:start] + text[start:].replace(self.old, self.new, self.times)
