"""Raw batches and answers from a hostile broker: each call ends in a correct value or in one of the platform's errors.

If only the log is hostile, the loader, the evidence and a plain batch reader must find the same records.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import cramjam
import pyarrow as pa

from platform_assets.engines.columnar.columns import OldFormat, TimestampOutOfRange
from platform_assets.engines.columnar.task import Overtaken, read_piece
from platform_assets.engines.columnar.work import Piece
from platform_assets.errors import PlatformError
from platform_assets.kafka.batches import fetching, wire
from platform_assets.kafka.batches.fetching import Brokers, Throttled, fetched_partition, topic_id_text
from platform_assets.kafka.batches.observing import EpochBrokers, ObservingBrokers
from platform_assets.kafka.batches.positions import PositionBrokers
from platform_assets.kafka.batches.reading import Buffers
from platform_assets.kafka.batches.record_batches import Batches
from platform_assets.kafka.batches.unpacking import Damage, UnpackBuffer
from platform_assets.kafka.cluster import Cluster, TopicState
from platform_assets.kafka.evidence import gathering, search
from platform_assets.kafka.evidence.gathering import Evidence, gather_evidence
from platform_assets.kafka.evidence.search import BatchSearch
from platform_assets.kafka.settings import BatchLimits, ClientSettings
from platform_assets.model.digest import Digest, offsets_digest
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets_tests.fuzzing.hostile_broker import TOPIC, Clock, HostileBroker, Sockets, with_right_crcs
from platform_assets_tests.fuzzing.target import Case, Target, Wrong, check_message, damaged
from platform_assets_tests.support.made_batches import MadeLog
from platform_assets_tests.support.scripted_broker import TOPIC_ID, fetch_response

_ID: Final = topic_id_text(TOPIC_ID)
_LIMITS: Final = BatchLimits(bytes=1 << 22, records=1 << 14, headers=1 << 16)
_PATIENCE: Final = 2.0
_OURS: Final = (PlatformError, wire.Stopped, OldFormat, TimestampOutOfRange, Overtaken)
_TIMED: Final = (fetching, wire, gathering, search)


class FakeWire:
    """Modules that talk to brokers, patched with this fuzzer's clock and sockets."""

    def __init__(self) -> None:
        self.sockets = Sockets()

    def broker(self, rng: random.Random, log: MadeLog, **hostility: Any) -> HostileBroker:
        """Create the broker for one case, with a new clock."""
        clock = Clock()
        for module in _TIMED:
            module.time = clock  # type: ignore[attr-defined]
        made = HostileBroker(
            rng, clock, log.batches, log.last_offsets, lambda offset, count: _listed(log, offset, count), log.end, **hostility
        )  # fmt: skip
        self.sockets.broker = made
        return made

    def case(self, rng: random.Random) -> None:
        """Run a case of a random kind."""
        rng.choice(_KINDS)(self, rng)


def _listed(log: MadeLog, offset: int, count: int) -> list[tuple[int, int]]:
    return log.fetched(offset, count)[1] if offset < log.end else []


def _settings(**options: str) -> ClientSettings:
    return ClientSettings("127.0.0.1:9092", options, _LIMITS)


def _brokers(kind: type[Brokers], settings: ClientSettings) -> Any:
    return kind(settings, TOPIC, _ID, patience=_PATIENCE, stopped=lambda: False)


def _tried(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or the platform's error that it raised; other errors propagate."""
    try:
        return call()
    except _OURS as error:
        check_message(error)
        return error


def _evidence(clock: Clock, wanted: OffsetRange, *, compacted: bool) -> Evidence:
    return gather_evidence(
        _settings(), TOPIC, _ID, TopicRanges({0: wanted}), compacted=compacted, deadline=clock.now + 600, readers=1,
        fetch_bytes=1 << 16, patience=_PATIENCE,
    )  # fmt: skip


def _rows(wanted: OffsetRange) -> list[dict[str, Any]]:
    found: list[pa.RecordBatch] = []
    read_piece(_brokers(Brokers, _settings()), Piece(0, wanted), Buffers(1 << 16), UnpackBuffer(), found.append)
    for block in found:
        block.validate(full=True)
    return [row for block in found for row in block.cast(_UNNAMED).to_pylist()] if found else []


def _unnamed() -> pa.Schema:
    from platform_assets.engines.columnar.columns import SCHEMA

    return SCHEMA.set(3, SCHEMA.field(3).with_type(pa.timestamp("us", "UTC"))).set(
        3, pa.field("kafka_timestamp", pa.int64())
    )


_UNNAMED: Final = _unnamed()


def _log(rng: random.Random) -> MadeLog:
    return MadeLog.at_random(rng, rng.choice((1, 3, 10, 30)), rng.choice((0, 0, 5, 1 << 40)))


def _wanted(rng: random.Random, log: MadeLog) -> OffsetRange:
    first = log.first_offsets[0]
    start = rng.randint(first, log.end)
    return OffsetRange(start, rng.randint(start, log.end)) if rng.random() < 0.7 else OffsetRange(first, log.end)


# --- a hostile log ---------------------------------------------------------------------------------------------


def _hostile_log(on: FakeWire, rng: random.Random) -> None:
    """Answer correctly, but from a log with damaged batches: what is read must be correct or refused."""
    log = _log(rng)
    honest = rng.random() < 0.1
    if not honest:
        for at in range(len(log.batches)):
            if rng.random() < rng.choice((0.1, 0.5)):
                damage = damaged(rng, log.batches[at], log.batches)
                log.batches[at] = with_right_crcs(damage) if rng.random() < 0.85 else damage
    wanted, compacted = _wanted(rng, log), rng.random() < 0.5
    broker = on.broker(rng, log)
    broker.log_start = rng.choice((0, log.first_offsets[0]))
    evidence = _tried(lambda: _evidence(broker.clock, wanted, compacted=compacted))
    rows = _tried(lambda: _rows(wanted))
    if honest:
        expected = [row["kafka_offset"] for row in log.rows if wanted.start <= row["kafka_offset"] < wanted.end]
        if isinstance(rows, Exception) or [row["kafka_offset"] for row in rows] != expected:
            raise Wrong(f"an honest log: {rows!r}, not {expected}")
        if isinstance(evidence, Exception) or evidence.digest != _digest(expected):
            raise Wrong(f"an honest log: {evidence!r}, not {expected}")
        _compare_rows(rows, [row for row in log.rows if wanted.start <= row["kafka_offset"] < wanted.end])
        return
    if isinstance(rows, Exception):
        return
    offsets = [row["kafka_offset"] for row in rows]
    if offsets != sorted(set(offsets)) or any(not wanted.start <= each < wanted.end for each in offsets):
        raise Wrong(f"offsets of {wanted}: {offsets}")
    if not isinstance(evidence, Exception) and evidence.digest != _digest(offsets):
        raise Wrong(f"loaded: {offsets}; evidence: {evidence.by_partition[0]!r}")
    _compare_rows(rows, _plain_rows(log, {*offsets}))


def _digest(offsets: list[int]) -> Digest:
    import numpy as np

    return offsets_digest(0, np.array(offsets, np.int64))


def _compare_rows(rows: list[dict[str, Any]], expected: Iterable[dict[str, Any]]) -> None:
    """Raise Wrong if a row equals none of the candidates for its offset."""
    known = [_named(row) for row in expected]
    for row in map(_named, rows):
        if row not in known:
            there = [each for each in known if each["kafka_offset"] == row["kafka_offset"]]
            raise Wrong(f"values: loaded {row!r}, and the batch has {there!r}")


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("kafka_offset", "kafka_timestamp", "kafka_timestamp_type", "key", "value", "headers")
    return {name: row[name] for name in names}


def _plain_rows(log: MadeLog, offsets: set[int]) -> Iterator[dict[str, Any]]:
    """Yield the records that any batch has at these offsets, found by a minimal reader that checks nothing."""
    for at in range(len(log.batches)):
        yield from (row for row in _rows_from(b"".join(log.batches[at:])) if row["kafka_offset"] in offsets)


def _rows_from(whole: bytes) -> Iterator[dict[str, Any]]:
    """Yield the rows of the first batch in `whole` and of up to two batches after it."""
    at = 0
    for _ in range(3):
        if at + 61 > len(whole):
            return
        base, size = struct.unpack_from(">qi", whole, at)
        attributes, _, first, newest = struct.unpack_from(">hiqq", whole, at + 21)
        (count,) = struct.unpack_from(">i", whole, at + 57)
        if size < 49:
            return
        body = whole[at + 61 : at + 12 + size]
        at += 12 + size
        if attributes & 0x20 or not count:
            continue
        with suppress(KeyError, ValueError, zlib.error, cramjam.DecompressionError):
            yield from _records(
                _UNPACKERS[attributes & 7](body), count, base, first, newest if attributes & 8 else None
            )


def _gunzipped(body: bytes) -> bytes:
    return zlib.decompressobj(wbits=31).decompress(body)


def _unsnapped(body: bytes) -> bytes:
    if cramjam.snappy.decompress_raw_len(body) > _LIMITS.bytes:
        raise ValueError("too large")
    return bytes(cramjam.snappy.decompress_raw(body))


_UNPACKERS: Final[Mapping[int, Callable[[bytes], bytes]]] = {
    0: lambda body: body,
    1: _gunzipped,
    2: _unsnapped,
    3: lambda body: bytes(cramjam.lz4.decompress(body)),
    4: lambda body: bytes(cramjam.zstd.decompress(body)),
}


def _records(data: bytes, count: int, base: int, first: int, appended: int | None) -> Iterator[dict[str, Any]]:
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift > 63:
                raise IndexError

    def sized() -> bytes | None:
        nonlocal at
        size = varint()
        if size < 0:
            return None
        at += size
        return data[at - size : at]

    try:
        for _ in range(count):
            size = varint()
            if size < 1:
                return
            end = at + size
            at += 1
            later, delta = varint(), varint()
            key, value = sized(), sized()
            headers = [
                {"key": (sized() or b"").decode(errors="replace"), "value": sized()} for _ in range(max(varint(), 0))
            ]
            stamp = first + later if appended is None else appended
            yield {
                "kafka_offset": base + delta, "kafka_timestamp": ((stamp + (1 << 63)) % (1 << 64) - (1 << 63)) * 1000,
                "kafka_timestamp_type": int(appended is not None), "key": key, "value": value, "headers": headers or None,
            }  # fmt: skip
            at = end
    except IndexError:
        return


# --- hostile answers -------------------------------------------------------------------------------------------


def _hostility(rng: random.Random) -> dict[str, float]:
    kinds = {"damage": 0.3, "made_up": 0.3, "silence": 0.1, "odd_hosts": 0.2}
    return {name: rng.random() * most for name, most in kinds.items() if rng.random() < 0.5}


def _hostile_answers(on: FakeWire, rng: random.Random) -> None:
    """Replace answers with arbitrary ones."""
    log = _log(rng)
    wanted = _wanted(rng, log)
    broker = on.broker(rng, log, **_hostility(rng))
    broker.corpus = log.batches
    call = rng.randrange(8)
    settings = _settings()
    if call == 0:
        _tried(lambda: _evidence(broker.clock, wanted, compacted=rng.random() < 0.5))
    elif call == 1:
        _tried(lambda: _rows(wanted))
    elif call == 2:
        of = _brokers(Brokers, settings)
        _tried(lambda: (of.last_stable_offsets([0]), of.high_watermark(0), of.log_start(0)))
    elif call == 3:
        _tried(lambda: _brokers(EpochBrokers, settings).epoch_end(0, 5))
    elif call == 4:
        _tried(lambda: _brokers(ObservingBrokers, settings).open_transactions([0]))
    elif call == 5:
        observing = _brokers(ObservingBrokers, settings)
        _tried(lambda: observing.sizes([0]))
        _tried(lambda: observing.newest_timestamp(0, wanted.start))
    elif call == 6:
        _tried(lambda: _brokers(PositionBrokers, settings).commit("g", {0: wanted.end}))
    else:
        cluster = Cluster(None, settings, _PATIENCE, broker.clock.now + 600)
        looking = BatchSearch(cluster, TopicState(TOPIC, _ID, (0,)))
        _tried(lambda: looking.first_record_at(0, rng.choice((0, 1 << 40, -1)), wanted.start, wanted.end))
        _tried(lambda: looking.is_marker(0, wanted.start))


def _hostile_login(on: FakeWire, rng: random.Random) -> None:
    """Run the SASL exchange with a server that sends arbitrary answers."""
    mechanism = rng.choice(("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"))
    log = _log(rng)
    on.broker(rng, log, **_hostility(rng))
    settings = _settings(
        **{
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": "u",
            "sasl.password": "p",
        }
    )
    _tried(lambda: _brokers(Brokers, settings).log_start(0))


# --- bytes only ------------------------------------------------------------------------------------------------


def _fetch_answers(on: FakeWire, rng: random.Random) -> None:
    """Damage the answer to a fetch: the protocol reader must raise only errors that it documents."""
    log = _log(rng)
    records, aborted = log.fetched(log.first_offsets[0], rng.choice((1, 3)))
    answer = fetch_response(rng.choice((0, 0, 1, 6)), log.end, 0, records, aborted, throttle=rng.choice((0, 7)))
    frame = damaged(rng, b"\0" + answer.encode(version=13), log.batches)
    try:
        found = fetched_partition(memoryview(frame), TOPIC_ID, 0)
    except (ValueError, IndexError, struct.error, Throttled):
        return
    _scanned(bytes(found.records), rng)


def _records_alone(on: FakeWire, rng: random.Random) -> None:
    """Read arbitrary bytes as if they were the records of a fetch."""
    log = _log(rng)
    records = damaged(rng, b"".join(log.batches[:4]), log.batches)
    _scanned(with_right_crcs(records) if rng.random() < 0.7 else records, rng)


def _scanned(records: bytes, rng: random.Random) -> None:
    try:
        batches = Batches.scan(memoryview(records), rng.choice((1 << 63, rng.randint(0, 200))), _LIMITS)
        batches.verify()
        for batch in batches:
            if batch.control:
                batch.control_types()
            else:
                batch.offsets()
            if not batches.old_format:
                list(batch.timestamps())
    except Damage as error:
        check_message(error)


_KINDS: Final[tuple[Callable[[FakeWire, random.Random], None], ...]] = (
    _hostile_log, _hostile_log, _hostile_log, _hostile_answers, _hostile_answers, _hostile_answers, _hostile_login,
    _fetch_answers, _records_alone,
)  # fmt: skip


@contextmanager
def _opened(_: Path) -> Iterator[Case]:
    with faked() as on:
        yield on.case


@contextmanager
def faked() -> Iterator[FakeWire]:
    """Use only this fuzzer's sockets and clock within the block."""
    on = FakeWire()
    kept = {module: vars(module)["time"] for module in _TIMED}
    real = vars(wire)["socket"]
    vars(wire)["socket"] = on.sockets
    try:
        yield on
    finally:
        vars(wire)["socket"] = real
        for module, time in kept.items():
            module.time = time  # type: ignore[attr-defined]


TARGET: Final = Target(_opened, cpu_seconds=8, megabytes=600)
