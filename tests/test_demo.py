"""The demo from end to end, with small numbers: what it prints, how it ends, that nothing is left of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from django.db import connection

from example_project.demo import Load, failures
from example_project.judge import Bound, Verdict, Window

ROOT = Path(__file__).resolve().parent.parent
SMALL = ("--noisy=60", "--quiet=12", "--each=3")


@contextmanager
def demo_with(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the demo on the server that this test run uses; it has ended when the block has."""
    with subprocess.Popen(
        [sys.executable, "-m", "example_project.demo", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as demo:
        try:
            yield demo
        finally:
            demo.terminate()


def leftovers(demo: subprocess.Popen[str]) -> list[str]:
    """The databases of a demo that are still there."""
    with psycopg.connect(**connection.get_connection_params() | {"dbname": "postgres"}) as server:
        rows = server.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE %s", [f"tenantfair_demo%{demo.pid}"]
        )
        return [name for (name,) in rows]


def test_the_demo_shows_both_engines_and_ends_well() -> None:
    with demo_with(*SMALL) as demo:
        output, _ = demo.communicate(timeout=300)

    assert demo.returncode == 0, output
    waits = dict(re.findall(r"^(quiet-\d\d) +(.*)$", output, re.MULTILINE))
    assert len(waits) == 12
    for line in waits.values():
        legacy, fair = (int(line.split()[column].replace(",", "")) for column in (0, 5))
        assert legacy >= 60
        assert fair < 60
    assert "Caps    never exceeded" in output
    assert "Bound   exceeded in none" in output
    assert "Both promises kept." in output
    assert leftovers(demo) == []


LOAD = Load(noisy=1, quiet=1, each=1, workers=1, cap=1, windows=2)
FINE = Window("a", 2, Bound(1, 1, 2), Bound(1, 8, 2))
ALONE = Window("a", 1, Bound(0, 0, 1), Bound(0, 0, 1))
PASSED_OVER = Window("a", 2, Bound(2, 2, 2), Bound(1, 8, 2))


@pytest.mark.parametrize(
    ("verdict", "completed", "complaint"),
    [
        (Verdict(eligible=[FINE, FINE]), 2, None),
        (Verdict(eligible=[FINE, FINE]), 1, "1 of 2 runs completed under Legacy"),
        (Verdict(eligible=[FINE, FINE], over_cap=["a"]), 2, "a cap was exceeded"),
        (Verdict(eligible=[FINE, PASSED_OVER]), 2, "passed over more often than the bound allows"),
        (Verdict(eligible=[FINE, ALONE]), 2, "1 eligible windows with competitors, not 2"),
        (Verdict(eligible=[FINE], ineligible=Counter(reason=9)), 2, "1 eligible windows with competitors"),
    ],
)
def test_the_demo_fails_for_a_broken_promise_and_for_too_little_evidence(
    verdict: Verdict, completed: int, complaint: str | None
) -> None:
    found = list(failures(LOAD, verdict, {"Legacy": completed}))

    assert len(found) == (complaint is not None)
    assert (complaint or "") in "".join(found)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_demo_that_is_stopped_leaves_nothing_running(sign: signal.Signals) -> None:
    with demo_with("--noisy=2000") as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("Legacy"):
                break
        children = children_of(demo.pid)
        assert len(leftovers(demo)) == 1

        demo.send_signal(sign)
        output, _ = demo.communicate(timeout=60)

    assert demo.returncode == 128 + sign, output
    assert "Stopped" in output
    assert leftovers(demo) == []
    assert not [pid for pid in children if is_running(pid)]


def children_of(pid: int) -> list[int]:
    answer = subprocess.run(["ps", "-eo", "pid=,ppid="], check=True, capture_output=True, text=True)
    pairs = (map(int, line.split()) for line in answer.stdout.splitlines())
    return [child for child, parent in pairs if parent == pid]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
