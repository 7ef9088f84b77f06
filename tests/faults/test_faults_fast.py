"""A few of the fault scenarios, those that are over in a moment; `make proof PART=faults` runs all."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.faults import matrix
from tests.faults.proxy import Proxy
from tests.faults.server import World

FAST = [
    "F1 kill claim sent",
    "F1 kill in task",
    "F2 term before finish",
    "F1 kill after commit",
    "F5 cloned seeds",
    "F9 terminated in claim",
    "F10 cancelled in finish",
    "F13 idle in transaction",
    "F15 serializable",
    "F27 reply lost",
    "F29 name not found",
]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(durable=False) as world:
        yield world


@pytest.mark.parametrize("unit", FAST)
def test_the_fault_breaks_nothing(world: World, unit: str) -> None:
    assert matrix.scenarios()[unit].strike(world, 1) >= 1


def test_the_proxy_loses_what_it_is_told_to_lose(world: World) -> None:
    stage = world.stage()
    with Proxy(stage.proxied) as proxy:
        for action, is_there in (("drop request", 0), ("drop reply", 1), ("reset", 2)):
            with psycopg.connect(proxy.url(stage.database), autocommit=True) as connection:
                rule = proxy.rule(b"INSERT INTO tenantfair_run", action)  # type: ignore[arg-type]
                with pytest.raises(psycopg.OperationalError):
                    connection.execute(
                        "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at)"
                        " VALUES ('acme', 'none', now())"
                    )
            assert rule.count == 1
            assert stage.query("SELECT count(*) AS n FROM tenantfair_run") == [{"n": is_there}]
    world.discard(stage)
