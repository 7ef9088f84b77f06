"""What runs in a process of its own: each operation of the API under timeouts, lost replies, held rows."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from django.db import connection, connections

from tests import invariants
from tests.faults.operations import OPERATIONS, READS, Operation, attempt, boot, faulty
from tests.faults.proxy import Proxy

_RIVALS_HOLD_SECONDS = 0.03
_STATEMENTS = (
    "SELECT FROM tenantfair_policy FOR UPDATE",
    "SELECT FROM tenantfair_partition ORDER BY updated_at DESC LIMIT 20 FOR UPDATE",
    "SELECT FROM tenantfair_run WHERE status IN ('running', 'waiting') ORDER BY id DESC LIMIT 20 FOR UPDATE",
    "SELECT FROM tenantfair_schedule ORDER BY ring_position DESC LIMIT 20 FOR UPDATE",
)


def session() -> psycopg.Connection[tuple[object, ...]]:
    parameters = connection.get_connection_params()
    for name in ("context", "cursor_factory", "prepare_threshold"):
        parameters.pop(name, None)
    return psycopg.connect(**parameters, autocommit=True)


def assert_sound() -> None:
    with session() as looking:
        assert invariants.violations(looking) == []


@contextmanager
def rival() -> Iterator[None]:
    """Keep another session locking rows of each table in turn, a little while each."""
    ending = threading.Event()

    def hold() -> None:
        with session() as holding:
            while not ending.is_set():
                for statement in _STATEMENTS:
                    with holding.transaction():
                        holding.execute(statement)
                        ending.wait(_RIVALS_HOLD_SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def timeouts(setting: str, *values: str) -> None:
    """Do everything under each value of a timeout, beside a rival; what is cut off does nothing by half."""
    boot()
    told: Counter[str] = Counter()
    for value in values:
        faulty(OPTIONS={"options": f"-c {setting}={value}"})
        for name, operation in OPERATIONS.items():
            material = operation.prepare()
            with rival():
                error = attempt(operation, material)
            told[getattr(getattr(error, "__cause__", None), "sqlstate", None) or type(error).__name__] += 1
            if error is not None and name not in READS:
                assert not operation.applied(material), (name, value, error)
            _finally_done(name, operation, material)
    assert_sound()
    print(dict(told))


def _finally_done(name: str, operation: Operation, material: object) -> None:
    """Without the fault the same call, made again, ends with its effect there once."""
    connections["faulty"].close()
    kept = connections.settings["faulty"]
    faulty(**{key: connections.settings["default"][key] for key in ("HOST", "PORT")}, OPTIONS={"options": ""})
    assert attempt(operation, material) is None, name
    assert operation.applied(material), name
    connections["faulty"].close()
    del connections["faulty"]
    connections.settings["faulty"] = kept


def lost(action: str, socket: str) -> None:
    """Lose the request, or the reply, of each operation once, and find out which it was by asking again."""
    boot()
    with Proxy(Path(socket)) as proxy:
        for name, operation in OPERATIONS.items():
            material = operation.prepare()
            faulty(HOST="127.0.0.1", PORT=str(proxy.port))
            # Connected first: the rule is for the operation's own request.
            connections["faulty"].ensure_connection()
            rule = proxy.rule(operation.marker, action, seconds=0.05)  # type: ignore[arg-type]
            error = attempt(operation, material)
            assert rule.fired.is_set(), name
            if action in {"delay", "split"}:
                assert error is None, (name, error)
            elif name in READS:
                assert error is not None, name
            else:
                assert error is not None, name
                # The server has done it before the reply was lost, and never heard of a lost request.
                assert operation.applied(material) == (action != "drop request"), (name, action)
            proxy.rules.clear()
            _finally_done(name, operation, material)
    assert_sound()
    print(len(OPERATIONS))
