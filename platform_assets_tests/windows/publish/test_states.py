"""Publishing to a log in memory: loads begun in another form, and what the evidence says about forged or lost records."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from platform_assets.checks import published
from platform_assets.checks.published import Evidence, gather
from platform_assets.errors import (
    ConfigurationError,
    PublishedRowsLostError,
    PublishingInterruptedError,
    PublishingProgressLostError,
    SchemaChangeError,
    UnpublishableRowError,
    UnpublishableTombstoneError,
)
from platform_assets.kafka.publisher import Committed
from platform_assets.lake import holdings
from platform_assets.ledger import unloaded
from platform_assets.ledger.entries import EXPIRED
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.publishing import Part
from platform_assets.windows.publish import loads, publishing
from platform_assets.windows.publish.encoding import Encoder
from platform_assets.windows.publish.progress import Progress
from platform_assets_tests.support.decoded_topic import DecodedTopic, order
from platform_assets_tests.support.published import with_columns
from platform_assets_tests.support.topic_in_memory import RAW, Log, Message, Offline, Stopped, publisher
from testbed import samples


def begun(tmp_path: Path) -> tuple[DecodedTopic, Log]:
    """Return a topic of ten rows, four of which are published."""
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.load([order(n) for n in range(10)])
    made.decode()
    log = Log(left=1)
    with pytest.raises(Stopped):
        publisher(made, log).run()
    log.left = -1
    return made, log


def test_a_begun_load_is_finished_only_in_the_form_in_which_it_was_begun(tmp_path: Path) -> None:
    made, log = begun(tmp_path)
    with pytest.raises(
        ConfigurationError, match=r"4 of 10 records, and cannot be finished: the declaration.*new topic"
    ):
        publisher(made, log, value=Part("json", ("id",))).run()
    assert len(log.values) == 4
    publisher(made, log, transaction_rows=3).run()
    assert [len(each) for each in log.transactions] == [4, 3, 3]
    assert len(set(log.values)) == 10
    # A declaration that changes between loads is no reason to refuse.
    assert publisher(made, log, value=Part("json", ("id",))).run().records == 0


def declared(schema: str, key: str | None = None) -> DecodeDeclaration:
    spec = None if key is None else FormatSpec("json", {"schema": key})
    return DecodeDeclaration(FormatSpec("json", {"schema": schema}), key=spec, warn_share=1.0, fail_share=1.0)


def test_a_column_that_was_added_since_is_null_in_the_published_load(tmp_path: Path) -> None:
    made, log = DecodedTopic(tmp_path / "lake", "orders"), Log()
    made.load([order(1), order(2)])
    made.decode()
    publisher(made, log).run()
    made.declared = declared("id BIGINT NOT NULL, amount DECIMAL(12, 2), x BIGINT")
    made.decode()
    assert publisher(made, log).run().corrections == 0
    assert log.values == [b'{"id":1,"amount":"1.50"}', b'{"id":2,"amount":"2.50"}']
    assert gather(publisher(made, log)).passed


def test_a_window_that_was_begun_before_a_column_was_added_is_finished_with_the_columns_that_the_error_names(
    tmp_path: Path,
) -> None:
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.load([order(n) for n in range(10)], [order(20)])
    first, second = (window.key for window in made.windows)
    made.decode(first)
    log = Log(left=1)
    with pytest.raises(Stopped):
        publisher(made, log).run()
    log.left = -1
    made.declared = declared("id BIGINT NOT NULL, amount DECIMAL(12, 2), x BIGINT")
    made.decode(second)
    with pytest.raises(
        ConfigurationError, match=r"declare `value: \{…, columns: \[id, amount\]\}`, publish, and change"
    ):
        publisher(made, log).run()
    named = publisher(made, log, value=Part("json", ("id", "amount")))
    assert named.run().records == 7
    found = gather(named)
    assert (found.problems, found.not_read, found.notes) == ([], [], [])
    # After that, new windows have the new column.
    made.decode(first)
    assert publisher(made, log).run().records == 0
    assert publisher(made, log).plan().behind == 0
    assert log.values == [b'{"id":%d,"amount":"%d.50"}' % (n, n) for n in (*range(10), 20)]


NESTED = "id BIGINT NOT NULL, p STRUCT<x: BIGINT>, q ARRAY<STRUCT<x: BIGINT>>"


@pytest.mark.parametrize("kind", ["json", "avro", "protobuf"])
def test_a_nested_column_that_was_added_since_is_null_in_earlier_loads(tmp_path: Path, kind: Any) -> None:
    made, log = DecodedTopic(tmp_path / "lake", "orders"), Log()
    made.declared = declared(NESTED)
    made.load(*([b'{"id":%d,"p":{"x":1},"q":[{"x":2}]}' % n] for n in range(3)))
    first, second, third = (window.key for window in made.windows)
    made.decode(first)
    publisher(made, log, value=Part(kind)).run()
    # The second window is decoded, but not published, before the columns change.
    made.decode(second)
    made.declared = declared(NESTED.replace("x: BIGINT", "x: BIGINT, y: BIGINT"))
    made.decode(first, third)
    done = publisher(made, log, value=Part(kind)).run()
    assert (done.records, done.corrections, len(log.values)) == (2, 0, 3)
    if kind == "json":
        assert log.values[1:] == [b'{"id":%d,"p":{"x":1,"y":null},"q":[{"x":2,"y":null}]}' % n for n in (1, 2)]
    assert gather(publisher(made, log, value=Part(kind))).passed


@pytest.mark.parametrize("text", ["2026-01-01T00:00:00Z", "n/a"])
def test_a_column_whose_type_changed_is_compared_as_it_was_published(tmp_path: Path, text: str) -> None:
    made, log = DecodedTopic(tmp_path / "lake", "orders"), Log()
    made.declared = declared("id BIGINT NOT NULL, v STRING")
    made.load([b'{"id":1,"v":"%s"}' % text.encode()])
    made.decode()
    publisher(made, log).run()
    made.declared = declared("id BIGINT NOT NULL, v TIMESTAMP")
    with pytest.raises(SchemaChangeError) as refused:
        made.decode()
    made.declared = replace(made.declared, replaces=refused.value.held, loses_rows=True)
    made.decode()
    done = publisher(made, log).run()
    if text == "n/a":
        assert (done.records, log.values[1:]) == (0, []), (
            "the row is a dead letter now, and without a key nothing tells of it"
        )
    else:
        assert log.values[1:] == [b'{"id":1,"v":"2026-01-01T00:00:00.000000Z"}']


@pytest.mark.parametrize("key", [Part("text", ("id",)), None])
def test_a_window_that_is_decoded_again_to_no_rows_and_back_is_published(tmp_path: Path, key: Part | None) -> None:
    made, log = DecodedTopic(tmp_path / "lake", "orders"), Log()
    made.load([order(1), order(2)])
    made.decode()
    changes: dict[str, Any] = {"key": key, "tombstones": key is not None}
    publisher(made, log, **changes).run()
    made.declared = declared("id BIGINT NOT NULL, amount DECIMAL(12, 2), x BIGINT NOT NULL")
    made.decode()
    publisher(made, log, **changes).run()
    assert log.values[2:] == ([] if key is None else [None, None])
    made.declared = declared("id BIGINT NOT NULL, amount DECIMAL(12, 2), x BIGINT")
    made.decode()
    publisher(made, log, **changes).run()
    assert len([value for value in log.values if value is not None]) == 4
    assert publisher(made, log, **changes).plan().behind == 0


def test_a_row_that_cannot_be_published_holds_up_no_earlier_window_and_no_part_of_its_own(tmp_path: Path) -> None:
    made, log = DecodedTopic(tmp_path / "lake", "orders"), Log()
    keyed = [samples.Keyed(b'{"id": %d}' % n, order(n) if n < 5 else None) for n in (2, 3, 4, 5)]
    made.load([order(1)], keyed)
    made.decode()
    with pytest.raises(UnpublishableTombstoneError, match="load the table again with `--stale`"):
        publisher(made, log).run()
    assert log.values == [b'{"id":1,"amount":"1.50"}']
    # The way on that the error names.
    made.declared = declared("id BIGINT NOT NULL, amount DECIMAL(12, 2)", "id BIGINT NOT NULL")
    made.decode()
    publisher(made, log, value=Part("json", ("id",))).run()
    sent = [(key, value) for each in log.transactions for key, value, _ in each]
    assert sent[-1] == (b"5", None)
    assert publisher(made, log, value=Part("json", ("id",))).plan().behind == 0


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_nested_value_that_json_lacks_holds_up_no_earlier_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_checked: bool
) -> None:
    made, log = DecodedTopic(tmp_path / "lake", "orders"), Log()
    made.declared = declared("id BIGINT NOT NULL, p STRUCT<x: DOUBLE>")
    made.load([b'{"id":1,"p":{"x":1.5}}'], [b'{"id":2,"p":{"x":2.5}}'])
    made.decode()
    real = loads.read

    def read(ledger: Any, table: Any, key: str, *rest: Any) -> pa.Table:
        found = real(ledger, table, key, *rest)
        if key != made.windows[1].key:
            return found
        at = found.column_names.index("p")
        return found.set_column(at, "p", pa.array([{"x": float("nan")}], found["p"].type))

    monkeypatch.setattr(loads, "read", read)
    if not is_checked:
        # An error that is found only when records are made does not hold up earlier windows either.
        monkeypatch.setattr(Encoder, "check", lambda self, rows: None)
    with pytest.raises(UnpublishableRowError, match=r"column 'p\.x'"):
        publisher(made, log).run()
    assert log.values == [b'{"id":1,"p":{"x":1.5}}']


def test_dates_that_an_earlier_version_published_are_compared_and_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, log = DecodedTopic(tmp_path / "lake", "orders"), Log()
    made.declared = declared("id BIGINT NOT NULL, day DATE")
    made.load([b'{"id":1,"day":"2026-01-01"}'])
    made.decode()
    (window,) = made.windows
    first = made.ledger.receipts(made.declaration.decoded_table)[window.key].load_id
    real = loads.read

    def read(ledger: Any, table: Any, key: str, load: Any, *rest: Any) -> pa.Table:
        found = real(ledger, table, key, load, *rest)
        if load.load_id != first:
            return found
        return found.set_column(
            found.column_names.index("day"), "day", pa.array([2_932_897], pa.int32()).cast(pa.date32())
        )

    monkeypatch.setattr(loads, "read", read)
    with monkeypatch.context() as earlier:
        earlier.setattr(publishing, "Encoder", lambda declared, schema: Encoder(declared, schema, past=True))
        earlier.setattr(published, "_judge", lambda *given: None)
        publisher(made, log).run()
    assert log.values == [b'{"id":1,"day":"10000-01-01"}']
    monkeypatch.setattr(published, "_judge", lambda *given: None)
    found = gather(publisher(made, log))
    assert (found.passed, found.not_read) == (True, [])
    made.declared = replace(made.declared, revision=2)
    made.decode()
    assert publisher(made, log).run().corrections == 1
    assert log.values[1:] == [b'{"id":1,"day":"2026-01-01"}']


@pytest.mark.parametrize("changes", [{"total": 3, "sent": 4}, {"total": 11, "sent": 4}, {"total": 9, "sent": 12}])
def test_a_progress_that_does_not_fit_the_rows_is_an_error(tmp_path: Path, changes: dict[str, Any]) -> None:
    made, log = begun(tmp_path)
    log.records = {
        key: replace(Progress.from_bytes(value), **changes, digest="").to_bytes() for key, value in log.records.items()
    }
    with pytest.raises(ConfigurationError, match="cannot be finished: it has 10 records now"):
        publisher(made, log).run()
    assert len(log.values) == 4


@pytest.fixture(autouse=True)
def _reads_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    def messages(log: Log, topic: str, partition: int, start: int, end: int) -> list[Message]:
        return log.messages(partition, start)

    monkeypatch.setattr(published, "committed_records", messages)


def evidence_of_the_rest(made: DecodedTopic, log: Log, lost: set[int], starts: dict[int, int]) -> Evidence:
    """Return the evidence that a run collects, which publishes rows 4 to 9."""
    each = publisher(made, log)
    before = each.known(log.topic_id)
    each.run()
    log.lost, log.starts = lost, starts
    return gather(each, since={0: 4, 1: 0}, before=before)


def test_a_run_misses_each_record_that_it_has_sent(tmp_path: Path) -> None:
    made, log = begun(tmp_path)
    found = evidence_of_the_rest(made, log, {6, 7}, {0: 3, 1: 0})
    assert found.problems[0].endswith(f"2 of the records [4, 10) of load {load_of(log)} are missing")


def test_a_run_excuses_records_that_the_log_no_longer_has(tmp_path: Path) -> None:
    made, log = begun(tmp_path)
    found = evidence_of_the_rest(made, log, {4, 5}, {0: 5, 1: 0})
    assert found.passed
    assert "2 of the records [4, 10)" in found.not_read[0]


def test_a_run_that_lost_nothing_has_no_problems(tmp_path: Path) -> None:
    made, log = begun(tmp_path)
    found = evidence_of_the_rest(made, log, set(), {0: 3, 1: 0})
    assert (found.problems, found.not_read, found.records) == ([], [], 6)


@pytest.mark.parametrize("ordinal", [10, -1, 10**15])
def test_a_forged_ordinal_is_foreign_and_takes_no_memory(tmp_path: Path, ordinal: int) -> None:
    made, log = begun(tmp_path)
    publisher(made, log).run()
    _, _, [(name, identity)] = log.transactions[0][0]
    assert identity is not None
    table, window, _, rest = identity.decode().split(" ", 3)
    forged = f"{table} {window} {ordinal} {rest}".encode()
    log.forged = [(0, (b"k", b"v", [(name, forged)]))] * 150
    found = gather(publisher(made, log))
    assert f"record {ordinal} of load" in found.problems[0]
    assert (found.wrong, len(found.problems)) == (150, 100)
    assert "And 140 more" in found.headline


def test_records_of_others_in_the_progress_topic_do_not_count(tmp_path: Path) -> None:
    made, log = begun(tmp_path)
    for name in (
        b"foreign",
        b'["T", 3]',
        b'["T", "decoded/orders", 4]',
        b"[" * 100_000,
        b'{"a":1,"b":2,"c":3}',
        b"\xff",
    ):
        log.records[name] = b"whatever"
    publisher(made, log).run()
    assert len(set(log.values)) == len(log.values) == 10


def test_an_unreadable_record_of_the_progress_is_an_error(tmp_path: Path) -> None:
    made, log = begun(tmp_path)
    for value, says in ((b"?", "not the platform's"), (b'{"version":3}', "upgrade platform-assets")):
        log.records = dict.fromkeys(log.records, value)
        with pytest.raises(PublishingProgressLostError, match=says):
            publisher(made, log).run()


@pytest.mark.parametrize("lost", ["deleted", "older", "created again", "several partitions"])
def test_progress_that_the_lake_has_seen_and_kafka_lost_is_an_error(tmp_path: Path, lost: str) -> None:
    made, log = begun(tmp_path)
    older = log.records
    publisher(made, log).run()
    if lost == "deleted":
        log.records = {}
    elif lost == "older":
        log.records = older
    elif lost == "created again":
        log.progress_id, log.records = "Q", {}
    else:
        log.elsewhere = {(1, key): value for key, value in log.records.items()}
    for attempt in (publisher(made, log).run, publisher(made, log).plan):
        with pytest.raises(PublishingProgressLostError, match=r"Delete topic 'target' and create it again"):
            attempt()
    assert len(log.values) == 10
    # The remedy: the target topic is created again.
    log.topic_id = "U"
    log.elsewhere = {}
    publisher(made, log).run()
    assert len(log.values) == 20
    assert publisher(made, log).run().records == 0


@pytest.mark.parametrize("is_begun", [True, False])
def test_progress_that_fell_back_to_an_earlier_load_is_an_error(tmp_path: Path, is_begun: bool) -> None:
    made, log = DecodedTopic(tmp_path / "lake", "orders"), Log()
    made.load([order(n) for n in range(6)])
    each, (window,) = publisher(made, log, table=made.declaration.raw_table, **RAW), made.windows
    each.run()
    older = log.records
    samples.loaded(made.root, window, values={(0, n): b"second" for n in range(6)}, load_id="second")
    log.left = 1 if is_begun else -1
    with pytest.raises(Stopped) if is_begun else nullcontext():
        each.run()
    log.left = -1
    if is_begun:
        # What the first transaction has committed is seen, and recorded in the lake.
        log.left = 0
        with pytest.raises(Stopped):
            each.run()
        log.left = -1
    sent, log.records = len(log.values), older
    for attempt in (each.run, each.plan):
        with pytest.raises(PublishingProgressLostError, match=r"names load load of .*, an earlier one than second"):
            attempt()
    assert len(log.values) == sent
    # The remedy.
    log.topic_id = "U"
    each.run()
    assert log.values[sent:] == [b"second"] * 6


def test_progress_of_a_table_that_was_created_again_is_not_lost(tmp_path: Path) -> None:
    pins = loads.Pins(loads={"w": [loads.Load("b", 50, 1), loads.Load("c", 3, 1)]}, sent={"w": ("b", 1)})
    assert not pins.is_earlier("w", loads.Load("c", 3, 1))
    assert pins.is_earlier("w", loads.Load("a", 3, 1))


def test_progress_that_is_committed_but_not_visible_yet_is_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, log = begun(tmp_path)
    stale = Committed(log.progress_id, log.records, is_open=True)
    publisher(made, log).run()
    answers = [stale]
    vars(log)["committed"] = lambda: answers.pop() if answers else log.progress
    assert publisher(made, log).plan().behind == 0
    vars(log)["committed"] = lambda: stale
    monkeypatch.setattr(publishing, "_SETTLED_WITHIN", 0.0)
    with pytest.raises(PublishingInterruptedError, match="has not ended for readers"):
        publisher(made, log).plan()


def test_a_transaction_has_a_limited_number_of_bytes(tmp_path: Path) -> None:
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.load([order(n) for n in range(10)], [order(n) for n in range(10, 15)])
    made.decode()
    log = Log()
    # Each record has 23 to 27 bytes.
    publisher(made, log, transaction_rows=1000, most_bytes=60).run()
    assert [len(each) for each in log.transactions] == [3, 3, 3, 3, 3]
    assert len(set(log.values)) == 15
    log.topic_id = "U"
    publisher(made, log, transaction_rows=1000, most_bytes=1).run()
    assert [len(each) for each in log.transactions[5:]] == [1] * 15


def replaced(tmp_path: Path, transactions: int, *, erased: bool = True) -> tuple[DecodedTopic, Log, Offline]:
    """Return a raw table of two windows of ten and five rows, published in transactions of four rows, of which some are sent.
    Then the first window was loaded again without rows 2 and 7, and the files of its first load were deleted."""
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.partitions = 1
    made.load([order(n) for n in range(10)], [order(n) for n in range(10, 15)])
    first, log, folder = made.windows[0], Log(left=transactions), made.lake.table(made.declaration.raw_table)
    each = publisher(made, log, table=made.declaration.raw_table, **RAW)
    with pytest.raises(Stopped) if transactions < 4 else nullcontext():
        each.run()
    log.left = -1
    files = holdings.files_of(folder, first.key).paths
    values = {(0, n): order(n) for n in range(10)}
    kept = {0: [n for n in range(10) if n not in (2, 7)]}
    samples.loaded(made.root, first, kept, load_id="b", values=values, holes={"compacted": 2})
    for path in files:
        (made.root / "raw" / "orders" / unquote(path)).unlink()
    if erased:
        made.ledger.record_acceptance(first, {0: [OffsetRange(2, 3), OffsetRange(7, 8)]}, "erased")
    return made, log, each


@pytest.mark.parametrize("transactions", [1, 2, 4])
def test_what_remains_of_an_erased_window_is_published_and_later_windows_go_on(
    tmp_path: Path, transactions: int
) -> None:
    _, log, each = replaced(tmp_path, transactions)
    before, since = each.known(log.topic_id), {0: len(log.values), 1: 0}
    log.left = 1
    with pytest.raises(Stopped) if transactions < 4 else nullcontext():
        each.run()
    log.left = -1
    each.run()
    sent = min(4 * transactions, 15)
    expected = [n for n in range(15) if n < sent or n not in (2, 7)]
    assert [int(key or b"") for one in log.transactions for key, _, _ in one] == expected
    assert each.plan().behind == 0
    found = gather(each)
    assert found.problems == []
    assert len(log.values) == found.records
    assert gather(each, since=since, before=before).problems == []


def test_differences_whose_earlier_load_was_erased_end_with_those_that_were_sent(tmp_path: Path) -> None:
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.partitions = 1
    made.load([order(n) for n in range(10)])
    log, folder, (window,) = Log(), made.lake.table(made.declaration.raw_table), made.windows
    each = publisher(made, log, table=made.declaration.raw_table, **RAW)
    each.run()
    files = holdings.files_of(folder, window.key).paths
    samples.loaded(made.root, window, {0: range(10)}, load_id="b", values={(0, n): b"new" for n in range(10)})
    log.left = 1
    with pytest.raises(Stopped):
        each.run()
    log.left = -1
    for path in files:
        (made.root / "raw" / "orders" / unquote(path)).unlink()
    made.ledger.record_acceptance(window, {0: [OffsetRange(2, 3)]}, "erased")
    before, since = each.known(log.topic_id), {0: len(log.values), 1: 0}
    # The rest is sent in several transactions, too.
    log.left = 1
    with pytest.raises(Stopped):
        each.run()
    log.left = -1
    assert each.run().removed == (window.key,)
    assert log.values[10:] == [b"new"] * 14
    assert [key for one in log.transactions for key, _, _ in one][14:] == [b"%d" % n for n in range(10)]
    for found in (gather(each), gather(each, since=since, before=before)):
        assert (found.problems, found.not_read) == ([], [])
    assert each.run().records == 0


@pytest.mark.parametrize("transactions", [1, 3])
@pytest.mark.parametrize("is_changed", [True, False])
def test_rows_that_were_decoded_otherwise_and_cannot_be_compared_are_sent(
    tmp_path: Path, transactions: int, is_changed: bool
) -> None:
    made, log = DecodedTopic(tmp_path / "lake", "orders"), Log(left=transactions)
    made.load([order(n) for n in range(10)])
    made.decode()
    each, (window,) = publisher(made, log, tombstones=True), made.windows
    with pytest.raises(Stopped) if transactions < 3 else nullcontext():
        each.run()
    log.left = -1
    sent, table = len(log.values), made.declaration.decoded_table
    files = holdings.files_of(made.lake.table(table), window.key).paths
    kept = {0: [n for n in range(10) if n != 2]}
    values = {(0, n): order(n) for n in range(10)}
    samples.loaded(made.root, window, kept, load_id="b", values=values, holes={"compacted": 1}, proved_by="load digest")
    made.ledger.record_acceptance(window, {0: [OffsetRange(2, 3)]}, "erased")
    if is_changed:
        made.declared = replace(made.declared, revision=2)
    made.decode()
    for path in files:
        (made.root / "decoded" / "orders" / unquote(path)).unlink()
    assert each.run().removed == (window.key,)
    keys = [int(key or b"") for one in log.transactions for key, _, _ in one][sent:]
    rest = [n for n in range(10) if n != 2]
    assert keys == (rest if is_changed else rest[sent - 1 :])
    found = gather(each)
    assert (found.problems, found.not_read) == ([], [])
    assert each.run().records == 0


def test_values_that_were_published_before_an_erasure_and_differ_are_named(tmp_path: Path) -> None:
    made, log, each = replaced(tmp_path, 4)
    first, folder = made.windows[0], made.lake.table(made.declaration.raw_table)
    each.run()
    # As an earlier release did: the rows that remain have other values than the published ones.
    files = holdings.files_of(folder, first.key).paths
    kept = {0: [n for n in range(10) if n != 2]}
    samples.loaded(
        made.root, first, kept, load_id="c", values={(0, n): b"new" for n in range(10)}, holes={"compacted": 1}
    )
    (state,) = (v for v in log.records.values() if Progress.from_bytes(v).partial)
    receipt = made.ledger.receipts(made.declaration.raw_table)[first.key]
    moved = replace(
        Progress.from_bytes(state), load=loads.Load(receipt.load_id, receipt.table_version or 0, receipt.rows)
    )
    log.records = {k: moved.to_bytes() if v == state else v for k, v in log.records.items()}
    assert files
    found = gather(each)
    assert found.problems == []
    assert "differ from its rows" in found.not_read[0]


def test_rows_are_not_left_out_if_an_earlier_version_did_not_record_which_were_sent(tmp_path: Path) -> None:
    _, log, each = replaced(tmp_path, 1)
    log.records = {
        key: replace(Progress.from_bytes(value), at=None, digest="").to_bytes() for key, value in log.records.items()
    }
    with pytest.raises(PublishedRowsLostError):
        each.run()


def test_a_publisher_that_is_overtaken_while_it_begins_does_not_take_the_progress_for_lost(tmp_path: Path) -> None:
    made, log = begun(tmp_path)
    fenced = PublishingInterruptedError("target", "a transaction", "fenced", fenced=True)

    def overtaken() -> Any:
        stale = log.progress
        vars(log).pop("session")
        publisher(made, log).run()

        def send_batches(batches: object, progress: object) -> None:
            raise fenced

        return SimpleNamespace(progress=stale, send_batches=send_batches)

    vars(log)["session"] = overtaken
    with pytest.raises(PublishingInterruptedError):
        publisher(made, log).run()
    assert len(set(log.values)) == len(log.values) == 10


def test_rows_that_were_lost_by_accident_hold_up_only_their_window(tmp_path: Path) -> None:
    _, log, each = replaced(tmp_path, 1, erased=False)
    for _ in range(2):
        with pytest.raises(PublishedRowsLostError):
            each.run()
        assert [int(key or b"") for one in log.transactions for key, _, _ in one] == [0, 1, 2, 3, *range(10, 15)]


def test_a_window_that_expired_while_it_was_published_is_left_as_it_is(tmp_path: Path) -> None:
    made, log, each = replaced(tmp_path, 1)
    table = made.declaration.raw_table
    receipt = made.ledger.receipts(table)[made.windows[0].key]
    assert loads.needed_files(made.ledger, table)
    made.ledger.record_receipts(
        [replace(receipt, kind=EXPIRED, load_id="gone", table_version=(receipt.table_version or 0) + 1)]
    )
    assert not loads.needed_files(made.ledger, table)
    done = each.run()
    assert done.removed == (made.windows[0].key,)
    assert [int(key or b"") for one in log.transactions for key, _, _ in one] == [0, 1, 2, 3, *range(10, 15)]
    assert each.run().records == 0


def test_a_version_that_another_load_made_is_not_the_published_load(tmp_path: Path) -> None:
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.partitions = 1
    made.load([order(n) for n in range(10)])
    log, table, (window,) = Log(), made.declaration.raw_table, made.windows
    receipt = made.ledger.receipts(table)[window.key]
    # The table was restored from a copy in which another load made the version that the receipt names.
    made.ledger.record_receipts([replace(receipt, load_id="other")])
    with pytest.raises(PublishedRowsLostError, match=r"version \d+ of the table is load load of "):
        publisher(made, log, table=table, **RAW).run()
    assert log.values == []


def test_a_window_that_is_published_after_later_ones_is_in_order(tmp_path: Path) -> None:
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.load([order(n) for n in range(10)], [order(n) for n in range(10, 15)])
    made.decode()
    log = Log()
    publisher(made, log, start=made.windows[1].key).run()
    each = publisher(made, log)
    each.run()
    found = gather(each)
    assert (found.problems, found.not_read, found.windows) == ([], [], 2)


def test_records_in_the_form_of_an_earlier_declaration_are_not_findings(tmp_path: Path) -> None:
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.load([order(n) for n in range(10)])
    made.decode()
    log = Log()
    publisher(made, log).run()
    found = gather(publisher(made, log, value=Part("json", ("id",))))
    assert (found.problems, found.not_read) == ([], [])
    assert "window" in found.notes[0]
    assert "in another form" in found.headline
    log.lost = {3}
    assert gather(publisher(made, log, value=Part("json", ("id",)))).wrong == 1


def test_records_that_compaction_removed_are_not_missing(tmp_path: Path) -> None:
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.partitions = 1
    made.load([order(n % 5) for n in range(10)], [b'{"id":7,"amount":1}'])
    made.decode()
    log = Log(policy="compact")
    each = publisher(made, log)
    each.run()
    log.lost = {0, 1, 2, 3}
    found = gather(each)
    assert (found.problems, found.not_read) == ([], [])
    assert "compaction" in found.notes[0]
    log.lost = {10}
    assert "no record of their key" in gather(each).not_read[0]
    log.policy = "delete"
    assert gather(each).wrong == 1


def test_a_header_with_an_impossible_position_is_foreign(tmp_path: Path) -> None:
    made, log = begun(tmp_path)
    publisher(made, log).run()
    _, _, [(name, identity)] = log.transactions[0][0]
    assert identity is not None
    parts = identity.decode().split(" ")
    parts[5] = str(10**30)
    log.forged = [(0, (b"k", b"v", [(name, " ".join(parts).encode())]))]
    assert "did not send" in gather(publisher(made, log)).problems[0]


def test_windows_that_wait_for_one_that_is_not_loaded_are_counted(tmp_path: Path) -> None:
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.load([order(0)], [order(1)], [order(2)])
    first, second, third = (window.key for window in made.windows)
    made.decode(first, third)
    plan = publisher(made, Log()).plan()
    assert (plan.new, plan.waiting, plan.blocked) == ((first,), second, (third,))


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("sealed", [2, 0])
def test_a_window_that_is_loaded_while_the_ledger_is_read_is_not_overtaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, sealed: int
) -> None:
    made, log = DecodedTopic(tmp_path / "lake", "orders"), Log()
    made.load([order(0)], [order(1)], [order(2)])
    first, second, third = (window.key for window in made.windows)
    made.decode(first)
    each, late = publisher(made, log), [third] if sealed == 0 else [second]
    if sealed == 2:
        made.decode(third)
    else:
        # When the ledger is first asked, only the first window is sealed.
        cut = made.ledger.cuts("orders")[1]
        monkeypatch.setattr(type(made.ledger), "newest_cut", lambda *given: cut)
    real = type(made.ledger).receipts

    def receipts(ledger: Any, table: Any, keys: Any = None) -> Any:
        if moment == "before" and late:
            made.decode(late.pop())
        found = real(ledger, table, keys)
        if late:
            made.decode(late.pop())
        return found

    with monkeypatch.context() as loaded_meanwhile:
        loaded_meanwhile.setattr(type(made.ledger), "receipts", receipts)
        each.run()
    monkeypatch.undo()
    done = loads.pinned(made.lake, "target").done
    assert done != publishing.fingerprint(each.declaration, made.ledger) or len(log.values) == 3
    made.decode(second)
    each.run()
    assert [json.loads(value or b"")["id"] for value in log.values] == [0, 1, 2]


def test_a_headline_begins_with_what_was_not_compared() -> None:
    found = Evidence(records=18, windows=2, not_read=["window 1 is published in part"])
    assert found.headline == (
        "Not everything was compared: window 1 is published in part. Nothing wrong was found in the rest of 18 records of 2 windows."
    )


def test_a_window_that_follows_a_later_one_for_no_reason_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, log = DecodedTopic(tmp_path / "lake", "orders"), Log()
    made.load([order(0), order(1)], [order(2), order(3)])
    first, second = (window.key for window in made.windows)
    made.decode(second)
    each = publisher(made, log)
    with monkeypatch.context() as earlier:
        earlier.setattr(unloaded, "find", lambda *given: unloaded.Unloaded())
        each.run()
    made.decode(first)
    each.run()
    found = gather(each)
    assert found.problems == [
        f"partition 0 offset 2: the first row of window {first} follows rows of the later window {second}: publish to a new topic"
    ]
    # Without this release's record of what may be late, it is only named.
    pins = loads.pinned(made.lake, "target")
    loads.pin(made.lake, "target", replace(pins, late=None))
    found = gather(each)
    assert (found.problems, found.not_read) == ([], [])
    assert "its place in the order" in found.headline
    each.run()
    assert gather(each).passed


@pytest.mark.parametrize("reason", ["parked", "restored", "no rows", "lost"])
def test_a_window_that_follows_a_later_one_for_a_reason_is_no_problem(tmp_path: Path, reason: str) -> None:
    made, log = DecodedTopic(tmp_path / "lake", "orders"), Log()
    made.load([b'{"id":0,"amount":0.5}'], [order(1)])
    first, second = (window.key for window in made.windows)
    each, hidden = publisher(made, log), tmp_path / "hidden"
    if reason == "no rows":
        made.declared = declared("id BIGINT NOT NULL, amount DECIMAL(12, 2), x BIGINT NOT NULL")
        made.decode()
        made.declared = declared("id BIGINT NOT NULL, amount DECIMAL(12, 2), x BIGINT")
        publisher(made, log).run()
        made.decode(second)
    elif reason in {"parked", "restored"}:
        made.decode(second)
        each = replace(each, parked=frozenset([first]))
    else:
        made.decode()
        folder = made.lake.table(made.declaration.decoded_table)
        (lost,) = holdings.files_of(folder, first).paths
        path = tmp_path / "lake" / "decoded" / "orders" / unquote(lost)
        path.rename(hidden)
    with pytest.raises(PublishedRowsLostError) if reason == "lost" else nullcontext():
        each.run()
    if reason == "lost":
        hidden.rename(path)
    else:
        made.decode(first)
    publisher(made, log).run()
    assert [json.loads(value or b"")["id"] for value in log.values] == [1, 0]
    if reason == "restored":
        # The lake is one from before both windows were sent.
        loads.pin(made.lake, "target", replace(loads.pinned(made.lake, "target"), sent={}, late=loads.Late()))
        publisher(made, log).run()
    found = gather(publisher(made, log))
    assert (found.problems, found.not_read) == ([], [])
    assert f"window {first}: its place in the order" in found.headline


def test_an_error_of_the_encoder_itself_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.load([order(n) for n in range(10)])
    made.decode()
    log = Log()
    publisher(made, log).run()
    found = gather(publisher(made, log))
    assert (found.problems, found.judged) == ([], 10)
    with_columns(monkeypatch, "amount", pc.round)
    wrong = Log("U")
    publisher(made, wrong).run()
    assert "is not that of row" in gather(publisher(made, wrong)).problems[0]


def load_of(log: Log) -> str:
    (value,) = log.records.values()
    return Progress.from_bytes(value).load.load_id


@pytest.mark.parametrize("partitions", [(0, 0, 1), (1, 0, 0), (0, 1, 0), (1, 1, 0)])
def test_the_newest_record_of_a_row_wins_in_whatever_partition_it_is(
    tmp_path: Path, partitions: tuple[int, int, int]
) -> None:
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.load([order(n) for n in range(10)])
    (window,) = made.windows
    places = [(p, o) for p, r in sorted(window.ranges.items()) for o in range(r.start, r.end)]
    kept = {p: [o for q, o in places if q == p] for p, _ in window.ranges.items()}
    raw: dict[str, Any] = {"table": made.declaration.raw_table, "key": None, "value": Part("bytes", ("value",))}
    # The first ten records are rows, then there are three changes of each of two loads.
    log = Log(partition_of=lambda number: partitions[0 if number < 10 else 1 if number < 13 else 2])
    for name, text in (("z", b"first"), ("a", b"second"), ("m", b"third")):
        values = {place: text if n < 3 else b"same" for n, place in enumerate(places)}
        samples.loaded(made.root, window, kept, load_id=name, values=values)
        publisher(made, log, **raw).run()
    assert log.values[10:] == [b"second"] * 3 + [b"third"] * 3
    found = gather(publisher(made, log, **raw))
    assert (found.problems, found.not_read) == ([], [])
