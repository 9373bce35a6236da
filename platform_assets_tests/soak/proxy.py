"""A TCP proxy on loopback. Its connections can be slowed down, stalled and cut."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from platform_assets.services.ports import LOOPBACK

_CHUNK: Final = 1 << 16


@dataclass
class Proxy:
    """Forward connections from `port` to `target`, a loopback port on which nothing needs to listen yet.

    Each chunk of up to 64 KiB is held back for `delay` seconds.
    """

    target: int
    port: int = 0
    delay: float = 0.0
    _refusing: bool = field(default=False, init=False)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop, init=False)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _flowing: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @contextmanager
    def serving(self) -> Iterator[Proxy]:
        """Listen while the block runs. `port` is known once the block begins."""
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, LOOPBACK, self.port))
        self.port = server.sockets[0].getsockname()[1]
        self._flowing.set()
        thread = threading.Thread(target=self._loop.run_forever, name=f"proxy of {self.target}")
        thread.start()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._close(server), self._loop).result(30)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    def cut(self) -> None:
        """Close every connection immediately."""
        self._loop.call_soon_threadsafe(self._cut)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """While the block runs, cut all existing connections, and cut new connections as soon as they are made."""
        self._refusing = True
        self.cut()
        try:
            yield
        finally:
            self._refusing = False

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """While the block runs, accept and keep connections, but forward nothing, like a network that drops packets."""
        self._loop.call_soon_threadsafe(self._flowing.clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._flowing.set)

    @contextmanager
    def slowed(self, delay: float) -> Iterator[None]:
        """While the block runs, hold each chunk back for `delay` seconds."""
        self.delay = delay
        try:
            yield
        finally:
            self.delay = 0.0

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _close(self, server: asyncio.Server) -> None:
        server.close()
        self._cut()
        self._flowing.set()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        onward: asyncio.StreamWriter | None = None
        try:
            if self._refusing:
                return
            answers, onward = await asyncio.open_connection(LOOPBACK, self.target)
            self._writers.add(onward)
            await asyncio.gather(self._pump(reader, onward), self._pump(answers, writer))
        except (OSError, asyncio.CancelledError):
            pass  # the other side closed, or this one did
        finally:
            for each in (writer, onward):
                if each is not None:
                    each.transport.abort()
                    self._writers.discard(each)
            self._tasks.discard(task)

    async def _pump(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while piece := await source.read(_CHUNK):
            await self._flowing.wait()
            if self.delay:
                await asyncio.sleep(self.delay)
            to.write(piece)
            await to.drain()
        with suppress(OSError):
            to.write_eof()
