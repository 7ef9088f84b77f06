"""Three hundred idle dispatchers in four processes: quiet while idle, no storm when woken together."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from example_project.postgres import PrivateServer
from tests.processes.stage import ROOT, Stage

_PROCESSES, _EACH = 4, 75
_RUNS = 100


@pytest.fixture
def roomy_stage(tmp_path: Path) -> Iterator[Stage]:
    """A stage on a server that takes three hundred sessions and some."""
    with PrivateServer(options={"max_connections": _PROCESSES * _EACH + 30}) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CREATE DATABASE domain")
        stage = Stage(server, "domain", tmp_path, DEFAULT_MAX_ACTIVE_RUNS=_RUNS, LEASE_SECONDS=3600)
        done = stage.manage("migrate", "--verbosity=0")
        assert done.returncode == 0, done.stderr
        # A worker's start puts the policy in force; there is nothing for it to do.
        done = stage.manage("tenantfair_worker", "--batch", "--no-reload")
        assert done.returncode == 0, done.stderr
        yield stage
        stage.close()


class Crowds:
    """The processes, all told the same at once."""

    def __init__(self, stage: Stage) -> None:
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.processes.storm", str(_EACH)],
                cwd=ROOT,
                env=stage.environment() | {"DJANGO_SETTINGS_MODULE": "tests.processes.settings"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(_PROCESSES)
        ]
        self.results: Counter[str] = Counter()
        self.launched: list[str] = []
        self.polls = 0

    def tell(self, what: str) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{what}\n")
            process.stdin.flush()
        answers: list[dict[str, Any]] = []
        for process in self.processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "a process of the crowd has ended"
            answers.append(json.loads(line))
        self.results = sum((Counter(answer["results"]) for answer in answers), Counter())
        self.launched = [run_id for answer in answers for run_id in answer["launched"]]
        self.polls = sum(answer["polls"] for answer in answers)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def test_three_hundred_idle_dispatchers_wake_together_without_a_storm(roomy_stage: Stage) -> None:
    crowds = Crowds(roomy_stage)
    try:
        crowds.tell("start")
        assert crowds.polls == _PROCESSES * _EACH
        # An idle poll asks, without the policy lock, and makes no call.
        assert crowds.results == {}

        ids = roomy_stage.enqueue("quick", count=_RUNS)
        crowds.tell("wake")
        calls = sum(crowds.results.values())
        refused = calls - crowds.results["ok"]
        assert sorted(crowds.launched) == sorted(ids)
        assert refused < calls / 20
        # Whoever comes too late is told so by its question: few calls are in vain.
        assert calls <= _RUNS + 2 * _PROCESSES + refused

        crowds.tell("wake")
        assert sum(crowds.results.values()) == calls
        crowds.tell("stop")
    finally:
        crowds.close()
