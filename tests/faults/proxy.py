"""A proxy in front of a server's socket that loses, delays or withholds what the test tells it to.

It listens on 127.0.0.1 and reads no more of the protocol than it must: which request contains the marker, and
when the server has answered a request in full (ReadyForQuery).
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

Action = Literal["hold reply", "drop reply", "drop request", "reset", "silence", "delay", "split"]
_READY = b"Z\x00\x00\x00\x05"
_CHUNK = 1 << 16


@dataclass(eq=False)
class Rule:
    """What happens to requests that contain `marker`: to the first `times` of them.

    "drop reply" waits for the server's answer, which is the commit, and closes the client's connection
    instead of passing it on; "drop request" closes before the server sees it; "reset" is "drop reply" by RST;
    "hold reply" keeps the answer until `released` is set, "silence" the request for ever; "delay" waits
    `seconds`; "split" passes the answer on in pieces of one byte to begin with.
    """

    marker: bytes
    action: Action
    times: int = 1
    seconds: float = 0.0
    fired: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    count: int = 0

    def takes(self, request: bytes) -> bool:
        return self.count < self.times and self.marker in request

    def fire(self) -> None:
        self.count += 1
        self.fired.set()


class Proxy:
    """A context manager; `port` answers while it is open. New connections lead to `target`."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.rules: list[Rule] = []
        self.refuses = False
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def rule(self, marker: bytes, action: Action, *, times: int = 1, seconds: float = 0.0) -> Rule:
        """Add a rule and return it; its `fired` is set once it has been applied."""
        self.rules.append(Rule(marker, action, times, seconds))
        return self.rules[-1]

    def cut(self) -> None:
        """Close every connection now."""
        self._run(self._cut())

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_CHUNK)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._cut()

    async def _cut(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if not self.refuses:
                await _Pair(self, reader, writer).run(self.target)
        except (OSError, asyncio.CancelledError):
            pass  # either side may go at any moment
        finally:
            self._tasks.discard(task)
            writer.transport.abort()


class _Pair:
    """One client's connection and the server's."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._reader, self._writer = reader, writer
        self._rule: Rule | None = None
        self._tail = self._held = b""
        self._is_first = True
        self._prepared: dict[bytes, bytes] = {}

    async def run(self, target: Path) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(str(target), limit=_CHUNK)
        try:
            pumps = {
                asyncio.ensure_future(self._requests(up_writer)),
                asyncio.ensure_future(self._replies(up_reader)),
            }
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            up_writer.transport.abort()

    async def _requests(self, up: asyncio.StreamWriter) -> None:
        seen = b""
        while chunk := await self._reader.read(_CHUNK):
            # A statement may come in pieces; a marker is shorter than what is kept.
            seen = seen[-64:] + self._spelled_out(chunk)
            rule = next((rule for rule in self._proxy.rules if rule.takes(seen)), None)
            if rule is not None:
                seen = b""
                if rule.action == "drop request":
                    rule.fire()
                    return
                if rule.action == "silence":
                    rule.fire()
                    await asyncio.Event().wait()
                if rule.action == "delay":
                    rule.fire()
                    await asyncio.sleep(rule.seconds)
                else:
                    self._tail, self._rule = b"", rule
            up.write(chunk)
            await up.drain()

    def _spelled_out(self, chunk: bytes) -> bytes:
        """Return a request with the text of what it executes; nothing for one that only prepares it."""
        is_first, self._is_first = self._is_first, False
        if not is_first or chunk[:1] not in {b"P", b"B"}:
            return chunk
        if chunk[:1] == b"B":
            name = chunk[5:].split(b"\0", 2)[1]
            return chunk + self._prepared.get(name, b"")
        (length,) = struct.unpack_from("!i", chunk, 1)
        name = chunk[5:].split(b"\0", 1)[0]
        if not name or chunk[1 + length : 2 + length] not in {b"S", b""}:
            return chunk
        self._prepared[name] = chunk
        return b""

    async def _replies(self, up: asyncio.StreamReader) -> None:
        while chunk := await up.read(_CHUNK):
            self._is_first = True
            if (rule := self._rule) is None:
                await self._pass_on(chunk)
            elif rule.action == "split":
                self._rule = None
                rule.fire()
                for place in range(min(64, len(chunk))):
                    await self._pass_on(chunk[place : place + 1])
                    await asyncio.sleep(0)
                await self._pass_on(chunk[64:])
            else:
                self._tail = self._tail[-len(_READY) :] + chunk
                if _READY in self._tail:
                    rule.fire()
                    if rule.action == "hold reply":
                        while not rule.released.is_set():
                            await asyncio.sleep(0.005)
                        self._rule = None
                        await self._pass_on(self._held + chunk)
                        self._held = b""
                        continue
                    if rule.action == "reset":
                        linger = struct.pack("ii", 1, 0)
                        client: socket.socket = self._writer.get_extra_info("socket")
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    return
                if rule.action == "hold reply":
                    self._held += chunk

    async def _pass_on(self, chunk: bytes) -> None:
        self._writer.write(chunk)
        await self._writer.drain()
