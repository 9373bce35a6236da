"""Brokers that answer according to a script. They show behavior that real brokers show only rarely, or never on
request."""

from __future__ import annotations

import contextlib
import socketserver
import struct
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
from kafka.protocol.consumer.offsets import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse
from kafka.record.default_records import DefaultRecordBatchBuilder

TOPIC_ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
OUT_OF_RANGE, CORRUPT = 1, 2


def batch(base: int, count: int) -> bytes:
    """Return a batch of `count` records, beginning at offset `base`."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for delta in range(count):
        builder.append(delta, timestamp=0, key=None, value=b"value", headers=[])
    return struct.pack(">q", base) + bytes(builder.build())[8:]


@dataclass
class Script:
    """Content and answers of a scripted broker. The first fetches get the errors in `errors`, one for each fetch."""

    batches: list[tuple[int, int, bytes]] = field(
        default_factory=lambda: [(n, n + 9, batch(n, 10)) for n in (0, 10, 20)]
    )
    stable: int = 30
    listed_stable: int = 30
    high: int = 30
    log_start: int = 0
    errors: list[int] = field(default_factory=list)
    throttled: list[int] = field(default_factory=list)
    """Throttle times in milliseconds for the first fetches. These fetches get no data."""
    empty: list[int] = field(default_factory=list)
    """Throttle times in milliseconds for the next fetches. These fetches get neither records nor errors."""
    empty_from: int = 1 << 62
    """Fetches at this offset or at a later offset also get neither records nor errors."""
    unstable: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Batches after the last stable offset, which belong to open transactions."""
    corrupt: range = range(0)
    """Offsets for which the broker itself reports a corrupt batch."""
    aborted: list[tuple[int, int]] = field(default_factory=list)
    """Producer ids and first offsets of aborted transactions. The answer to each fetch lists all of these transactions.
    """
    listed_start: int | None = None
    """The log start that ListOffsets gives if it is not `log_start`."""
    local_start: int = 1 << 62
    """The first offset on the broker's own disks. Earlier offsets are in tiered storage."""
    fetch_versions: tuple[int, int] = (4, 18)
    list_versions: tuple[int, int] = (1, 10)
    leader: tuple[str, int] | None = None
    near: tuple[str, str, int] | None = None
    """Rack, host and port of a replica that is not the leader."""
    silent: bool = False
    fetched: list[tuple[int, int]] = field(default_factory=list)
    """`(offset, leader epoch)` of each received fetch."""
    probed: list[int] = field(default_factory=list)
    """The offset of each fetch with read_uncommitted."""
    racks: list[str] = field(default_factory=list)
    """The rack that was given in each fetch."""
    epoch: int = 5


class ScriptedBroker(socketserver.ThreadingTCPServer):
    """A broker on loopback, with one topic that has one partition. `failures` are errors in the broker's own code."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, script: Script) -> None:
        self.script = script
        self.failures: list[BaseException | None] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address: tuple[str, int] = ("127.0.0.1", self.socket.getsockname()[1])

    def handle_error(self, *_: Any) -> None:
        if not isinstance(error := sys.exc_info()[1], OSError):  # clients may disconnect at any time
            self.failures.append(error)


class _Handler(socketserver.StreamRequestHandler):
    server: ScriptedBroker

    def handle(self) -> None:
        script = self.server.script
        while head := self.rfile.read(4):
            data = self.rfile.read(struct.unpack(">i", head)[0])
            key, version, correlation = struct.unpack_from(">hhi", data)
            name: Any = {1: FetchRequest, 2: ListOffsetsRequest, 3: MetadataRequest, 18: ApiVersionsRequest}[key]
            request = name.decode(data, version=version, header=True)
            if script.silent and key == 1:
                continue
            answer = getattr(self, f"_{key}")(script, request)
            answer.API_VERSION = version
            body = answer.encode(version=version)
            tags = b"" if key == 18 else b"\x00"
            self.wfile.write(struct.pack(">ii", 4 + len(tags) + len(body), correlation) + tags + body)

    def _18(self, script: Script, _: Any) -> Any:
        ranges = {1: script.fetch_versions, 2: script.list_versions, 3: (0, 13), 18: (0, 4)}
        keys = [ApiVersionsResponse.ApiVersion(api_key=k, min_version=a, max_version=b) for k, (a, b) in ranges.items()]
        return ApiVersionsResponse(error_code=0, api_keys=keys, throttle_time_ms=0)

    def _3(self, script: Script, request: Any) -> Any:
        of_topic = MetadataResponse.MetadataResponseTopic
        host, port = script.leader or self.server.address
        partition = of_topic.MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=7, leader_epoch=script.epoch, replica_nodes=[7], isr_nodes=[7],
            offline_replicas=[],
        )  # fmt: skip
        topic = of_topic(
            error_code=0, name=request.topics[0].name, topic_id=TOPIC_ID, is_internal=False, partitions=[partition]
        )
        node = MetadataResponse.MetadataResponseBroker(node_id=7, host=host, port=port, rack=None)
        nodes = [node]
        if script.near is not None:
            rack, host, port = script.near
            nodes.append(MetadataResponse.MetadataResponseBroker(node_id=8, host=host, port=port, rack=rack))
        return MetadataResponse(throttle_time_ms=0, brokers=nodes, cluster_id="c", controller_id=7, topics=[topic])

    def _2(self, script: Script, request: Any) -> Any:
        of_topic = ListOffsetsResponse.ListOffsetsTopicResponse
        asked = request.topics[0].partitions[0]
        latest = script.listed_stable if request.isolation_level == 1 else script.high
        start = script.log_start if script.listed_start is None else script.listed_start
        offset = {-2: start, -4: script.local_start}.get(asked.timestamp, latest)
        found = of_topic.ListOffsetsPartitionResponse(
            partition_index=0, error_code=0, timestamp=-1, offset=offset, leader_epoch=script.epoch
        )
        return ListOffsetsResponse(
            throttle_time_ms=0, topics=[of_topic(name=request.topics[0].name, partitions=[found])]
        )

    def _1(self, script: Script, request: Any) -> Any:
        asked = request.topics[0].partitions[0]
        assert request.topics[0].topic_id == TOPIC_ID
        if request.isolation_level == 0:
            script.probed.append(asked.fetch_offset)
            later = [] if asked.fetch_offset >= script.empty_from else [*script.batches, *script.unstable]
            records = next((b for _, last, b in later if last >= asked.fetch_offset), b"")
            return fetch_response(0, script.stable, script.log_start, records, [], high=script.high)
        script.fetched.append((asked.fetch_offset, asked.current_leader_epoch))
        script.racks.append(request.rack_id)
        if script.near is not None and request.rack_id == script.near[0]:
            # Like Kafka's leader: no records, and the replica to ask.
            return fetch_response(0, script.stable, script.log_start, b"", [], replica=8)
        if script.throttled:
            return FetchResponse(throttle_time_ms=script.throttled.pop(0), error_code=0, session_id=0, responses=[])
        error = script.errors.pop(0) if script.errors else 0
        if asked.fetch_offset in script.corrupt:
            error = CORRUPT
        if asked.fetch_offset < script.log_start:
            error = OUT_OF_RANGE
        if (script.empty or asked.fetch_offset >= script.empty_from) and not error:
            throttle = script.empty.pop(0) if script.empty else 0
            return fetch_response(0, script.stable, script.log_start, b"", [], throttle=throttle)
        records = next((b for _, last, b in script.batches if last >= asked.fetch_offset), b"")
        aborted = [] if error else script.aborted
        return fetch_response(error, script.stable, script.log_start, b"" if error else records, aborted)


def fetch_response(
    error: int,
    stable: int,
    log_start: int,
    records: bytes,
    aborted: list[tuple[int, int]],
    replica: int = -1,
    throttle: int = 0,
    high: int | None = None,
) -> Any:
    """Return the answer to a fetch, encoded by kafka-python."""
    of_topic = FetchResponse.FetchableTopicResponse
    data = of_topic.PartitionData(
        partition_index=0,
        error_code=error,
        high_watermark=stable if high is None else high,
        last_stable_offset=stable,
        log_start_offset=log_start,
        aborted_transactions=[
            of_topic.PartitionData.AbortedTransaction(producer_id=p, first_offset=f) for p, f in aborted
        ],
        preferred_read_replica=replica,
        records=records,
    )
    topics = [of_topic(topic_id=TOPIC_ID, partitions=[data])]
    return FetchResponse(throttle_time_ms=throttle, error_code=0, session_id=0, responses=topics)


Start = Callable[[Script], ScriptedBroker]


@contextlib.contextmanager
def scripted_brokers() -> Iterator[Start]:
    """Provide a function that starts a broker with a script. All brokers end with the block. The block fails if any
    broker has failed."""
    brokers: list[ScriptedBroker] = []
    with contextlib.ExitStack() as stack:

        def started(script: Script) -> ScriptedBroker:
            broker = stack.enter_context(ScriptedBroker(script))
            brokers.append(broker)
            thread = threading.Thread(target=broker.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(broker.shutdown)
            return broker

        yield started
    assert not [failure for broker in brokers for failure in broker.failures]
