"""Listening sockets of processes, from the kernel, and the answers of Spark's own ports without a login."""

from __future__ import annotations

import socket
import struct
from typing import Final

import psutil

from platform_assets.services.ports import LOOPBACK
from platform_assets.services.process import ProcessRecord, family

_FRAME: Final = struct.Struct(">qbqi")
_RPC_REQUEST: Final = 3
_VERIFIER: Final = b"endpoint-verifier"


def listening(record: ProcessRecord) -> set[tuple[str, int]]:
    """Return address and port of each TCP socket on which a service or a descendant listens."""
    return {
        (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
        for process in family(record)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def answers_to_a_stranger(port: int, times: int = 2) -> list[bytes]:
    """Return a port's answers to Spark RPC calls without a login, until it closes the connection.

    Each call has bytes where Spark expects a serialized Java object.
    """
    content = b"\0\0" + struct.pack(">H", len(_VERIFIER)) + _VERIFIER + b"no object"
    found = []
    with socket.create_connection((LOOPBACK, port), timeout=10) as stranger:
        stranger.settimeout(10)
        for number in range(times):
            head = _FRAME.pack(_FRAME.size + len(content), _RPC_REQUEST, number, len(content))
            try:
                stranger.sendall(head + content)
                (size,) = struct.unpack(">q", _exactly(stranger, 8))
                found.append(_exactly(stranger, size - 8))
            except (ConnectionError, EOFError):
                break
    return found


def _exactly(stranger: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        if not (piece := stranger.recv(size - len(found))):
            raise EOFError
        found += piece
    return found
