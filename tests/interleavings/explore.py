"""Walks the schedules of a case: all of them, or a seeded sample; and prints a failing one as a test."""

from __future__ import annotations

import gc
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, repeat
from math import factorial, prod

from tests.interleavings.actors import COMMIT
from tests.interleavings.case import Case
from tests.interleavings.gates import NO_ROW_GATE, ROW_GATE
from tests.interleavings.look import Domain, violations
from tests.interleavings.seen import End, Seen
from tests.interleavings.stage import Stage
from tests.interleavings.state import token as token_of
from tests.interleavings.walk import Failure, Walk

# As many schedules as two sessions with eight steps each have.
EXHAUSTIVE = 12_870
# What those are told who found a row locked and passed it by.
KEPT_AWAY = frozenset({"nothing", "busy", "held", "pruned 0"})


class Explorer:
    """Plays schedules of one case with given ends on a stage."""

    def __init__(self, stage: Stage, case: Case, ends: Mapping[str, End] | None = None) -> None:
        self.stage = stage
        self.case = case
        self._works = case.sessions
        self._known: dict[str, tuple[Domain, list[str]]] = {}
        rows = any(operation.row for operation in case.sessions.values())
        stage.prepare(case.state.script(), ROW_GATE if rows else NO_ROW_GATE)
        stage.reset()
        self._first = Domain(self._with_owners(stage.look(), Seen()))
        # How each session stands by itself, for where it may meet one that leaves no trace; see `alone`.
        self._solo: dict[str, tuple[str, str]] = {}
        # The most steps that each session was seen to have.
        self.steps = dict.fromkeys(case.sessions, 0)
        self.end(ends or {})

    def end(self, ends: Mapping[str, End]) -> Explorer:
        """Have sessions end so from now on, and those that are not named by COMMIT."""
        self.ends = {letter: End(COMMIT) for letter in self.case.sessions} | dict(ends)
        if any(end.how != COMMIT for end in ends.values()):
            self.alone()
        return self

    def alone(self) -> Explorer:
        """See what each session does when it meets nobody, and in how many steps."""
        if not self._solo:
            for letter, work in self._works.items():
                seen = self.stage.play({letter: work}, {letter: End(COMMIT)}, lambda _, movable: movable)
                last = Domain(self._with_owners(seen.texts[-1], seen))
                self._solo[letter] = seen.word(letter), last.words
                self.steps[letter] = max(self.steps[letter], len(seen.order))
        return self

    @property
    def orders(self) -> int:
        """The number of orders in which the sessions could be moved if none ever waited for another."""
        return orders(self.alone().steps.values())

    def play(self, choose: Callable[[int, str], str]) -> Seen:
        """Play one schedule, `choose` being given the step's number and who can be moved, and judge it."""
        looks_between = self.case.is_ring_judged
        seen = self.stage.play(self._works, self.ends, choose, looks_between=looks_between)
        problems = []
        for text in seen.texts:
            domain, broken = self._domain(self._with_owners(text, seen))
            seen.looks.append(domain)
            problems += broken
        problems += [*self.case.judge(seen, self._first), *self._traces(seen)]
        seen.problems = list(dict.fromkeys(problems))
        return seen

    def _traces(self, seen: Seen) -> Iterator[str]:
        """Yield what is left of sessions that did not commit.

        The other one did what it does by itself, or was kept from it by a lock and changed nothing.
        """
        last = seen.looks[-1]
        if not seen.done and last.text != self._first.text:
            yield f"nobody committed, and this is left: {last.words}"
        if (
            len(seen.done) == 1
            and len(seen.jobs) == 2
            and not any(job.error and not job.is_aborted for job in seen.jobs.values())
        ):
            did = seen.word(seen.done), last.words
            if did != self._solo[seen.done] and not (did[0] in KEPT_AWAY and last.words == self._first.words):
                yield f"only {seen.done} committed, and this is left: {did[0]}, {last.words}"

    def _domain(self, text: str) -> tuple[Domain, list[str]]:
        """Return a domain and what is broken in it; most schedules end in one of a few."""
        if text not in self._known:
            domain = Domain(text)
            broken = list(violations(domain, self._first, may_owe=self.case.may_owe))
            self._known[text] = domain, broken
        return self._known[text]

    def _with_owners(self, text: str, seen: Seen) -> str:
        """Put the names of their holders in place of the tokens, which are new in each schedule."""
        for letter, job in seen.jobs.items():
            for name, token, _ in job.result.leases if job.result else ():
                text = text.replace(token, f"{name}@{letter}")
        for name in self.case.state.names:
            text = text.replace(str(token_of(name)), f"{name}@old")
        return text

    def replay(self, order: str) -> Seen:
        """Play the steps in this order, those of a session that cannot be moved left out, and then what is
        left.
        """
        left = list(order)

        def choose(_: int, movable: str) -> str:
            while left:
                if (letter := left.pop(0)) in movable:
                    return letter
            return movable[0]

        return self.play(choose)

    def follow(self, *moves: str) -> Seen:
        """Play moves: "A:recheck" moves A until it stands at a gate that this pattern fits, "B" until its
        end.
        """
        left = list(moves)
        at = dict.fromkeys(self.case.sessions, "")

        def choose(step: int, movable: str) -> str:
            at.update({what[0]: what for what in self.stage.trace})
            while left:
                letter = left[0][0]
                if letter in movable and not (":" in left[0] and re.match(left[0], at[letter])):
                    return letter
                left.pop(0)
            return movable[0]

        return self.play(choose)

    def all(self, limit: int = EXHAUSTIVE) -> Walk:
        """Walk every schedule, depth first: after each, the last choice that can be made otherwise is."""
        walk = Walk()
        path: list[list[str]] = []
        while walk.played < limit:
            seen = self.play(lambda step, movable: _next(path, step, movable))
            self._note(walk, seen)
            del path[len(seen.order) :]
            while path and len(path[-1]) == 1:
                path.pop()
            if not path:
                walk.is_whole = True
                break
            path[-1].pop(0)
        return walk

    def sample(self, number: int, seed: int) -> Walk:
        """Walk until `number` distinct schedules are seen, or as many more have been in vain."""
        walk = Walk()
        for choose in self._choices(seed):
            if len(walk.keys) >= number or walk.played >= 2 * number:
                return walk
            self._note(walk, self.play(choose))
        return walk

    def first_failure(self, most: int, beginning: str, seed: int = 1) -> Failure | None:
        """Return the first of at most so many schedules that has a problem which begins so; None if none
        has.
        """
        walk = Walk()
        for choose in islice(self._choices(seed), most):
            self._note(walk, self.play(choose))
            found = [problem for failure in walk.failures[-1:] for problem in failure.problems]
            if any(problem.startswith(beginning) for problem in found):
                return walk.failures[-1]
        return None

    def _choices(self, seed: int) -> Iterator[Callable[[int, str], str]]:
        """Yield one way to choose after the other: each session first and to its end, then at random for
        ever.
        """
        yield lambda _, movable: movable[0]
        yield lambda _, movable: movable[-1]
        yield from repeat(self._at_random(f"{self.case.name} {seed}"))

    def _at_random(self, seed: str) -> Callable[[int, str], str]:
        """Return a choice under which every order is about as likely, however many steps each session has."""
        dice = random.Random(seed)
        left = dict(self.steps)

        def choose(step: int, movable: str) -> str:
            if step == 0:
                left.update(self.steps)
            letter = dice.choices(movable, [max(1, left[other]) for other in movable])[0]
            left[letter] -= 1
            return letter

        return choose

    def _note(self, walk: Walk, seen: Seen) -> None:
        for letter in self.steps:
            self.steps[letter] = max(self.steps[letter], seen.order.count(letter))
        walk.played += 1
        walk.note(seen)
        aborted = [letter for letter, job in seen.jobs.items() if job.is_aborted]
        if aborted or all(end.how == COMMIT for end in self.ends.values()):
            walk.keys.add(f"{self._ending(aborted)} {seen.key}")
        walk.outcomes.setdefault(self.case.outcome(seen), seen.order)
        if seen.problems:
            walk.failures.append(
                Failure(self.case.name, seen.order, self._ending(self.ends), tuple(seen.problems), seen.key)
            )
        if walk.played % 500 == 0:
            gc.collect()

    def _ending(self, letters: Iterable[str]) -> str:
        """Return the ends of these sessions that are no commits, as arguments of `replay`."""
        named = {letter: self.ends[letter] for letter in letters if self.ends[letter].how != COMMIT}
        return ", ".join(
            f"{letter}=End({end.how!r}{'' if end.at is None else f', {end.at}'})"
            for letter, end in named.items()
        )


def _next(path: list[list[str]], step: int, movable: str) -> str:
    """Return the choice at a step. `path` holds for each step the choices not yet made, the present one
    first.
    """
    if step == len(path):
        path.append(list(movable))
    elif path[step][0] not in movable:
        # The server did not do the same again: go on from here as from a new place.
        path[step:] = [list(movable)]
    return path[step][0]


def orders(steps: Iterable[int]) -> int:
    """Return in how many orders sessions with so many steps can be moved if none ever waits."""
    counts = list(steps)
    return factorial(sum(counts)) // prod(map(factorial, counts))
