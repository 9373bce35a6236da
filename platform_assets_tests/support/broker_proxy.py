"""A proxy between a Kafka client and its brokers, which understands frames: it cuts the connection before a request or
before an answer, or holds requests and answers back.

The proxy has a port for each broker. It replaces the brokers' ports in answers that name brokers, so that every
connection of the client goes through it. Connections must not use TLS.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from platform_assets.services.ports import LOOPBACK

PRODUCE: Final = 0
END_TRANSACTION: Final = 26
_NAMING_BROKERS: Final = frozenset({3, 10, 60})
"""API keys of answers that contain addresses: Metadata, FindCoordinator, DescribeCluster."""
_SECONDS: Final = 120.0

Fault = Literal["cut request", "cut answer", "keep answer"]
"""What to do to the next request of an API: close the connection without forwarding the request; forward it, wait for the
broker's answer, and close the connection without forwarding the answer; or do so without closing the connection."""


@dataclass(eq=False)
class _Connection:
    """One connection. `pending` maps the correlation ids of requests without an answer to API keys."""

    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter
    pending: dict[int, int] = field(default_factory=dict)
    closed: bool = False

    def close(self) -> None:
        self.closed = True
        self.client.transport.abort()
        self.broker.transport.abort()


class BrokerProxy:
    """A running proxy. Faults and holds apply to all connections. Use `proxied` to make one."""

    def __init__(self, targets: Sequence[int]) -> None:
        self._targets = list(targets)
        self._ports: dict[int, int] = {}
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = threading.Condition()
        self._armed: dict[int, Fault] = {}
        self._fired = 0
        self._forwarded = 0
        self._holding = False
        self._requests: list[tuple[_Connection, bytes]] = []
        self._answers: list[tuple[_Connection, bytes]] = []

    @property
    def bootstrap(self) -> str:
        """Addresses of the proxy's ports, in the form that clients expect."""
        return ",".join(f"{LOOPBACK}:{self._ports[target]}" for target in self._targets)

    # --- faults -------------------------------------------------------------------------------------------------

    def arm(self, api: int, fault: Fault) -> None:
        """Apply `fault` to the next request with this API key, once."""
        self._in_loop(lambda: self._armed.update({api: fault}))

    def wait_fired(self, count: int = 1) -> None:
        """Wait until `count` armed faults have taken effect. Raises TimeoutError."""
        self._wait(lambda: self._fired >= count, "an armed fault to take effect")

    def wait_forwarded(self, count: int) -> None:
        """Wait until `count` Produce requests have been forwarded in all. Raises TimeoutError."""
        self._wait(lambda: self._forwarded >= count, f"{count} Produce requests")

    @contextmanager
    def holding(self) -> Iterator[None]:
        """While the block runs, hold back Produce requests and their answers. At the end, forward all that are held."""
        self._in_loop(lambda: setattr(self, "_holding", True))
        try:
            yield
        finally:
            self._in_loop(self._release_all)

    def wait_held(self, requests: int) -> None:
        """Wait until this many Produce requests are held. Raises TimeoutError."""
        self._wait(lambda: len(self._requests) >= requests, f"{requests} held requests")

    def pass_request(self) -> None:
        """Forward the oldest held request, and wait until its answer is held or the connection is closed. Raises
        TimeoutError."""
        connection, frame = self._requests.pop(0)
        before = len(self._answers)
        self._in_loop(lambda: self._forward(connection, frame))
        self._wait(lambda: len(self._answers) > before or connection.closed, "the answer to a held request")

    # --- the loop -----------------------------------------------------------------------------------------------

    def _in_loop(self, work: Callable[[], object]) -> None:
        done = threading.Event()

        def call() -> None:
            work()
            done.set()

        self._loop.call_soon_threadsafe(call)
        assert done.wait(_SECONDS)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, _SECONDS):
                raise TimeoutError(f"waited {_SECONDS:g} s in vain for {what}")

    def _note(self, name: str) -> None:
        with self._changed:
            setattr(self, name, getattr(self, name) + 1)
            self._changed.notify_all()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _forward(self, connection: _Connection, frame: bytes) -> None:
        connection.broker.write(frame)
        self._note("_forwarded")

    def _release_all(self) -> None:
        self._holding = False
        for connection, frame in self._answers:
            connection.client.write(frame)
        for connection, frame in self._requests:
            self._forward(connection, frame)
        self._answers, self._requests = [], []

    @contextmanager
    def serving(self) -> Iterator[BrokerProxy]:
        """Listen while the block runs."""
        servers = []
        for target in self._targets:

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int = target) -> None:
                await self._accept(target, reader, writer)

            server = self._loop.run_until_complete(asyncio.start_server(accept, LOOPBACK, 0))
            self._ports[target] = server.sockets[0].getsockname()[1]
            servers.append(server)
        thread = threading.Thread(target=self._loop.run_forever, name="broker proxy")
        thread.start()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._close(servers), self._loop).result(30)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    async def _close(self, servers: list[asyncio.Server]) -> None:
        for server in servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection: _Connection | None = None
        try:
            answers, onward = await asyncio.open_connection(LOOPBACK, target)
            connection = _Connection(writer, onward)
            pumps = [
                asyncio.create_task(self._requests_of(connection, reader)),
                asyncio.create_task(self._answers_of(connection, answers)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # no broker listens there, or this side closes
        finally:
            writer.transport.abort()
            if connection is not None:
                connection.close()
                self._notify()
            self._tasks.discard(task)

    async def _requests_of(self, connection: _Connection, reader: asyncio.StreamReader) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(reader)
                api, _, correlation = struct.unpack_from(">hhi", frame, 4)
                if self._armed.get(api) == "cut request":
                    del self._armed[api]
                    connection.close()
                    self._note("_fired")
                    return
                connection.pending[correlation] = api
                if api == PRODUCE and self._holding:
                    self._requests.append((connection, frame))
                    self._notify()
                elif api == PRODUCE:
                    self._forward(connection, frame)
                else:
                    connection.broker.write(frame)

    async def _answers_of(self, connection: _Connection, reader: asyncio.StreamReader) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(reader)
                api = connection.pending.pop(struct.unpack_from(">i", frame, 4)[0])
                fault = self._armed.pop(api, None)
                if fault is not None:
                    if fault == "cut answer":
                        connection.close()
                    self._note("_fired")
                elif api == PRODUCE and self._holding:
                    self._answers.append((connection, frame))
                    self._notify()
                else:
                    connection.client.write(self._renamed(frame) if api in _NAMING_BROKERS else frame)

    def _renamed(self, frame: bytes) -> bytes:
        # Host names and ports have the same lengths, so lengths in the frame stay right.
        for target, port in self._ports.items():
            frame = frame.replace(
                LOOPBACK.encode() + struct.pack(">i", target), LOOPBACK.encode() + struct.pack(">i", port)
            )
        return frame


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """Return the next frame, with its length. Raises IncompleteReadError at the end of the stream."""
    head = await reader.readexactly(4)
    return head + await reader.readexactly(struct.unpack(">i", head)[0])


@contextmanager
def proxied(bootstrap: str) -> Iterator[BrokerProxy]:
    """Run a proxy for the brokers on loopback at these addresses, `host:port[,host:port…]`, within the block."""
    targets = [int(address.rpartition(":")[2]) for address in bootstrap.split(",")]
    with BrokerProxy(targets).serving() as proxy:
        yield proxy
