"""Client processes that are started once and then measure what they are told to, together."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Self

# Takes keyword arguments, gets everything ready, and returns what is to be measured.
Preparation = Callable[..., Callable[[], Any]]

_LONGEST_SECONDS = 300


class ClientError(RuntimeError):
    """A client failed or gave no answer in time."""


class Clients:
    """Processes with one pipe each; they end when this one does."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._running: list[tuple[Any, Connection]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process, pipe in self._running:
            pipe.close()
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join(5)
        self._running.clear()

    def run(self, prepare: Preparation, calls: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Prepare one client per element of `calls`, then let them go at once and return their answers."""
        while len(self._running) < len(calls):
            self._start()
        pipes = [pipe for _, pipe in self._running[: len(calls)]]
        for pipe, arguments in zip(pipes, calls, strict=True):
            pipe.send((prepare, dict(arguments)))
        for pipe in pipes:
            _answer(pipe)
        for pipe in pipes:
            pipe.send("go")
        return [_answer(pipe) for pipe in pipes]

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self._running.append((process, ours))


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(_LONGEST_SECONDS):
        raise ClientError(f"a client gave no answer within {_LONGEST_SECONDS} s")
    kind, answer = pipe.recv()
    if kind == "failed":
        raise ClientError(answer)
    return answer


def _serve(pipe: Connection) -> None:
    while True:
        try:
            prepare, arguments = pipe.recv()
        except EOFError:
            return
        try:
            measure = prepare(**arguments)
            pipe.send(("ready", None))
            pipe.recv()
            pipe.send(("done", measure()))
        except EOFError:
            return
        except Exception:
            pipe.send(("failed", traceback.format_exc()))
