"""The benchmarks run and write what they promise; how fast anything is, no test says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.benchmarks import page, plots, table
from tests.benchmarks.claimers import FACADE, FUNCTION, THROUGH
from tests.benchmarks.rows import FLOOR, OWN_FLOOR, Row, at_least, at_most, make_row
from tests.docs_pages import ROOT

FIELDS = {"workload", "case", "demand", "clients", "value", "unit", "floor", "ratio", "target", "met"}
HEAD = {"machine", "postgresql", "python", "django", "psycopg", "probe_commit_ms", "probe_cpu_ms"}


def run(results: Path, *options: str, **environment: str) -> tuple[list[dict[str, Any]], str]:
    """Run the harness in a process of its own, as `make bench` does; return the rows and what it printed."""
    answer = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.benchmarks",
            "--rounds",
            "1",
            "--seconds",
            "0.1",
            "--results",
            results,
            *options,
        ],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads((results / "latest.json").read_text()), answer.stdout


@pytest.fixture(scope="module")
def smallest(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], str, Path]:
    results = tmp_path_factory.mktemp("results")
    return *run(results, "--quick", "--only", "w2", "--peers", TENANTFAIR_PEERS=""), results


def test_every_row_has_its_fields_its_floors_and_its_machine(smallest: Any) -> None:
    rows, _, _ = smallest
    measured = [row for row in rows if row["workload"] == "W2"]
    assert {row["through"] for row in measured} == {THROUGH[kind] for kind in (FUNCTION, FACADE)}
    for row in measured:
        assert row.keys() >= FIELDS | HEAD
        assert (row["demand"], row["clients"], row["unit"]) == (8, 1, "claims/s")
        assert row["value"] > 0
        assert row["floor"] > 0
        assert row["own_floor"] > 0
        assert row["ratio"] == pytest.approx(row["value"] / row["floor"], rel=0.01)
        assert row["postgresql"]


def test_peers_that_are_not_there_are_said_not_to_have_run(smallest: Any) -> None:
    rows, printed, _ = smallest
    (row,) = [row for row in rows if row["workload"] == "peers"]
    assert (row["case"], row["note"], row["met"]) == ("all: not run", "TENANTFAIR_PEERS is not set", None)
    assert "not run" in printed


def test_the_table_is_printed_and_the_results_are_named(smallest: Any) -> None:
    _, printed, results = smallest
    assert printed.splitlines()[0].replace(" ", "") == "|" + "|".join(table.HEADS).replace(" ", "") + "|"
    assert printed.splitlines()[-1] == str(results / "latest.json")


SAMPLES = [
    {FLOOR: 100.0, OWN_FLOOR: 50.0, "ours": 40.0},
    {FLOOR: 10.0, OWN_FLOOR: 10.0, "ours": 5.0},
    {FLOOR: 100.0, OWN_FLOOR: 100.0, "ours": 30.0},
]


def test_ratios_are_medians_of_pairs() -> None:
    row = make_row("W1", "case", SAMPLES, "ours", unit="claims/s")
    assert (row.value, row.floor, row.own_floor) == (30, 100, 50)
    assert (row.ratio, row.own_ratio) == (0.4, 0.5)
    assert (row.target, row.met) == (None, None)


@pytest.mark.parametrize(
    ("target", "text", "met"),
    [
        (at_least(0.4), ">= 0.4 x the floor", True),
        (at_least(0.6, "own_ratio"), ">= 0.6 x the same on our table", False),
        (at_most(30), "<= 30 ms", True),
        (at_most(29), "<= 29 ms", False),
    ],
)
def test_a_target_bounds_the_measure_it_names(target: Any, text: str, met: bool) -> None:
    row = make_row("W1", "case", SAMPLES, "ours", unit="ms", target=target)
    assert (row.target, row.met) == (text, met)


def test_a_chart_is_drawn_where_there_are_two_sizes(tmp_path: Path) -> None:
    rows: list[Row] = [
        make_row("bulk", case, SAMPLES, "ours", unit="ms", through="ours")
        for case in ("5,000 in", "50,000 in", "50,000 deleted")
    ]
    (path,) = plots.write(rows, tmp_path)
    assert path.name == "bulk_in.svg"
    drawing = ElementTree.parse(path).getroot()
    assert len(drawing.findall("{*}polyline")) == 3
    assert len(drawing.findall("{*}circle")) == 6


def test_the_page_takes_over_the_figures_and_keeps_the_rest(smallest: Any, tmp_path: Path) -> None:
    _, _, results = smallest
    text = tmp_path / "speed.md"
    text.write_text(page.PAGE.read_text())
    page.write(text, results / "latest.json")
    once = text.read_text()
    assert "\n### W2\n" in once
    assert once.count(f"| {THROUGH[FACADE]} | 8 | 1 |") == 1
    page.write(text, results / "latest.json")
    assert text.read_text() == once
    before, _, after = page.PAGE.read_text().partition(page.BEGIN)
    assert once.startswith(before)
    assert once.endswith(after.partition(page.END)[2])
