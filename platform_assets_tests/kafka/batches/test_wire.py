"""Requests for evidence: scripted brokers give correct answers, wrong answers and errors."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from platform_assets.engines.columnar.task import read_piece
from platform_assets.engines.columnar.work import Piece
from platform_assets.errors import (
    BatchTooLargeError,
    BrokerRefusedError,
    BrokerUnreachableError,
    ConfigurationError,
    DamagedBatchError,
    EmptyAnswersError,
    Retryable,
    TruncationError,
    UnstableEndError,
)
from platform_assets.kafka.batches.fetching import (
    Brokers,
    Throttled,
    Transient,
    fetched_partition,
    topic_id_text,
    topic_uuid,
)
from platform_assets.kafka.batches.observing import ObservingBrokers
from platform_assets.kafka.batches.reading import Buffers
from platform_assets.kafka.batches.unpacking import UnpackBuffer
from platform_assets.kafka.batches.wire import Security, addresses
from platform_assets.kafka.evidence.gathering import Evidence, gather_evidence
from platform_assets.kafka.settings import BatchLimits, ClientSettings
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets_tests.support.record_batches import batch as thin_batch
from platform_assets_tests.support.scripted_broker import (
    OUT_OF_RANGE,
    TOPIC_ID,
    Script,
    ScriptedBroker,
    Start,
    batch,
    fetch_response,
    scripted_brokers,
)

NOT_LEADER, FENCED, TOPIC_AUTHORIZATION, UNKNOWN_TOPIC_ID, CORRUPT, SERVER_ERROR = 6, 74, 29, 100, 2, -1


@pytest.fixture
def start() -> Iterator[Start]:
    with scripted_brokers() as started:
        yield started


def asked(
    broker: ScriptedBroker, end: int = 30, rack: str = "", limits: BatchLimits | None = None, **options: Any
) -> Evidence:
    settings = ClientSettings(
        "{}:{}".format(*broker.address), {"client.rack": rack} if rack else {}, limits or BatchLimits()
    )
    arguments = {"compacted": False, "deadline": time.monotonic() + 20, "patience": 1.0, **options}
    return gather_evidence(settings, "t", topic_id_text(TOPIC_ID), TopicRanges({0: OffsetRange(0, end)}), **arguments)


def test_scripted_broker_is_read(start: Start) -> None:
    script = Script()
    evidence = asked(start(script), 25)
    assert evidence.complete
    assert evidence.records == 25
    assert [offset for offset, _ in script.fetched] == [0, 10, 20]


@pytest.mark.parametrize("code", [NOT_LEADER, FENCED, SERVER_ERROR, UNKNOWN_TOPIC_ID])
def test_passing_error_is_tried_again(start: Start, code: int) -> None:
    script = Script(errors=[0, code, code])
    assert asked(start(script), patience=5.0).records == 30
    assert not script.errors


@pytest.mark.parametrize("code", [NOT_LEADER, UNKNOWN_TOPIC_ID])
def test_lasting_error_is_given_up_in_time(start: Start, code: int) -> None:
    begun = time.monotonic()
    with pytest.raises(BrokerUnreachableError, match="reading topic 't' partition 0"):
        asked(start(Script(errors=[code] * 1000)))
    assert time.monotonic() - begun < 5


def test_new_leader_is_found(start: Start) -> None:
    moved, old = start(Script(epoch=6)), Script(errors=[0, NOT_LEADER])
    first = start(old)
    watch = threading.Thread(target=lambda: _when(lambda: not old.errors, lambda: _lead(old, moved)))
    watch.start()
    assert asked(first, patience=10.0).records == 30
    watch.join()
    assert moved.script.fetched[0] == (10, 6)


def _when(condition: Callable[[], bool], then: Callable[[], None]) -> None:
    while not condition():
        time.sleep(0.001)
    then()


def _lead(old: Script, new: ScriptedBroker) -> None:
    old.leader, old.epoch = new.address, 6
    old.errors = [NOT_LEADER] * 1000


def test_refusal_is_final(start: Start) -> None:
    with pytest.raises(BrokerRefusedError, match="TopicAuthorizationFailedError"):
        asked(start(Script(errors=[TOPIC_AUTHORIZATION])))


def test_broker_that_cannot_fetch_by_topic_id_is_refused(start: Start) -> None:
    with pytest.raises(BrokerRefusedError, match=r"Kafka 3\.1 or later"):
        asked(start(Script(fetch_versions=(4, 12))))


def test_damage_on_the_way_names_topic_partition_and_offset(start: Start) -> None:
    script = Script()
    damaged = bytearray(script.batches[1][2])
    damaged[-2] ^= 4
    script.batches[1] = (10, 19, bytes(damaged))
    with pytest.raises(DamagedBatchError) as damage:
        asked(start(script))
    assert (damage.value.topic, damage.value.partition, damage.value.offset) == ("t", 0, 10)


@pytest.mark.parametrize("together", [True, False])
def test_the_rest_is_read_without_a_damaged_batch(start: Start, together: bool) -> None:
    script = Script()
    damaged = bytearray(script.batches[1][2])
    damaged[-2] ^= 4
    script.batches[1] = (10, 19, bytes(damaged) + (script.batches[2][2] if together else b""))
    if together:
        script.batches[0] = (0, 9, script.batches[0][2] + script.batches[1][2])
    found = asked(start(script), 30, without={0: [OffsetRange(8, 12), OffsetRange(12, 20), OffsetRange(29, 40)]})
    assert found.complete
    assert found.by_partition[0].unexplained.listed == (OffsetRange(8, 20), OffsetRange(29, 30))
    assert found.by_partition[0].records.listed == (OffsetRange(0, 8), OffsetRange(20, 29))
    with pytest.raises(DamagedBatchError):
        asked(start(script), 30, without={0: [OffsetRange(8, 19)]})
    assert asked(start(script), 30, without={0: [OffsetRange(0, 30)]}).holes == {"unexplained": 30}


@pytest.mark.parametrize("end", [7, 10])
def test_damage_behind_the_end_is_no_matter(start: Start, end: int) -> None:
    """A fetch for a small range may return data beyond the range's end."""
    damaged = bytearray(batch(10, 10))
    damaged[-2] ^= 4
    script = Script(batches=[(0, 29, batch(0, 10) + bytes(damaged) + batch(20, 10))])
    found = asked(start(script), end)
    assert (found.complete, found.records, found.unexplained) == (True, end, ())
    assert len(script.fetched) == 1
    with pytest.raises(DamagedBatchError):
        asked(start(script), 11)


@pytest.mark.parametrize("first", [0, 10])
def test_a_hole_up_to_the_end_is_found_with_the_batch_behind_it(start: Start, first: int) -> None:
    held = batch(20, 10) if first else batch(0, 10) + batch(20, 10)
    script = Script(batches=[(first, 29, held)])
    found = asked(start(script), 15).by_partition[0]
    assert found.unexplained.listed == (OffsetRange(10 - first, 15),)
    assert found.records.offsets == 10 - first
    assert len(script.fetched) == 1


def test_damage_that_the_broker_finds_itself(start: Start) -> None:
    with pytest.raises(DamagedBatchError, match="the broker itself"):
        asked(start(Script(errors=[0, CORRUPT])))


def test_a_batch_beyond_a_limit_is_named_with_its_offsets_and_the_setting(start: Start) -> None:
    """Gathering evidence decompresses batches in which compaction has left gaps."""
    thinned = thin_batch(10, list(range(0, 10, 2)), span=10)
    broker = start(Script(batches=[(0, 9, batch(0, 10)), (10, 19, thinned), (20, 29, batch(20, 10))]))
    with pytest.raises(
        BatchTooLargeError, match=r"offsets \[10, 20\) has more than 4 records.* raise KAFKA_BATCH_MAX_RECORDS"
    ) as large:
        asked(broker, limits=BatchLimits(records=4))
    assert "accept-loss" not in str(large.value), "of a window that is loaded, nothing is lost"
    assert asked(broker, limits=BatchLimits(records=5), compacted=True).records == 25
    with pytest.raises(BatchTooLargeError, match=r"offsets \[0, 10\) has more than 4 records"):
        loaded(broker, limits=BatchLimits(records=4))


def test_batch_that_the_broker_cuts_off_is_damage(start: Start) -> None:
    script = Script()
    script.batches[1] = (10, 19, script.batches[1][2][:-1])
    with pytest.raises(DamagedBatchError, match="only the beginning"):
        asked(start(script))


@pytest.mark.parametrize("compacted", [True, False])
def test_empty_answers_below_a_stable_end_are_asked_again(start: Start, compacted: bool) -> None:
    """A broker returns such empty answers when a read from tiered storage takes too long."""
    script = Script(empty=[0] * 5)
    found = asked(start(script), patience=20.0, compacted=compacted)
    assert (found.records, dict(found.holes)) == (30, {})
    assert script.fetched[:6] == [(0, 5)] * 6


@pytest.mark.parametrize("compacted", [True, False])
def test_answers_that_stay_empty_are_no_holes_and_name_the_offset(start: Start, compacted: bool) -> None:
    script = Script(empty_from=10)
    broker = start(script)
    with pytest.raises(
        EmptyAnswersError, match=r"topic 't' partition 0: for 1\.5 s .* no records from offset 10"
    ) as empty:
        asked(broker, patience=1.5, compacted=compacted)
    assert isinstance(empty.value, Retryable)
    assert "although offsets up to 30 are stable" in str(empty.value)
    # The remedy in the message: run again once the storage answers.
    script.empty_from = 1 << 62
    assert asked(broker, compacted=compacted).records == 30


def test_a_compacted_tail_without_a_batch_after_it_is_shown_by_the_next_record(start: Start) -> None:
    script = Script(batches=[(0, 9, batch(0, 10))])
    broker = start(script)
    with pytest.raises(EmptyAnswersError, match="until another record is written to the partition"):
        asked(broker, patience=1.5, compacted=True)
    script.batches.append((30, 30, batch(30, 1)))
    script.stable = 31
    assert dict(asked(broker, compacted=True).holes) == {"compacted_away": 20}


def test_a_compacted_tail_without_a_batch_after_it_is_shown_by_the_leaders_own_log(start: Start) -> None:
    script = Script(batches=[(0, 9, batch(0, 10))], local_start=10)
    broker = start(script)
    found = asked(broker, compacted=True)
    assert (found.records, dict(found.holes)) == (10, {"compacted_away": 20})
    assert script.probed == [10, 10, 10]
    assert loaded(broker) == [*range(10)]


@pytest.mark.parametrize(
    "doubt",
    [{"local_start": 11}, {"list_versions": (1, 7)}, {"empty": [10] * 1000}, {"high": 29}],
    ids=lambda doubt: next(iter(doubt)),
)
def test_an_empty_answer_that_may_not_be_of_the_leaders_own_log_shows_no_gap(
    start: Start, doubt: dict[str, Any]
) -> None:
    script = Script(**{"batches": [(0, 9, batch(0, 10))], "local_start": 10, **doubt})
    with pytest.raises(EmptyAnswersError):
        asked(start(script), patience=1.5, compacted=True)


def test_a_few_empty_answers_of_a_leaders_own_log_are_no_gap(start: Start) -> None:
    script = Script(empty=[0, 0], local_start=0)
    assert asked(start(script), patience=20.0).records == 30


def test_a_gap_up_to_the_last_stable_offset_is_shown_by_the_open_transaction_after_it(start: Start) -> None:
    """A read_committed fetch stops before the batch that reveals the gap."""
    script = Script(batches=[(0, 9, batch(0, 10))], unstable=[(30, 39, batch(30, 10))])
    found = asked(start(script), compacted=True).by_partition[0]
    assert found.compacted_away.listed == (OffsetRange(10, 30),)
    assert script.probed == [10]


def test_a_batch_before_the_end_that_only_read_uncommitted_shows_is_no_hole(start: Start) -> None:
    script = Script(empty=[0, 0])
    assert asked(start(script), patience=20.0).records == 30
    assert script.probed == [0, 0]


def test_an_empty_answer_with_a_throttle_time_is_left_alone_for_that_long(start: Start) -> None:
    script = Script(empty=[700, 700])
    began = time.monotonic()
    assert asked(start(script), patience=0.5).records == 30
    assert time.monotonic() - began >= 1.4


def test_a_log_start_that_only_one_request_gives_is_no_hole(start: Start) -> None:
    """For example, a new leader's log may start before the previous leader's log."""
    script = Script(errors=[OUT_OF_RANGE], listed_start=20)
    found = asked(start(script), patience=20.0)
    assert (found.records, dict(found.holes)) == (30, {})


def test_an_offset_that_stays_out_of_range_within_the_log_is_given_up_in_time(start: Start) -> None:
    with pytest.raises(BrokerUnreachableError, match="offset 0 is out of range, although the log goes from 0 to 30"):
        asked(start(Script(errors=[OUT_OF_RANGE] * 1000)), patience=0.3)


def test_what_was_dropped_before_the_log_start_is_named(start: Start) -> None:
    script = Script(log_start=15, batches=[(10, 19, batch(10, 10)), (20, 29, batch(20, 10))])
    found = asked(start(script)).by_partition[0]
    assert found.below_log_start.listed == (OffsetRange(0, 15),)
    assert found.records.offsets == 15
    emptied = asked(start(Script(log_start=30, batches=[]))).by_partition[0]
    assert emptied.below_log_start.listed == (OffsetRange(0, 30),)


def test_last_stable_offset_that_goes_back_is_named(start: Start) -> None:
    with pytest.raises(UnstableEndError, match="only up to offset 20"):
        asked(start(Script(stable=20)))


def test_end_past_the_listed_last_stable_offset_is_refused_before_anything_is_read(start: Start) -> None:
    script = Script(listed_stable=20)
    with pytest.raises(UnstableEndError, match="only up to offset 20"):
        asked(start(script))
    shorter = Script(listed_stable=20, high=25)
    with pytest.raises(TruncationError, match="ends at offset 25"):
        asked(start(shorter))
    assert not script.fetched + shorter.fetched


def test_silent_broker_is_given_up_in_time(start: Start) -> None:
    begun = time.monotonic()
    with pytest.raises(BrokerUnreachableError, match="did not answer"):
        asked(start(Script(silent=True)))
    assert time.monotonic() - begun < 5


def test_deadline_ends_the_wait_for_a_silent_broker(start: Start) -> None:
    begun = time.monotonic()
    evidence = asked(start(Script(silent=True)), patience=30.0, deadline=begun + 0.5)
    assert time.monotonic() - begun < 3
    assert (evidence.done, evidence.complete) == (0, False)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x46" * 4, b""])
def test_what_is_no_kafka_broker_is_given_up_in_time(answer: bytes) -> None:
    class Stranger(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.request.recv(100)
            self.wfile.write(answer)

    with socketserver.TCPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        settings = ClientSettings(f"127.0.0.1:{server.socket.getsockname()[1]}")
        ranges = TopicRanges({0: OffsetRange(0, 1)})
        begun = time.monotonic()
        with pytest.raises(BrokerUnreachableError):
            gather_evidence(
                settings, "t", topic_id_text(TOPIC_ID), ranges,
                compacted=False, deadline=begun + 20, patience=0.5,
            )  # fmt: skip
        assert time.monotonic() - begun < 5
        server.shutdown()
        thread.join()


def test_second_bootstrap_server_serves_where_the_first_is_down(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    broker = start(Script())
    settings = ClientSettings(f"127.0.0.1:{closed}, 127.0.0.1:{broker.address[1]}")
    ranges = TopicRanges({0: OffsetRange(0, 30)})
    found = gather_evidence(
        settings, "t", topic_id_text(TOPIC_ID), ranges, compacted=False, deadline=time.monotonic() + 20, patience=2.0
    )
    assert found.records == 30


def test_a_quota_is_waited_out_and_its_empty_answers_are_no_missing_offsets(start: Start) -> None:
    """A throttling broker answers immediately, without data and with the time to wait (KIP-219), however long that time
    is."""
    script = Script(throttled=[300, 300, 300, 300, 300])
    began = time.monotonic()
    found = asked(start(script), patience=0.5)
    assert (found.records, found.unexplained) == (30, ())
    assert time.monotonic() - began >= 1.5
    assert script.fetched[:6] == [(0, 5)] * 6


def test_the_deadline_ends_the_wait_for_a_quota(start: Start) -> None:
    broker = start(Script(throttled=[60_000]))
    began = time.monotonic()
    found = asked(broker, deadline=began + 0.5)
    assert (found.done, found.complete) == (0, False)
    assert time.monotonic() - began < 20


def loaded(broker: ScriptedBroker, patience: float = 1.0, limits: BatchLimits | None = None) -> list[int]:
    """Return the offsets that the columnar loader reads from this broker, whose log has 30 offsets."""
    settings = ClientSettings("{}:{}".format(*broker.address), {}, limits or BatchLimits())
    brokers = Brokers(settings, "t", topic_id_text(TOPIC_ID), patience=patience, stopped=lambda: False)
    rows: list[pa.RecordBatch] = []
    try:
        read_piece(brokers, Piece(0, OffsetRange(0, 30)), Buffers(1 << 20), UnpackBuffer(), rows.append)
    finally:
        brokers.close()
    return [offset for block in rows for offset in block.column("kafka_offset").to_pylist()]


def test_a_load_takes_no_empty_answer_for_the_end_of_its_range(start: Start) -> None:
    assert loaded(start(Script(empty=[0] * 5)), patience=20.0) == [*range(30)]
    with pytest.raises(EmptyAnswersError, match="no records from offset 10"):
        loaded(start(Script(empty_from=10)), patience=1.5)


def test_an_empty_answer_is_no_age_of_a_record(start: Start) -> None:
    broker = start(Script(empty_from=30, unstable=[(30, 39, batch(30, 10))], high=40))
    settings = ClientSettings("{}:{}".format(*broker.address))
    brokers = ObservingBrokers(settings, "t", topic_id_text(TOPIC_ID), patience=0.2, stopped=lambda: False)
    try:
        assert brokers.newest_timestamp(0, 40) is None, "nothing is written there yet"
        with pytest.raises(EmptyAnswersError, match="no records from offset 30"):
            brokers.newest_timestamp(0, 30)
    finally:
        brokers.close()


# --- racks ---


def near_by(start: Start, near: Script) -> tuple[Script, ScriptedBroker]:
    """Return the script of a leader in another rack, and the leader itself; `near` is the script of the replica in rack
    `a`."""
    replica = start(near)
    leader = Script(near=("a", *replica.address))
    return leader, start(leader)


def test_a_replica_of_the_own_rack_is_read_where_the_leader_names_one(start: Start) -> None:
    near = Script()
    leader, broker = near_by(start, near)
    assert asked(broker, rack="a").records == 30
    assert [offset for offset, _ in near.fetched] == [0, 10, 20]
    assert leader.fetched == [(0, 5)]
    assert set(leader.racks) == {"a"}


@pytest.mark.parametrize(
    "near",
    [
        Script(errors=[0, OUT_OF_RANGE]),
        Script(errors=[0, NOT_LEADER]),
        Script(stable=10, batches=[(0, 9, batch(0, 10))]),
    ],
    ids=["does not have this offset", "fails", "is behind"],
)
def test_the_leader_is_read_where_a_replica_fails(start: Start, near: Script) -> None:
    leader, broker = near_by(start, near)
    found = asked(broker, rack="a", patience=5.0)
    assert (found.records, found.unexplained) == (30, ())
    assert leader.fetched[-1][0] == 20
    assert leader.racks[-1] == "", "the leader names the replica again to clients in its rack"


def test_without_a_rack_the_leader_is_read(start: Start) -> None:
    near = Script()
    leader, broker = near_by(start, near)
    assert asked(broker).records == 30
    assert not near.fetched
    assert set(leader.racks) == {""}


# --- bytes and settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("records", [b"", b"x" * 100, b"y" * 20_000])
@pytest.mark.parametrize("aborted", [[], [(4711, 12), (5, 1 << 40)]])
def test_fetch_answer_reads_as_kafka_python_writes_it(records: bytes, aborted: list[tuple[int, int]]) -> None:
    response = fetch_response(6, 77, 11, records, aborted, replica=3)
    frame = memoryview(b"\x00" + response.encode(version=13))
    found = fetched_partition(frame, TOPIC_ID, 0)
    assert (found.error, found.high_watermark, found.last_stable, found.log_start) == (6, 77, 77, 11)
    assert list(found.aborted) == aborted
    assert found.replica == 3
    assert bytes(found.records) == records


def test_fetch_answer_that_is_cut_off_or_about_another_partition_is_refused() -> None:
    frame = memoryview(b"\x00" + fetch_response(0, 77, 11, b"x" * 100, []).encode(version=13))
    for length in range(len(frame) - 3):
        with pytest.raises((ValueError, IndexError, struct.error)):
            fetched_partition(frame[:length], TOPIC_ID, 0)
    with pytest.raises(ValueError, match="another partition"):
        fetched_partition(frame, TOPIC_ID, 1)
    with pytest.raises(ValueError, match="another topic"):
        fetched_partition(frame, uuid.UUID(int=1), 0)


def test_topic_id_reads_as_kafka_prints_it() -> None:
    assert topic_uuid(topic_id_text(TOPIC_ID)) == TOPIC_ID
    for wrong in ("", "abc", "§" * 22, "x" * 40):
        with pytest.raises(ConfigurationError):
            topic_uuid(wrong)


def test_addresses() -> None:
    assert addresses("a:1, b ,[::1]:3,[fe80::1]") == [("a", 1), ("b", 9092), ("::1", 3), ("fe80::1", 9092)]
    for wrong in ("", ",", "a:x", "a:70000", ":1", "a:"):
        with pytest.raises(ConfigurationError):
            addresses(wrong)


@pytest.mark.parametrize(
    "options",
    [{"ssl.ca.location": "/secret/nowhere.pem"}, {"ssl.certificate.location": "/secret/nowhere.pem"}],
)
def test_unusable_tls_files_are_named_by_their_setting_alone(options: Mapping[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="KAFKA_SSL") as refusal:
        Security(ClientSettings("a:1", {"security.protocol": "SSL", **options}))
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("asked", [Throttled(2**31 / 1000), Transient("nothing yet", None, 2**31 / 1000)])
def test_a_broker_that_asks_for_a_long_wait_is_asked_again_within_a_minute(
    asked: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(Brokers, "_pause", lambda _, seconds: pauses.append(seconds))
    settings = ClientSettings("127.0.0.1:1")
    brokers = Brokers(settings, "t", topic_id_text(TOPIC_ID), patience=60, stopped=lambda: False)
    answers = iter([asked, asked])

    def attempt() -> str:
        for error in answers:
            raise error
        return "answered"

    assert brokers.persist("waiting", attempt) == "answered"
    assert pauses == [60.0, 60.0]
