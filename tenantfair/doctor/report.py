"""What the doctor hands back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tenantfair.doctor.kinds import KINDS, MISFITS, Severity

EXAMPLES = 10

_ORDER = {kind: place for place, kind in enumerate(KINDS)}
_SEVERITIES = list(Severity)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One kind of trouble: `number` is how often it was met, `examples` are at most ten of them in words."""

    id: str
    number: int
    examples: tuple[str, ...]

    @property
    def severity(self) -> Severity:
        return KINDS[self.id].severity

    @property
    def meaning(self) -> str:
        return KINDS[self.id].meaning

    @property
    def remedy(self) -> str:
        return KINDS[self.id].remedy


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What one snapshot of the domain showed, the gravest first; without a snapshot `taken_at` is None."""

    database: str
    taken_at: datetime | None
    findings: tuple[Finding, ...]

    @property
    def fits(self) -> bool:
        """Whether the schema is the one this version needs; where it is not, nothing is repaired."""
        return MISFITS.isdisjoint(finding.id for finding in self.findings)

    def count(self, severity: Severity) -> int:
        """Return how many findings are of one severity."""
        return sum(finding.severity == severity for finding in self.findings)


def collect(found: Iterable[tuple[str, int, Sequence[str]]]) -> tuple[Finding, ...]:
    """Return one finding per kind, the gravest first, from what the single examinations found."""
    numbers: dict[str, int] = {}
    examples: dict[str, list[str]] = {}
    for kind, number, some in found:
        numbers[kind] = numbers.get(kind, 0) + number
        examples.setdefault(kind, []).extend(some)
    findings = [
        Finding(id=kind, number=number, examples=tuple(examples[kind][:EXAMPLES]))
        for kind, number in numbers.items()
    ]
    return tuple(sorted(findings, key=lambda one: (_SEVERITIES.index(one.severity), _ORDER[one.id])))
