"""Listening sockets of processes, as reported by the kernel, and the answers of Spark's own ports to clients that are
not authenticated."""

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
    """Return the address and port of each TCP socket on which a service or one of its descendants listens.

    A descendant, such as a worker of Spark, may end during the call; it has no sockets then.
    """
    found = set()
    for process in family(record):
        try:
            connections = process.net_connections("tcp")
        except psutil.NoSuchProcess:
            if process.pid == record.pid:
                raise
            continue
        found |= {
            (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
            for connection in connections
            if connection.status == psutil.CONN_LISTEN
        }
    return found


def answers_to_a_stranger(port: int, times: int = 2) -> list[bytes]:
    """Send Spark RPC calls to a port without authentication, and return the answers, until the server closes the
    connection.

    At the position where Spark expects a serialized Java object, each call contains other bytes.
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
