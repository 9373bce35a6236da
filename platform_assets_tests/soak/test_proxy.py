"""The proxy forwards every byte, holds bytes back, and cuts connections."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from platform_assets.services.ports import LOOPBACK
from platform_assets_tests.soak.proxy import Proxy

BLOCK = bytes(range(256)) * 4096


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while piece := self.request.recv(1 << 16):
            self.request.sendall(piece)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server((LOOPBACK, 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with Proxy(server.server_address[1]).serving() as found:
                yield found
        finally:
            server.shutdown()
            thread.join()


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection((LOOPBACK, proxy.port), timeout=30)


def exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (piece := connection.recv(1 << 16)):
        found += piece
    return found


def ended(connection: socket.socket) -> bool:
    """Return True if no more data arrives. A connection that was cut ends with a reset or a normal close."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_every_byte_comes_through_in_order(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        sending = threading.Thread(target=connection.sendall, args=(BLOCK,))
        sending.start()
        assert exactly(connection, len(BLOCK)) == BLOCK
        sending.join()


def test_what_is_stalled_comes_through_afterwards(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        connection.sendall(b"a")
        assert exactly(connection, 1) == b"a"
        with proxy.stalled():
            connection.sendall(b"b")
            connection.settimeout(0.3)
            with pytest.raises(TimeoutError):
                connection.recv(1)
        connection.settimeout(30)
        assert exactly(connection, 1) == b"b"


def test_what_is_slow_comes_through(proxy: Proxy) -> None:
    with connect(proxy) as connection, proxy.slowed(0.01):
        connection.sendall(b"slow")
        assert exactly(connection, 4) == b"slow"


def test_a_cut_ends_connections_and_new_ones_can_be_made(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        connection.sendall(b"a")
        assert exactly(connection, 1) == b"a"
        proxy.cut()
        assert ended(connection)
    with proxy.refusing(), connect(proxy) as connection:
        assert ended(connection)
    with connect(proxy) as connection:
        connection.sendall(b"b")
        assert exactly(connection, 1) == b"b"
