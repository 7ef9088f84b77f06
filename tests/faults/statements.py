"""Statements that are cut off, requests and replies that are lost: F11, F12, F27."""

from __future__ import annotations

from tests.faults.scenario import assert_sound, scenario
from tests.faults.server import World

_SWEEP = ("1", "2", "3", "5", "8", "13", "21", "34", "55", "89", "144", "233", "377", "610", "1000")
_QUICK_SWEEP = ("1", "5", "21", "1000")
_CAP = 1000


def _sweep(world: World, setting: str, values: tuple[str, ...]) -> int:
    stage = world.stage(DEFAULT_MAX_ACTIVE_RUNS=_CAP, LISTEN=False)
    stage.inside("tests.faults.calls:timeouts", setting, *values)
    assert_sound(stage)
    world.discard(stage)
    return len(values)


@scenario("F11", times=2)
def statement_timeout(world: World, times: int) -> int:
    """Every operation is made under a statement_timeout of 1 ms to 1 s, beside a rival for the rows."""
    values = _QUICK_SWEEP if times == 1 else _SWEEP
    return sum(_sweep(world, "statement_timeout", values) for _ in range(times))


@scenario("F12", times=4)
def lock_timeout(world: World, times: int) -> int:
    """Every operation is made under a lock_timeout of 0, 1 and 250 ms, beside a rival for the rows."""
    return sum(_sweep(world, "lock_timeout", ("0", "1", "250")) for _ in range(times))


def _lose(world: World, action: str, times: int) -> int:
    for _ in range(times):
        stage = world.stage(DEFAULT_MAX_ACTIVE_RUNS=_CAP, LISTEN=False)
        stage.inside("tests.faults.calls:lost", action, str(stage.proxied))
        assert_sound(stage)
        world.discard(stage)
    return times


@scenario("F27", times=5)
def reply_lost(world: World, times: int) -> int:
    """The reply to the commit of each operation is lost, so its caller cannot know; it asks again."""
    return _lose(world, "drop reply", times)


@scenario("F27", times=5)
def reset(world: World, times: int) -> int:
    """The connection is reset after the commit of each operation."""
    return _lose(world, "reset", times)


@scenario("F27", times=5)
def request_lost(world: World, times: int) -> int:
    """The request of each operation is lost with its connection."""
    return _lose(world, "drop request", times)


@scenario("F27", times=5)
def request_delayed(world: World, times: int) -> int:
    """The request of each operation comes late."""
    return _lose(world, "delay", times)


@scenario("F27", times=5)
def reply_split(world: World, times: int) -> int:
    """The reply to each operation comes byte by byte."""
    return _lose(world, "split", times)
