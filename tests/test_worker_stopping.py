"""Signals stop the worker, and nothing but the worker's own process takes them as it does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from tenantfair.worker.stopping import StopRequests
from tests.threads import LONGEST_WAIT_SECONDS

forking = multiprocessing.get_context("fork")


@pytest.fixture
def requests() -> Iterator[StopRequests]:
    stop_requests = StopRequests()
    with stop_requests:
        yield stop_requests
    stop_requests.close()


def say_ready_and_wait(ready: Connection) -> None:
    try:
        ready.send("ready")
        ready.poll(4 * LONGEST_WAIT_SECONDS)
    except KeyboardInterrupt:
        os._exit(7)


def exit_code_after(number: signal.Signals) -> int | None:
    """Fork from a thread, as a task does, and send the child, which waits for ever, a signal."""
    here, there = forking.Pipe()
    child = forking.Process(target=say_ready_and_wait, args=[there])

    def fork() -> None:
        with warnings.catch_warnings(action="ignore"):  # that the process has threads is the point
            child.start()

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    try:
        assert here.poll(LONGEST_WAIT_SECONDS)
        assert here.recv() == "ready"
        assert child.pid is not None
        deadline = time.monotonic() + LONGEST_WAIT_SECONDS
        while child.exitcode is None and time.monotonic() < deadline:
            # Again: the child of another thread than the main one may look at a signal only in a system call.
            os.kill(child.pid, number)
            child.join(0.1)
        return child.exitcode
    finally:
        child.kill()
        child.join()
        here.close()
        there.close()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 7)], ids=["SIGTERM", "SIGINT"]
)
def test_a_child_that_a_task_forks_is_ended_by_signals_and_tells_the_worker_nothing(
    requests: StopRequests, number: signal.Signals, code: int
) -> None:
    assert exit_code_after(number) == code
    assert requests.count == 0
    # Nor was the worker woken: the pipe that its signals write into is its own.
    with pytest.raises(BlockingIOError):
        os.read(requests._reader, 1)


def test_signals_are_counted_and_the_handlers_before_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    stop_requests = StopRequests()
    with stop_requests:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        stop_requests.wait(LONGEST_WAIT_SECONDS)
        assert stop_requests.count == 2
    stop_requests.close()

    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_fork_where_no_worker_runs_leaves_the_hosts_handlers_alone() -> None:
    before = signal.signal(signal.SIGTERM, lambda number, frame: os._exit(9))
    try:
        assert exit_code_after(signal.SIGTERM) == 9
    finally:
        signal.signal(signal.SIGTERM, before)
