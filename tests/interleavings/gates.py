"""Stops in the text of the installed functions: one inserted line before each statement that reads or
writes tables.

Taking the inserted lines out gives back the shipped text byte for byte. A gate does nothing in a session
that does not name it in `tests.gates`. In one that does, it says where it stands by a NOTICE, which the
server sends at once, and waits for an advisory lock that the stage holds; the lock_timeout of the function
around it does not count there. Its number comes from an unlogged sequence: that is outside the transaction
and assigns no xid.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tenantfair.sql import install, load

MARK = "-- gate"

# Advisory locks of the gates: this class number plus the session's, and the parity of the gate's number. Two
# locks in turn, so that one can be opened before the session has come to wait for it.
LOCK_CLASS = 7310

# A fruitless claim goes round a small ring until its 32 visits are used up: no session stops at one gate
# more often.
MOST_STOPS = 2

GATE = f"""
CREATE UNLOGGED SEQUENCE IF NOT EXISTS tests_gate_0;
CREATE UNLOGGED SEQUENCE IF NOT EXISTS tests_gate_1;
CREATE UNLOGGED SEQUENCE IF NOT EXISTS tests_gate_2;
CREATE OR REPLACE FUNCTION tests_gate(p_point text) RETURNS void LANGUAGE plpgsql SET lock_timeout = '0' AS $$
DECLARE
    v_session integer;
    v_number bigint;
    v_passed text[];
BEGIN
    IF p_point = ANY (string_to_array(current_setting('tests.gates', true), ',')) THEN
        v_passed := string_to_array(current_setting('tests.passed', true), ',');
        IF cardinality(array_positions(v_passed, p_point)) >= {MOST_STOPS} THEN
            RETURN;
        END IF;
        PERFORM set_config('tests.passed', array_to_string(v_passed || p_point, ','), true);
        v_session := current_setting('tests.session');
        v_number := nextval(('tests_gate_' || v_session)::regclass);
        RAISE NOTICE 'gate % %', p_point, v_number;
        PERFORM pg_advisory_lock({LOCK_CLASS} + v_session, (v_number % 2)::integer);
        PERFORM pg_advisory_unlock({LOCK_CLASS} + v_session, (v_number % 2)::integer);
    END IF;
END $$;
CREATE OR REPLACE FUNCTION tests_gate_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tests_gate('row');
    RETURN NEW;
END $$;
"""

# Where a statement of an operation has locked its row and has not written it yet.
ROW_GATE = (
    "CREATE OR REPLACE TRIGGER tests_gate_row BEFORE UPDATE ON tenantfair_run"
    " FOR EACH ROW EXECUTE FUNCTION tests_gate_row()"
)
NO_ROW_GATE = "DROP TRIGGER IF EXISTS tests_gate_row ON tenantfair_run"

# A session under test waits at the door and at the policy row until its turn: how long that takes is up to
# the stage, so the claim's own patience of 250 ms does not count.
_PATIENCE = (
    "IF current_setting('tests.gates', true) <> '' THEN v_patience := interval '1 hour';"
    " v_setting := set_config('lock_timeout', '1h', true); END IF;"
)
_DOOR = "IF NOT pg_try_advisory_xact_lock("

# Sections of the claim function that must be there, so that a heading that has gone is not taken for a pass.
CLAIM_SECTIONS = ("door", "policy", "probe", "partitions", "simple", "recheck", "careful", "write", "cursor")
FOLD_SECTIONS = ("fold_partition", "fold_schedule")

_STATEMENT = re.compile(r"(SELECT|WITH|UPDATE|INSERT|DELETE|PERFORM|RETURN QUERY|v_slots :=)")
_OPENS_BLOCK = re.compile(r"(;|\b(THEN|LOOP|BEGIN|ELSE))$")
_HEADING = re.compile(r"-- (?:A )?(\w+)")


@dataclass(frozen=True)
class Gated:
    """A function's text with gates, and their names in the order of the text."""

    name: str
    shipped: str
    text: str
    points: tuple[str, ...]

    @property
    def installation(self) -> str:
        return install(self.name).replace(self.shipped, self.text)

    def of(self, *sections: str) -> tuple[str, ...]:
        """Return the gates of these sections; a section without one is an error."""
        found = []
        for section in sections:
            mine = [point for point in self.points if re.fullmatch(rf"{section}\d*", point)]
            if not mine:
                raise LookupError(f"{self.name} has no statement in section {section!r}: {self.points}")
            found += mine
        return tuple(found)


def without_gates(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.rstrip("\n").endswith(MARK))


def gated_claim(shipped: str | None = None) -> Gated:
    """Return the claim function, or a version of it, with its gates."""
    gated = _gated("tenantfair_claim.v1", shipped, _name_in_claim)
    gated.of(*CLAIM_SECTIONS)
    return gated


def gated_fold(shipped: str | None = None) -> Gated:
    gated = _gated("tenantfair_fold.v1", shipped, _name_in_fold)
    gated.of(*FOLD_SECTIONS)
    return gated


def _gated(name: str, shipped: str | None, name_of) -> Gated:  # type: ignore[no-untyped-def]
    text = shipped or load(name)
    lines = text.splitlines(keepends=True)
    counts: dict[str, int] = {}
    points: list[str] = []
    out: list[str] = []
    starts = dict(_statements(lines))
    for number, line in enumerate(lines):
        if number in starts and (section := name_of(*starts[number])):
            counts[section] = counts.get(section, 0) + 1
            points.append(f"{section}{counts[section]}")
            indent = line[: len(line) - len(line.lstrip())]
            if section == "door":
                out.append(f"{indent}{_PATIENCE} {MARK}\n")
            out.append(f"{indent}PERFORM tests_gate('{points[-1]}'); {MARK}\n")
        out.append(line)
    changed = "".join(out)
    assert without_gates(changed) == text
    return Gated(name, load(name), changed, tuple(points))


def _statements(lines: list[str]) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield (line number, (section, text)) of each statement of the function bodies that names a table."""
    section, depth, before, is_heading = "start", 0, ";", False
    for number, line in enumerate(lines):
        bare = re.sub(r"'[^']*'", "''", line.split("--")[0]).strip()
        # A heading stands between two rules and takes one line or more; its first word names the section.
        if line.strip().startswith("-----"):
            is_heading = not is_heading
            if is_heading and (found := _HEADING.match(lines[number + 1].strip())):
                section = found[1].lower()
        if not bare:
            continue
        if depth == 0 and _OPENS_BLOCK.search(before) and (_STATEMENT.match(bare) or bare.startswith(_DOOR)):
            text = _until_semicolon(lines, number)
            if "tenantfair_" in text or bare.startswith(_DOOR):
                yield number, (section, text)
        depth += bare.count("(") - bare.count(")")
        before = bare


def _until_semicolon(lines: list[str], number: int) -> str:
    """Return the statement that begins on a line, without its comments."""
    found = []
    for line in lines[number:]:
        found.append(line.split("--")[0].rstrip())
        if found[-1].endswith(";"):
            break
    return "\n".join(found)


def _name_in_claim(section: str, text: str) -> str | None:
    if text.startswith(_DOOR, len(text) - len(text.lstrip())):
        return "door"
    if "UPDATE tenantfair_policy" in text:
        return "cursor"
    if section == "start":
        if "FROM tenantfair_policy" not in text:
            return None
        # The waiting form stands in a block of its own; a session that waits there is seen as blocked.
        return "policy" if "SKIP LOCKED" in text else None
    return section


def _name_in_fold(section: str, text: str) -> str | None:
    if "INTO tenantfair_partition" in text:
        return "fold_partition"
    if "UPDATE tenantfair_schedule" in text:
        return "fold_schedule"
    # Only the transaction's own notes.
    return None
