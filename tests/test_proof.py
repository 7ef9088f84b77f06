"""The runner of the proof: a violation is never lost, and nothing is taken for passed that was not run."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from tests.proof import build, evidence, pytests, table
from tests.proof.__main__ import main
from tests.proof.parts import PARTS, Part
from tests.proof.record import Row, Store
from tests.proof.runner import Result, Runner

FACTS = {
    "commit": "abc",
    "package": "def",
    "machine": "2 cores, a processor, Linux",
    "postgresql": "18",
    "python": "3.13",
    "django": "6.1",
    "psycopg": "3.3",
}
HEAD = """
import os, signal, sys, time
from tests.proof.record import Row

def row(unit, failures=0, **more):
    return Row("fake", unit, "a fake", 1, None, "", failures, 0.5, **more)

"""

Make = Callable[..., Part]
Run = Callable[..., Result]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Write the module of a part, whose body is given, and return the part."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(body: str, name: str = "fake") -> Part:
        text = dedent(body).replace("\n", "\n    ")
        (tmp_path / f"part_{name}.py").write_text(f"{HEAD}def rows(*, quick, done):\n    {text}\n")
        return Part(name, f"part_{name}")

    return write


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run_one(part: Part, name: str = "this build", **options: object) -> Result:
        runner = Runner(tmp_path / "kept", name, FACTS, lambda part: "postgresql:///none", **options)
        return runner.run([part])[0]

    return run_one


def units(result: Result) -> list[str]:
    return [row.unit for row in result.rows]


def test_part_that_ends_well_is_complete(make: Make, run: Run) -> None:
    result = run(make("yield row('1')\nyield row('2')"))

    assert (units(result), result.is_complete, table.failures([result])) == (["1", "2"], True, 0)


def test_failure_is_counted_and_shown_first(make: Make, run: Run) -> None:
    result = run(make("yield row('1', note='fine')\nyield row('2', 3, note='seed 7')"))

    assert table.failures([result]) == 3
    (line,) = table.lines([result])
    assert (line.failures, line.number, line.notes) == ("3", "2", "2: seed 7; fine")


@pytest.mark.parametrize(
    "body",
    [
        "yield row('1')\nraise ValueError",
        "yield row('1')\nsys.exit(0)",
        "yield row('1')\nos._exit(0)",
        "yield row('1')\nos.kill(os.getpid(), signal.SIGKILL)",
        "yield row('1')\nyield 'no row'",
    ],
)
def test_part_that_crashes_is_a_failure_and_its_units_are_kept(make: Make, run: Run, body: str) -> None:
    result = run(make(body))

    assert units(result) == ["1", "crash"]
    assert table.failures([result]) == 1
    assert not result.is_complete
    assert units(run(make("yield row('2')"))) == ["1", "2"]


def test_part_of_which_nothing_is_heard_is_ended_and_a_failure(make: Make, run: Run) -> None:
    result = run(make("yield row('1')\ntime.sleep(600)"), silence=2.0)

    assert "silent" in result.rows[-1].note
    assert table.failures([result]) == 1


def test_part_that_is_not_there_was_not_run(run: Run) -> None:
    result = run(Part("fake", "tests.proof.nowhere"))

    assert [row.not_run for row in result.rows] == [True]
    assert not result.is_complete
    (line,) = table.lines([result])
    assert (line.number, line.failures) == ("not run", "")


def test_what_was_not_run_is_not_counted_and_tried_again(make: Make, run: Run) -> None:
    part = make("yield row('1')\nyield row('2', not_run=True, note='not run: no pgbouncer')")
    (line,) = table.lines([run(part)])
    assert (line.number, line.notes) == ("1", "2: not run: no pgbouncer")

    again = run(make("assert done == {'1'}\nyield row('2')"))

    assert [row.not_run for row in again.rows] == [False, False]


def test_finished_units_are_not_run_again(make: Make, run: Run) -> None:
    run(make("yield row('1')\nyield row('2')\nraise ValueError"))

    assert units(run(make("yield from (row(unit) for unit in '123' if unit not in done)"))) == ["1", "2", "3"]


def test_results_of_another_build_count_for_nothing(make: Make, run: Run) -> None:
    run(make("yield row('1', 1)"), "another build")

    result = run(make("assert not done\nyield row('2')"))

    assert (units(result), table.failures([result])) == (["2"], 0)


def test_violation_stays_until_it_is_forgotten(make: Make, run: Run, tmp_path: Path) -> None:
    run(make("yield row('1', 1)\nyield row('2')"))
    store = Store(tmp_path / "kept", "fake", "this build")
    store.add(Row("fake", "1", "a fake", 1, None, "", 0, 0.5))
    assert table.failures([run(make("assert done == {'1', '2'}\nyield from ()"))]) == 1

    store.forget(failed_only=True)

    assert store.done() == {"1", "2"}
    store.forget()
    assert store.done() == frozenset()


def test_what_comes_after_a_change_of_the_package_is_not_kept(make: Make, run: Run) -> None:
    result = run(make("yield row('1')"), is_same=lambda: False)

    assert units(result) == ["crash"]
    assert "changed" in result.rows[0].note


def test_line_that_was_cut_short_is_ignored(tmp_path: Path) -> None:
    store = Store(tmp_path, "fake", "this build")
    store.add(Row("fake", "1", "a fake", 1, None, "", 0, 0.5))
    with store.path.open("a") as file:
        file.write('{"build": "this build", "row"')

    assert store.done() == {"1"}


def test_digest_is_that_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    before = build.digest(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/a.pyc").write_text("1")
    assert build.digest(tmp_path) == before
    (tmp_path / "a.py").write_text("2")
    assert build.digest(tmp_path) != before


def test_ranges_of_seeds_are_joined() -> None:
    assert table.seeds(["0-9", "20-29", "10-19", "40", "", "x"]) == "0-29, 40, x"


def test_failing_and_skipped_tests_are_failures(tmp_path: Path) -> None:
    path = tmp_path / "test_three.py"
    path.write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert False\n"
        "def test_skipped(): pytest.skip('no')\n"
    )

    row = pytests.run("fake", "1", "a fake", str(path))

    assert (row.done, row.of, row.failures) == (1, 3, 2)
    assert "test_bad" in row.note


@pytest.mark.parametrize(
    ("body", "code"), [("yield row('1')", 0), ("yield row('1', 1)", 1), ("raise ValueError", 1)]
)
def test_command_exits_with_one_when_anything_failed(
    make: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    body: str,
    code: int,
) -> None:
    monkeypatch.setitem(PARTS, "fake", make(body))
    monkeypatch.setattr("tests.proof.__main__.FOLDER", tmp_path / "kept")
    monkeypatch.setattr(build, "digest", lambda: "0123456789ab")
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["--part", "fake"]) == code
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "violations;" in capsys.readouterr().out


def test_evidence_is_written_from_what_was_kept(tmp_path: Path) -> None:
    page = tmp_path / "evidence.md"
    page.write_text(f"Before\n{evidence.BEGIN}\nold\n{evidence.END}\nafter\n")
    store = Store(tmp_path, "model", "this build")
    store.add(Row("model", "1", "random states", 1000, None, "0-999", 0, 60))
    store.add(Row("model", "2", "random states", 1000, None, "1000-1999", 0, 60))
    store.end({**FACTS})

    evidence.write(tmp_path, page)

    text = page.read_text()
    assert text.startswith("Before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| model | random states | 2,000 | 0-1999 | 0 | 2:00 |" in text
    assert re.search(r"\| machine \|.*not run", text)


def test_evidence_of_a_part_that_did_not_end_says_so(tmp_path: Path) -> None:
    page = tmp_path / "evidence.md"
    page.write_text(f"{evidence.BEGIN}\n{evidence.END}\n")
    Store(tmp_path, "model", "this build").add(Row("model", "1", "random states", 1000, None, "", 0, 60))

    evidence.write(tmp_path, page)

    assert "incomplete" in page.read_text()


def test_rows_are_kept_as_they_came(tmp_path: Path) -> None:
    store = Store(tmp_path, "fake", "this build")
    row = Row("fake", "S1", "schedules", 252, 252, "", 1, 1.5, "a\tb \u00e9")
    store.add(row)

    assert store.rows() == [row]
    (line,) = map(json.loads, store.path.read_text().splitlines())
    assert line["build"] == "this build"
