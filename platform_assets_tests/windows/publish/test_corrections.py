"""Corrections on a log in memory: the order in which they are sent, and loads that cannot be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from platform_assets.checks import published
from platform_assets.checks.published import gather
from platform_assets.kafka.publisher import Record
from platform_assets.windows.publish.loads import Load
from platform_assets.windows.publish.progress import Progress
from platform_assets_tests.support.decoded_topic import DecodedTopic, order
from platform_assets_tests.windows.publish.test_states import Log, Message, Offline, Stopped, publisher
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
