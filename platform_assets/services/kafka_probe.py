"""Query a broker for its metadata: over a plain socket, or as a client that logs in.

Over a plain socket, the query is a single request. With TLS and a login, a client library sends the request. The
library's logging is off, because the library would log each refused connection while the broker starts.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Final

METADATA_KEY: Final = 3
METADATA_VERSION: Final = 4
"""Version of the metadata request. The response in this version contains the brokers and the cluster id. The version is
older than the compact encoding. Brokers of version 4 still support it."""

_TIMEOUT_SECONDS: Final = 2.0
_LIMIT_BYTES: Final = 1 << 20


def answers(host: str, port: int, cluster_id: str, node: int = 1) -> bool:
    """Return True if a broker of this cluster answers at this address and has registered itself, so that it can lead
    partitions.

    Args:
        host: a loopback address.
        port: the port of the listener for clients.
        cluster_id: the cluster id for which the broker's storage was formatted. A response from another cluster does
            not count.
        node: the id of the broker.
    """
    try:
        brokers, found = metadata(host, port)
    except (OSError, ValueError, struct.error):
        return False
    return node in brokers and found == cluster_id


def answers_securely(host: str, port: int, cluster_id: str, node: int, settings: Mapping[str, str]) -> bool:
    """Check like `answers`, but for a secured broker. `settings` are confluent-kafka settings without addresses."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({**settings, "bootstrap.servers": f"{host}:{port}", "log_level": 0})
    try:
        # A request of the admin API would be answered later, by a thread. If it is given up because the broker is still
        # starting, librdkafka may abort the process (its issue 4605).
        found = admin.list_topics(timeout=_TIMEOUT_SECONDS)
    except KafkaException:
        return False
    return found.cluster_id == cluster_id and node in found.brokers


def metadata(host: str, port: int) -> tuple[frozenset[int], str | None]:
    """Return the ids of the live brokers and the cluster id.

    Raises:
        OSError: no response came in time.
        ValueError, struct.error: the response uses another protocol.
    """
    client = b"platform-probe"
    # Requests no topics (an empty list), and creates none.
    body = struct.pack(">hhih", METADATA_KEY, METADATA_VERSION, 1, len(client)) + client + struct.pack(">i?", 0, False)
    with socket.create_connection((host, port), _TIMEOUT_SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        size = struct.unpack(">i", _read(connection, 4))[0]
        if not 0 < size <= _LIMIT_BYTES:
            raise ValueError(f"invalid response size: {size} bytes")
        answer = _read(connection, size)
    brokers = struct.unpack_from(">i", answer, 8)[0]
    position = 12
    nodes = set()
    for _ in range(brokers):
        nodes.add(int(struct.unpack_from(">i", answer, position)[0]))
        position = _after_string(answer, position + 4) + 4
        position = _after_string(answer, position)
    length = struct.unpack_from(">h", answer, position)[0]
    return frozenset(nodes), None if length < 0 else answer[position + 2 : position + 2 + length].decode("utf-8")


def _after_string(data: bytes, position: int) -> int:
    return position + 2 + max(0, int(struct.unpack_from(">h", data, position)[0]))


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionError("the connection was closed")
        data += chunk
    return data
