"""Hosts with settings of their own, and servers that are short of something."""

from __future__ import annotations

from tests.faults.scenario import assert_sound, scenario
from tests.faults.server import World

_CAP = 1000


def _inside(world: World, times: int, function: str, *arguments: str) -> int:
    for _ in range(times):
        stage = world.stage(DEFAULT_MAX_ACTIVE_RUNS=_CAP, LISTEN=False)
        stage.inside(f"tests.faults.hosting:{function}", *arguments)
        assert_sound(stage)
        world.discard(stage)
    return times


@scenario("F5")
def cloned_seeds(world: World, times: int) -> int:
    """Processes with the same random numbers, as clones of a machine have, claim side by side."""
    return _inside(world, times, "same_seeds", "4")


@scenario("F13")
def idle_in_transaction(world: World, times: int) -> int:
    """The server ends a transaction that has enqueued and then sat idle."""
    return _inside(world, times, "idle_in_transaction")


@scenario("F15")
def repeatable_read(world: World, times: int) -> int:
    """A host at REPEATABLE READ does everything but claim."""
    return _inside(world, times, "isolation", r"repeatable\ read")


@scenario("F15")
def serializable(world: World, times: int) -> int:
    """A host at SERIALIZABLE does everything but claim."""
    return _inside(world, times, "isolation", "serializable")


@scenario("F15")
def transactions_serializable(world: World, times: int) -> int:
    """A host that asks Django for SERIALIZABLE transactions does everything."""
    return _inside(world, times, "isolation_of_django", "SERIALIZABLE")


@scenario("F15")
def deferrable(world: World, times: int) -> int:
    """A host whose transactions are DEFERRABLE does everything."""
    return _inside(world, times, "usual", "-c default_transaction_deferrable=on")


@scenario("F15", "F24")
def read_only_host(world: World, times: int) -> int:
    """A host whose transactions are READ ONLY is refused everything that writes (25006)."""
    return _inside(world, times, "read_only", "-c default_transaction_read_only=on")


@scenario("F28")
def pool_of_django(world: World, times: int) -> int:
    """A host with Django's own connection pool does everything."""
    return _inside(world, times, "pooled")


@scenario("F26")
def numbers_near_their_end(world: World, times: int) -> int:
    """Ids, places and laps come near the end of a bigint."""
    return _inside(world, times, "far_numbers")


@scenario("F32")
def old_transaction(world: World, times: int) -> int:
    """A transaction that began long ago enqueues, cancels, and is refused a claim."""
    return _inside(world, times, "old_transaction", "0.5")


@scenario("F22", own_server=True, quick=False, times=1)
def no_session_left(world: World, times: int) -> int:
    """Every operation is made while the server has no session to give, and then again."""
    return _inside(world, times, "no_room")


@scenario("F22", own_server=True, times=1)
def no_lock_left(world: World, times: int) -> int:
    """Every operation is made while the server's lock table has no place left, and then again."""
    return _inside(world, times, "no_lock_left")
