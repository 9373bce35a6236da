"""Corrections on a log in memory: the order in which they are sent, and loads that cannot be compared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from platform_assets.checks import published
from platform_assets.checks.published import gather
from platform_assets.errors import PublishedLoadUnknownError, PublishedRowsLostError, PublishingInterruptedError
from platform_assets.kafka.publisher import Record
from platform_assets.lake import holdings
from platform_assets.ledger.entries import EXPIRED
from platform_assets.model.publishing import Part
from platform_assets.windows.publish import loads
from platform_assets.windows.publish.loads import Load
from platform_assets.windows.publish.progress import Progress
from platform_assets.windows.recover.rebuild import rebuild
from platform_assets_tests.support.decoded_topic import DecodedTopic, order
from platform_assets_tests.support.local_engine import LocalEngine
from platform_assets_tests.support.topic_in_memory import RAW, Log, Message, Offline, Stopped, publisher
from testbed import samples


@pytest.fixture(autouse=True)
def _reads_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    def messages(log: Log, topic: str, partition: int, start: int, end: int) -> list[Message]:
        return log.messages(partition, start)

    monkeypatch.setattr(published, "committed_records", messages)


def live(log: Log) -> Mapping[bytes | None, bytes]:
    """Return what a reader of the topic has in the end: the newest value of each key that is not deleted."""
    held: dict[bytes | None, bytes] = {}
    for key, value, _ in sent(log):
        if value is None:
            held.pop(key, None)
        else:
            held[key] = value
    return held


def sent(log: Log) -> list[Record]:
    return [record for each in log.transactions for record in each]


def identities(log: Log, first: int) -> list[tuple[int, str]]:
    """Return ordinal and kind of each record from place `first` on."""
    texts = [
        (dict(headers)["platform_assets.published"] or b"").decode().split() for _, _, headers in sent(log)[first:]
    ]
    return [(int(ordinal), kind) for _, _, ordinal, kind, *_ in texts]


def shifted(tmp_path: Path, shift: int) -> tuple[DecodedTopic, Log, Offline]:
    """Return a published window of six rows with the keys 10 to 15, which was decoded again: each key is larger by
    `shift`."""
    made, log = DecodedTopic(tmp_path / "lake", "orders"), Log()
    made.load([order(n) for n in range(10, 16)])
    made.decode()
    publisher(made, log, tombstones=True).run()
    (window,) = made.windows
    made.declared = replace(made.declared, revision=2)
    values = {(0, n): order(n + 10 + shift) for n in range(6)}
    samples.loaded(made.root, window, values=values, load_id="b", holes={}, proved_by="load digest")
    made.decode()
    return made, log, publisher(made, log, tombstones=True)


@pytest.mark.parametrize("shift", [1, -1])
def test_a_key_that_moves_to_another_row_is_not_deleted(tmp_path: Path, shift: int) -> None:
    _, log, each = shifted(tmp_path, shift)
    log.left = 1
    with pytest.raises(Stopped):
        each.run()
    # An earlier release would continue in another order, so it must not read this.
    assert [json.loads(value)["version"] for value in log.records.values()] == [2]
    log.left = -1
    each.run()
    assert [json.loads(value)["version"] for value in log.records.values()] == [1]
    assert [len(part) for part in log.transactions] == [4, 2, 4, 4, 4]
    assert identities(log, 6) == [(n, "removed" if n < 6 else "changed") for n in range(12)]
    assert live(log) == {b"%d" % n: b'{"id":%d,"amount":"%d.50"}' % (n, n) for n in range(10 + shift, 16 + shift)}
    found = gather(each)
    assert (found.problems, found.not_read) == ([], [])


def test_a_correction_that_an_earlier_release_has_begun_is_finished_in_its_order(tmp_path: Path) -> None:
    made, log, each = shifted(tmp_path, 1)
    ((name, value),) = log.records.items()
    receipt = made.ledger.receipts(made.declaration.decoded_table)[made.windows[0].key]
    state = Progress.from_bytes(value)
    load = Load(receipt.load_id, receipt.table_version or 0, receipt.rows)
    log.records = {name: replace(state, load=load, base=state.load, sent=2, total=12, at=None).to_bytes()}
    each.run()
    assert identities(log, 6) == [(n, "changed" if n % 2 else "removed") for n in range(2, 12)]


def test_the_audit_finds_keys_that_a_correction_of_an_earlier_release_deleted(tmp_path: Path) -> None:
    made, log, each = shifted(tmp_path, 1)
    ((name, value),) = log.records.items()
    receipt = made.ledger.receipts(made.declaration.decoded_table)[made.windows[0].key]
    state = Progress.from_bytes(value)
    load = Load(receipt.load_id, receipt.table_version or 0, receipt.rows)
    log.records = {name: replace(state, load=load, base=state.load, sent=0, total=12, at=None).to_bytes()}
    before, since = each.known(log.topic_id), {0: len(sent(log)), 1: 0}
    each.run()
    assert live(log).keys() == {b"16"}, "earlier releases sent a row's tombstone after the record of the row before it"
    key = made.windows[0].key
    for found in (gather(each), gather(each, since=since, before=before)):
        (problem,) = found.problems
        assert problem.startswith(
            f"window {key}: a correction deleted the keys of 5 of its rows after it had sent them"
        )
        assert (
            f"such as (0, 0); publish to a new topic, or delete topic {each.declaration.topic}, create it again"
            in problem
        )


def test_the_audit_notes_a_key_that_moved_to_an_earlier_window(tmp_path: Path) -> None:
    made, log = DecodedTopic(tmp_path / "lake", "orders"), Log()
    made.load([order(1)], [order(2)])
    made.decode()
    each = publisher(made, log, tombstones=True)
    each.run()
    assert gather(each).problems == []
    made.declared = replace(made.declared, revision=2)
    for number, value in enumerate((order(2), order(3))):
        samples.loaded(
            made.root,
            made.windows[number],
            values={(0, number): value},
            load_id=f"b{number}",
            holes={},
            proved_by="load digest",
        )
    made.decode()
    publisher(made, log, tombstones=True).run()
    assert live(log).keys() == {b"3"}
    found = gather(each)
    assert found.problems == []
    (note,) = found.notes
    assert note.startswith(f"window {made.windows[0].key}: 1 rows with keys that a correction deleted, such as (0, 0)")


def published_once(tmp_path: Path) -> tuple[DecodedTopic, Log, Offline]:
    """Return a published raw window of ten rows."""
    made, log = DecodedTopic(tmp_path / "lake", "orders"), Log()
    made.load([order(n) for n in range(10)])
    each = publisher(made, log, table=made.declaration.raw_table, **RAW)
    each.run()
    return made, log, each


def test_rows_of_another_load_are_not_taken_for_those_that_were_published(tmp_path: Path) -> None:
    made, log, each = published_once(tmp_path)
    shutil.copytree(tmp_path / "lake", tmp_path / "backup")
    (window,) = made.windows
    samples.loaded(made.root, window, values={(0, n): b"second" for n in range(10)}, load_id="second")
    each.run()
    assert len(log.values) == 20
    shutil.rmtree(tmp_path / "lake")
    shutil.copytree(tmp_path / "backup", tmp_path / "lake")
    # The restored table has the same number of rows in the window, but those of the load before.
    restored = DecodedTopic(tmp_path / "lake", "orders")
    each = publisher(restored, log, table=made.declaration.raw_table, **RAW)
    for _ in range(2):
        with pytest.raises(PublishedLoadUnknownError, match=f"load second of window {window.key} was published"):
            each.run()
        assert each.plan().again == (window.key,)
    # The remedy.
    log.topic_id = "U"
    each.run()
    assert log.values[20:] == [order(n) for n in range(10)]


def test_the_loads_of_a_rebuilt_ledger_are_known(tmp_path: Path) -> None:
    made, log, each = published_once(tmp_path)
    (window,) = made.windows
    shutil.rmtree(made.root / "_ledger")
    with pytest.raises(PublishedLoadUnknownError, match="run `platform-assets rebuild-ledger`"):
        each.run()
    # The remedy.
    rebuild(made.declaration, made.ledger, LocalEngine(made.lake))
    assert each.run().records == 0
    assert len(log.values) == 10
    assert gather(each).passed
    assert made.windows == [window]


def test_windows_that_are_held_or_expired_are_not_looked_up_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, log = DecodedTopic(tmp_path / "lake", "orders"), Log()
    made.load([order(n) for n in range(10)])
    each = publisher(made, log, table=made.declaration.raw_table, corrections="hold", **RAW)
    each.run()
    (window,) = made.windows
    samples.loaded(made.root, window, values={(0, n): b"second" for n in range(10)}, load_id="second")
    receipt = made.ledger.receipts(made.declaration.raw_table)[window.key]

    def fail(*given: object) -> None:
        raise AssertionError(f"the window was looked up: {given}")

    monkeypatch.setattr(loads, "is_unknown", fail)
    assert each.run().held == (window.key,)
    # The entry of an expiry names another load, for ever.
    made.ledger.record_receipts([replace(receipt, kind=EXPIRED, load_id="expiry")])
    assert each.run().records == 0
    held, expired = made.ledger.all_loads(made.declaration.raw_table)
    assert {load_id for _, load_id in held} >= {"second", "expiry"}
    assert expired == {window.key}
    assert {key for key, _ in held} == {window.key}


@pytest.mark.parametrize("corrections", ["hold", "publish"])
@pytest.mark.parametrize("boundary", [7, 12, None])
def test_windows_that_a_restored_lake_seals_otherwise_are_not_sent(
    tmp_path: Path, corrections: Any, boundary: int | None
) -> None:
    log, before = Log(), DecodedTopic(tmp_path / "before", "orders")
    before.partitions = 1
    before.load([order(n) for n in range(10)])
    samples.loaded(
        before.root, before.windows[0], values={(0, n): order(n) for n in range(10)}, load_id="lost", holes={}
    )
    raw: dict[str, Any] = {"table": before.declaration.raw_table, "corrections": corrections, **RAW}
    publisher(before, log, **raw).run()
    restored = DecodedTopic(tmp_path / "restored", "orders")
    restored.partitions = 1
    if boundary is None:
        # The window is not sealed again yet.
        restored.ledger.create()
    else:
        restored.load([order(n) for n in range(boundary)], [order(n) for n in range(boundary, 15)])
        values = {(0, n): order(n) for n in range(boundary)}
        samples.loaded(restored.root, restored.windows[0], values=values, load_id="restored", holes={})
    each = publisher(restored, log, **raw)
    for _ in range(2):
        with pytest.raises(PublishedLoadUnknownError, match=r"nothing was sent.*delete topic 'target' and create it"):
            each.run()
    assert len(log.values) == 10
    if boundary is not None:
        log.topic_id, log.transactions = "U", []
        each.run()
        assert log.values == [order(n) for n in range(15)]
        assert gather(each).passed


def test_rows_that_two_windows_have_sent_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, before = Log(), DecodedTopic(tmp_path / "before", "orders")
    before.partitions = 1
    before.load([order(n) for n in range(10)])
    raw: dict[str, Any] = {"table": before.declaration.raw_table, "corrections": "hold", **RAW}
    publisher(before, log, **raw).run()
    restored = DecodedTopic(tmp_path / "restored", "orders")
    restored.partitions = 1
    restored.load([order(n) for n in range(7)], [order(n) for n in range(7, 15)])
    # As earlier releases did.
    monkeypatch.setattr(Offline, "_require_known", lambda *given: None)
    each = publisher(restored, log, **raw)
    each.run()
    assert len(log.values) == 18
    first, second = (window.key for window in restored.windows)
    assert any(f"windows {first} and {second} both have records" in problem for problem in gather(each).problems)


def healed(tmp_path: Path, text: bytes) -> tuple[Log, Offline]:
    """Return a published window whose files were lost, and which was loaded again; row 3 is this text now."""
    made, log, each = published_once(tmp_path)
    (window,) = made.windows
    folder = made.lake.table(made.declaration.raw_table)
    files = holdings.files_of(folder, window.key).paths
    values = {(0, n): text if n == 3 else order(n) for n in range(10)}
    samples.loaded(made.root, window, values=values, load_id="healed")
    if text != order(3):
        # Digests of hand-made loads do not depend on their values.
        receipt = made.ledger.receipts(made.declaration.raw_table)[window.key]
        made.ledger.record_receipts([replace(receipt, content_digest=receipt.content_digest + 1)])
    for path in files:
        (tmp_path / "lake" / "raw" / "orders" / unquote(path)).unlink()
    return log, each


def test_a_window_with_lost_files_that_was_loaded_with_the_same_rows_is_published(tmp_path: Path) -> None:
    log, each = healed(tmp_path, order(3))
    assert each.run().records == 0
    assert each.plan().behind == 0
    assert [Progress.from_bytes(value).load.load_id for value in log.records.values()] == ["healed"]
    found = gather(each)
    assert (found.problems, found.not_read) == ([], [])


@pytest.mark.parametrize("is_correction", [True, False])
def test_a_window_that_is_sent_in_part_is_finished_from_a_load_with_the_same_rows(
    tmp_path: Path, is_correction: bool
) -> None:
    made, log = DecodedTopic(tmp_path / "lake", "orders"), Log(left=1)
    made.load([order(n) for n in range(10)])
    each, (window,) = publisher(made, log, table=made.declaration.raw_table, **RAW), made.windows
    values, name = {(0, n): order(n) for n in range(10)}, f"load of {window.key}"
    if is_correction:
        log.left = -1
        each.run()
        values, name = {(0, n): b"second" for n in range(10)}, "second"
        samples.loaded(made.root, window, values=values, load_id=name)
        log.left = 1
    with pytest.raises(Stopped):
        each.run()
    log.left = -1
    begun = len(log.values)
    files = holdings.files_of(made.lake.table(made.declaration.raw_table), window.key).paths
    samples.loaded(made.root, window, values=values, load_id="healed")
    for path in files:
        (tmp_path / "lake" / "raw" / "orders" / unquote(path)).unlink()
    each.run()
    assert [ordinal for ordinal, _ in identities(log, begun)] == [*range(4, 10)]
    assert log.values[begun - 4 :] == [*values.values()]
    assert {
        (dict(headers)["platform_assets.published"] or b"").decode().split(" ", 6)[6]
        for _, _, headers in sent(log)[-10:]
    } == {name}
    assert [Progress.from_bytes(value).load.load_id for value in log.records.values()] == ["healed"]
    found = gather(each)
    assert (found.problems, found.not_read, each.run().records) == ([], [], 0)


def test_a_window_with_lost_files_that_was_loaded_with_other_rows_cannot_be_compared(tmp_path: Path) -> None:
    log, each = healed(tmp_path, b"other")
    with pytest.raises(PublishedRowsLostError):
        each.run()
    assert len(log.values) == 10


def test_lost_rows_in_another_form_cannot_be_compared(tmp_path: Path) -> None:
    _, each = healed(tmp_path, order(3))
    declared = replace(each.declaration, value=Part("json", ("kafka_offset",)))
    with pytest.raises(PublishedRowsLostError):
        replace(each, declaration=declared).run()


@pytest.mark.parametrize("is_sending", [True, False])
def test_a_topic_that_is_created_again_during_a_run_gets_each_row_once(tmp_path: Path, is_sending: bool) -> None:
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.load([order(n) for n in range(10)])
    log, described = Log(), list[str]()
    each = publisher(made, log, table=made.declaration.raw_table, **RAW)
    describe = log.topic

    def topic(name: str) -> Any:
        described.append(name)
        if (len(log.transactions) == 1) if is_sending else len(described) == 1:
            log.topic_id, log.transactions = "U", []
        return describe(name)

    vars(log)["topic"] = topic
    with pytest.raises(PublishingInterruptedError, match="the topic was deleted and created again"):
        each.run()
    vars(log).pop("topic")
    # A transaction that is not committed does not count.
    log.transactions = []
    each.run()
    assert log.values == [order(n) for n in range(10)]
    assert gather(each).passed
