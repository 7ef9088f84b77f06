"""The demo from end to end, with small numbers: what it prints, how it ends, that nothing is left of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from django.db import connection

ROOT = Path(__file__).resolve().parent.parent
SMALL = ("--noisy=60", "--quiet=12", "--each=3")


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start the demo on the server that this test run uses."""
    return subprocess.Popen(
        [sys.executable, "-m", "example_project.demo", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def leftovers(demo: subprocess.Popen[str]) -> list[str]:
    """The databases of a demo that are still there."""
    with psycopg.connect(**connection.get_connection_params() | {"dbname": "postgres"}) as server:
        rows = server.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE %s", [f"tenantfair_demo%{demo.pid}"]
        )
        return [name for (name,) in rows]


def test_the_demo_shows_both_engines_and_ends_well() -> None:
    demo = start(*SMALL)
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


def test_the_demo_fails_when_too_few_windows_could_be_judged() -> None:
    demo = start("--noisy=5", "--quiet=1", "--each=1")
    output, _ = demo.communicate(timeout=300)

    assert demo.returncode == 1
    assert "eligible windows with competitors, not 20" in output


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_demo_that_is_stopped_leaves_nothing_running(sign: signal.Signals) -> None:
    demo = start("--noisy=2000")
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
