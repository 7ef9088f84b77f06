"""Killing the command that records: workers go on, and it can be cleaned up."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.processes.stage import ROOT, Stage, until

TRIGGERS = "SELECT count(*) AS n FROM pg_trigger WHERE starts_with(tgname, 'tenantfair_certify_')"


@pytest.fixture
def certify(stage: Stage) -> Iterator[subprocess.Popen[str]]:
    """The command, recording beside a worker."""
    stage.start_worker()
    with subprocess.Popen(
        stage._command("tenantfair_certify", "--seconds=50"),
        cwd=ROOT,
        env=stage.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as command:
        until(lambda: triggers(stage) == 8, "it records")
        yield command
        command.kill()


def triggers(stage: Stage) -> int:
    return stage.query(TRIGGERS)[0]["n"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_recording_and_leaves_nothing(
    stage: Stage, certify: subprocess.Popen[str], number: signal.Signals
) -> None:
    certify.send_signal(number)
    said, _ = certify.communicate(timeout=60)
    assert certify.returncode == 2, said
    assert "ended by signal" in said
    assert triggers(stage) == 0


def test_killed_recorder_stops_nobody(stage: Stage, certify: subprocess.Popen[str]) -> None:
    certify.kill()
    certify.wait()
    assert triggers(stage) == 8
    stage.enqueue("quick", count=3)
    stage.until_all("completed")
    done = stage.manage("tenantfair_certify", "--clean")
    assert (done.returncode, done.stdout) == (0, "the recording was removed\n")
    assert triggers(stage) == 0
