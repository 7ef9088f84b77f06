"""A long random life of many runs, after which an independent recount finds every count right."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.rows import STATES, Session, assert_exact, enqueue, in_background, insert_run, put_into, sessions

TENANTS = ["a", "b", "c", "d", None]


@pytest.fixture
def session(transactional_db: None) -> Iterator[Callable[..., Session]]:
    with sessions() as another:
        yield another


@pytest.mark.conformance(27)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_recount_after_a_random_life(session: Callable[..., Session], seed: int) -> None:
    lives = [in_background(live, session(), random.Random(name)) for name in (seed, -seed)]
    for life in lives:
        life.result(timeout=300)
    assert_exact(session())


def live(mine: Session, dice: random.Random) -> None:
    """80 transactions of up to 12 steps each; a savepoint or the whole may be rolled back."""
    for _ in range(80):
        with mine.transaction():
            for _ in range(dice.randint(1, 12)):
                if dice.random() < 0.2:
                    with mine.transaction():
                        step(mine, dice)
                        step(mine, dice)
                        if dice.random() < 0.5:
                            raise psycopg.Rollback
                else:
                    step(mine, dice)
            if dice.random() < 0.2:
                raise psycopg.Rollback


def step(mine: Session, dice: random.Random) -> None:
    action = dice.random()
    if action < 0.35:
        insert_run(mine, dice.choice(TENANTS), dice.choice(list(STATES)))
    elif action < 0.45:
        enqueue(mine, dice.choice(TENANTS), dice.randint(1, 5))
    else:
        picked = mine.execute(
            "SELECT id FROM tenantfair_run ORDER BY hashint8(id + %s) LIMIT 1 FOR UPDATE SKIP LOCKED",
            [dice.randrange(1000)],
        ).fetchone()
        if picked is None:
            return
        if action < 0.6:
            mine.execute("DELETE FROM tenantfair_run WHERE id = %s", picked)
        else:
            put_into(mine, picked[0], dice.choice(list(STATES)))
