"""A hostile broker with a simulated socket: no threads, no real time, nothing that differs from run to run. The broker
answers correctly from a random log, but damages some of its answers or replaces them with well-formed inventions."""

from __future__ import annotations

import random
import socket
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from crc32c import crc32c
from kafka.protocol.admin.cluster import DescribeLogDirsRequest, DescribeLogDirsResponse
from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka.protocol.consumer import OffsetCommitRequest, OffsetCommitResponse
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
from kafka.protocol.consumer.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from platform_assets_tests.fuzzing.target import Wrong, damaged
from platform_assets_tests.support.scripted_broker import TOPIC_ID, fetch_response

TOPIC: Final = "t"
_KINDS: Final[dict[int, tuple[Any, Any]]] = {
    request.API_KEY: (request, response)
    for request, response in (
        (FetchRequest, FetchResponse),
        (ListOffsetsRequest, ListOffsetsResponse),
        (MetadataRequest, MetadataResponse),
        (ApiVersionsRequest, ApiVersionsResponse),
        (OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
        (OffsetCommitRequest, OffsetCommitResponse),
        (FindCoordinatorRequest, FindCoordinatorResponse),
        (SaslHandshakeRequest, SaslHandshakeResponse),
        (SaslAuthenticateRequest, SaslAuthenticateResponse),
        (DescribeLogDirsRequest, DescribeLogDirsResponse),
        (DescribeProducersRequest, DescribeProducersResponse),
        (ListTransactionsRequest, ListTransactionsResponse),
        (DescribeTransactionsRequest, DescribeTransactionsResponse),
    )
}
_MOST_REQUESTS: Final = 5_000
_LONGEST_SECONDS: Final = 100_000.0
_MOST_WAITS: Final = 3
"""Maximum number of answers that make the client wait; a real broker may send such answers endlessly."""
_HOSTS: Final = (
    "127.0.0.1",
    "b1",
    "",
    "a..b",
    "x" * 70,
    "x" * 300,
    "\0",
    "::1",
    "ü.example",
    "a b",
    "-",
    "%s",
    "127.0.0.1/../x",
)
_TEXTS: Final = (
    TOPIC,
    "",
    "t" * 300,
    "../../x",
    "\0",
    "<img src=x>",
    "\x1b[2J",
    "ü",
    "PLAIN",
    "SCRAM-SHA-256",
    "x" * 5_000,
)


class Clock:
    """Replacement for the module `time`: the clock advances when the code sleeps."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        """Return the simulated time in seconds."""
        return self.now

    def perf_counter(self) -> float:
        """Return the simulated time in seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Advance the time. Raise Endless beyond `_LONGEST_SECONDS`."""
        self.now += max(seconds, 1e-4)
        if self.now > _LONGEST_SECONDS:
            raise Endless("it still waits after 27 hours")


class Endless(BaseException):
    """An exception for a call that does not end. No `except Exception` in the code under test catches it."""


@dataclass
class HostileBroker:
    """Log and hostility of the broker. `shares` has the probability of each kind of dishonest answer."""

    rng: random.Random
    clock: Clock
    batches: list[bytes]
    last_offsets: list[int]
    aborted: Callable[[int, int], list[tuple[int, int]]]
    end: int
    log_start: int = 0
    damage: float = 0.0
    made_up: float = 0.0
    silence: float = 0.0
    odd_hosts: float = 0.0
    requests: int = 0
    waits: int = 0
    corpus: Sequence[bytes] = field(default_factory=list)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fixed answers, by name of the request."""
    counts: dict[int, int] = field(default_factory=dict)
    """Number of batches in a fetch, by the fetch's first offset, so that every reader gets the same answer."""

    def answer(self, data: bytes) -> bytes | None:
        """Return the answer to a request: None for silence, empty for a closed connection. Raise Endless after too many
        requests."""
        self.requests += 1
        if self.requests > _MOST_REQUESTS:
            raise Endless(f"{self.requests} requests in one case")
        key, version, correlation = struct.unpack_from(">hhi", data, 4)
        kind, answers = _KINDS[key]
        rng = self.rng
        if rng.random() < self.silence:
            return rng.choice((None, b""))
        if kind.__name__ in self.fixed:
            answer = self.fixed[kind.__name__]
        elif rng.random() < self.made_up:
            answer = made_up(rng, answers, version)
            self._bound_waits(answer)
        else:
            answer = getattr(self, f"_{kind.__name__}")(kind.decode(data[4:], version=version, header=True))
        answer.API_VERSION = version
        body = answer.encode(version=version)
        tags = b"\0" if answers.flexible_version_q(version) and key != ApiVersionsRequest.API_KEY else b""
        head = struct.pack(">i", correlation)
        framed = tags + body
        if rng.random() < self.damage:
            framed = damaged(rng, framed, self.corpus)
            if rng.random() < 0.05:
                head = damaged(rng, head)
        size = len(head) + len(framed)
        if rng.random() < self.damage * 0.05:
            size = rng.choice((0, 3, 4, -1, 1 << 30, (1 << 31) - 1, size + 1, size - 1))
        return bytes(struct.pack(">i", size) + head + framed)

    def _bound_waits(self, answer: Any) -> None:
        if getattr(answer, "throttle_time_ms", 0) > 0:
            self.waits += 1
            if self.waits > _MOST_WAITS:
                answer.throttle_time_ms = 0

    # --- honest answers -------------------------------------------------------------------------------------

    def _ApiVersionsRequest(self, _: Any) -> Any:
        of = ApiVersionsResponse.ApiVersion
        keys = [of(api_key=key, min_version=0, max_version=kind.max_version) for key, (kind, _) in _KINDS.items()]
        return ApiVersionsResponse(error_code=0, api_keys=keys, throttle_time_ms=0)

    def _MetadataRequest(self, request: Any) -> Any:
        of_topic = MetadataResponse.MetadataResponseTopic
        rng = self.rng
        odd = rng.random() < self.odd_hosts
        host, port = (rng.choice(_HOSTS), rng.choice((9092, 0, -1, 1 << 20, 70_000))) if odd else ("127.0.0.1", 9092)
        partition = of_topic.MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=7, leader_epoch=5, replica_nodes=[7], isr_nodes=[7], offline_replicas=[]
        )  # fmt: skip
        topic = of_topic(
            error_code=0, name=request.topics[0].name, topic_id=TOPIC_ID, is_internal=False, partitions=[partition]
        )
        nodes = [
            MetadataResponse.MetadataResponseBroker(node_id=n, host=h, port=p, rack=None)
            for n, h, p in ((7, host, port), (8, "127.0.0.1", 9093))
        ]
        return MetadataResponse(throttle_time_ms=0, brokers=nodes, cluster_id="c", controller_id=7, topics=[topic])

    def _ListOffsetsRequest(self, request: Any) -> Any:
        of_topic = ListOffsetsResponse.ListOffsetsTopicResponse
        asked = request.topics[0].partitions[0]
        found = of_topic.ListOffsetsPartitionResponse(
            partition_index=asked.partition_index, error_code=0, timestamp=-1, leader_epoch=5,
            offset=self.log_start if asked.timestamp == -2 else self.end,
        )  # fmt: skip
        return ListOffsetsResponse(
            throttle_time_ms=0, topics=[of_topic(name=request.topics[0].name, partitions=[found])]
        )

    def _FetchRequest(self, request: Any) -> Any:
        asked, rng = request.topics[0].partitions[0], self.rng
        offset = asked.fetch_offset
        if not self.log_start <= offset <= self.end:
            return fetch_response(1, self.end, self.log_start, b"", [])
        first = next((at for at, last in enumerate(self.last_offsets) if last >= offset), len(self.batches))
        records = self.batches[first : first + self.counts.setdefault(offset, rng.choice((1, 2, 5, 100)))]
        replica = rng.choice((7, 8)) if rng.random() < self.made_up else -1
        if replica >= 0 and rng.random() < 0.5:
            records = []
        return fetch_response(
            0, self.end, self.log_start, b"".join(records), self.aborted(offset, max(len(records), 1)), replica=replica
        )

    def _OffsetForLeaderEpochRequest(self, request: Any) -> Any:
        of = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        found = of.EpochEndOffset(error_code=0, partition=0, leader_epoch=5, end_offset=self.end)
        return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=[of(topic=TOPIC, partitions=[found])])

    def _OffsetCommitRequest(self, request: Any) -> Any:
        of = OffsetCommitResponse.OffsetCommitResponseTopic
        found = of.OffsetCommitResponsePartition(partition_index=0, error_code=0)
        return OffsetCommitResponse(throttle_time_ms=0, topics=[of(name=TOPIC, partitions=[found])])

    def _FindCoordinatorRequest(self, request: Any) -> Any:
        odd = self.rng.random() < self.odd_hosts
        host, port = (self.rng.choice(_HOSTS), self.rng.choice((9092, -1, 1 << 20))) if odd else ("127.0.0.1", 9092)
        return FindCoordinatorResponse(
            throttle_time_ms=0, error_code=0, error_message=None, node_id=7, host=host, port=port
        )

    def _SaslHandshakeRequest(self, request: Any) -> Any:
        return SaslHandshakeResponse(error_code=0, mechanisms=[request.mechanism])

    def _SaslAuthenticateRequest(self, request: Any) -> Any:
        token = bytes(request.auth_bytes or b"")
        if b",r=" not in token or self.rng.random() < 0.3:
            return made_up(self.rng, SaslAuthenticateResponse, 1, error=0)
        # The first SCRAM answer to this nonce.
        rounds = self.rng.choice((b"4096", b"1", b"0", b"-1", b"1000000", b"2147483647", b"1e3", b"9" * 5_000))
        salt = self.rng.choice((b"YWJj", b"", b"=", b"x" * 10_000))
        nonce = token.partition(b",r=")[2].partition(b",")[0]
        answer = (
            b"r="
            + nonce
            + self.rng.choice((b"x", b""))
            + b",s="
            + salt
            + b",i="
            + rounds
            + self.rng.choice((b"", b"", b",m=x", b",i=5"))
        )
        return SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=answer, session_lifetime_ms=0)

    def _DescribeLogDirsRequest(self, request: Any) -> Any:
        return made_up(self.rng, DescribeLogDirsResponse, request.API_VERSION, error=0)

    def _DescribeProducersRequest(self, request: Any) -> Any:
        return made_up(self.rng, DescribeProducersResponse, request.API_VERSION, error=0)

    def _ListTransactionsRequest(self, request: Any) -> Any:
        return made_up(self.rng, ListTransactionsResponse, request.API_VERSION, error=0)

    def _DescribeTransactionsRequest(self, request: Any) -> Any:
        return made_up(self.rng, DescribeTransactionsResponse, request.API_VERSION, error=0)


class Socket:
    """A connection to a hostile broker."""

    def __init__(self, broker: HostileBroker, address: tuple[str, int]) -> None:
        # The result of a real socket module for such a name and port, without a DNS query.
        try:
            socket.getaddrinfo(*address, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
        except socket.gaierror:
            if address[0] != "b1":
                raise
        self._broker, self._waiting, self._closed = broker, bytearray(), False

    def settimeout(self, _: float) -> None:
        """Do nothing."""

    def setsockopt(self, *_: Any) -> None:
        """Do nothing."""

    def getpeername(self) -> tuple[str, int]:
        """Return the broker's address."""
        return "127.0.0.1", 9092

    def sendall(self, data: bytes) -> None:
        """Receive one request."""
        answer = self._broker.answer(bytes(data))
        if answer is not None:
            self._closed = not answer
            self._waiting += answer

    def recv_into(self, view: memoryview) -> int:
        """Return bytes of the answer; a timeout is raised without waiting."""
        if not self._waiting:
            if self._closed:
                return 0
            self._broker.clock.sleep(0.25)
            raise TimeoutError
        size = min(len(view), len(self._waiting))
        view[:size] = self._waiting[:size]
        del self._waiting[:size]
        return size

    def close(self) -> None:
        """Close the connection."""


class Sockets:
    """Replacement for the module `socket`."""

    IPPROTO_TCP, TCP_NODELAY, SOL_SOCKET, SO_KEEPALIVE = (
        socket.IPPROTO_TCP, socket.TCP_NODELAY, socket.SOL_SOCKET, socket.SO_KEEPALIVE,
    )  # fmt: skip

    def __init__(self) -> None:
        self.broker: HostileBroker | None = None

    def create_connection(self, address: tuple[str, int], timeout: float) -> Socket:
        """Connect to the broker of this case."""
        if self.broker is None:
            raise Wrong("there is no broker")
        return Socket(self.broker, address)


def made_up(rng: random.Random, answers: Any, version: int, error: int | None = None) -> Any:
    """Return a well-formed answer with random content; its error codes are all `error` if `error` is given."""
    return _struct(rng, answers._struct, version, error, answers)


def _struct(rng: random.Random, of: Any, version: int, error: int | None, made: Any) -> Any:
    values = {
        name: _value(rng, field, version, error) for name, field in of.fields.items() if field.for_version_q(version)
    }
    return made(**values)


def _value(rng: random.Random, field: Any, version: int, error: int | None) -> Any:
    if field.nullable_for_version_q(version) and rng.random() < 0.1:
        return None
    if field.is_array():
        count = rng.choice((0, 1, 1, 1, 2, rng.randint(0, 5)))
        return [_element(rng, field, version, error) for _ in range(count)]
    if field.is_struct():
        return _struct(rng, field, version, error, field.data_class)
    return _plain(rng, field.name, field.type_str, error)


def _element(rng: random.Random, field: Any, version: int, error: int | None) -> Any:
    inner = field.array_of
    if inner.is_struct():
        return _struct(rng, inner, version, error, inner.data_class)
    return _plain(rng, field.name, inner.type_str, error)


def _plain(rng: random.Random, name: str, kind: str, error: int | None) -> Any:
    if kind == "bool":
        return rng.random() < 0.5
    if kind in ("string",):
        return rng.choice(_HOSTS) if name == "host" else rng.choice(_TEXTS)
    if kind in ("bytes", "records"):
        return rng.choice(
            (
                b"",
                b"x",
                b"r=abc,s=YQ==,i=4096",
                b"r=,s=,i=1",
                b"v=YQ==",
                b"e=x",
                b"i=-1",
                rng.randbytes(rng.randint(0, 60)),
            )
        )
    if kind == "uuid":
        return rng.choice((TOPIC_ID, uuid.UUID(int=0), uuid.UUID(bytes=rng.randbytes(16))))
    if kind == "float64":
        return rng.choice((0.0, float("inf"), float("nan")))
    if kind == "bitfield":
        return None
    bits = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "int64": 64}[kind]
    if name == "error_code":
        if error is not None:
            return error
        return rng.choice((0, 0, 0, 1, 2, 3, 5, 6, 9, 29, 74, 100, 103, -1, 9999, rng.randint(-5, 130)))
    if name == "throttle_time_ms":
        return rng.choice((0, 0, 0, 1, 100, (1 << 31) - 1, -1))
    low, high = (0, (1 << bits) - 1) if kind == "uint16" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return rng.choice((0, 0, 1, 5, 7, rng.randint(0, min(40, high)), low, high, rng.randint(low, high)))


def with_right_crcs(records: bytes) -> bytes:
    """Return the batches with correct CRCs. Stop at the first batch whose length does not lead to another one."""
    found, at = bytearray(records), 0
    while at + 61 <= len(found):
        (size,) = struct.unpack_from(">i", found, at + 8)
        end = at + 12 + size
        if size < 49 or end > len(found):
            break
        struct.pack_into(">I", found, at + 17, crc32c(bytes(found[at + 21 : end])))
        at = end
    return bytes(found)
