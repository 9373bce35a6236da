"""The effort of an erasure grows linearly with the number of erased records, not with its square. The tests count; they
do not time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from platform_assets.lake import rows
from platform_assets.lake.location import Folder
from platform_assets.ledger import decisions, erasure_rules
from platform_assets.ledger.decisions import Decision
from platform_assets.ledger.entries import ERASED
from platform_assets.ledger.erasure_rules import erased_of
from platform_assets.ledger.store import Ledger
from platform_assets.model.decoding import Repair
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.state import StateDeclaration
from platform_assets.windows.change.changing import WindowChanger
from platform_assets.windows.erase import erased_keys, erasure_ranges
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic
from testbed import samples

RANGES = 1_000
EACH = tuple(OffsetRange(2 * i, 2 * i + 1) for i in range(RANGES))


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    return MadeTopic(tmp_path / "lake")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often ranges are read: each merge reads each of its ranges once."""
    count = [0]
    size: Any = OffsetRange.size

    def counted(self: OffsetRange) -> int:
        count[0] += 1
        return int(size.fget(self))

    monkeypatch.setattr(OffsetRange, "size", property(counted))
    return count


def test_ranges_are_merged_once(topic: MadeTopic, looks: list[int]) -> None:
    (window,) = samples.recorded(topic.root, "people", [{0: 0}, {0: 2 * RANGES}])
    named = [[0, r.start, r.end] for r in EACH]
    details = {"topic_id": samples.TOPIC_ID, "generation": 1, "offsets": {window.key: named}}
    decisions.record(topic.lake, Decision("people", "erase", (window.key,), "somebody", "asked", details))
    topic.ledger.record_acceptances([(window, {0: EACH})], "asked", ERASED)

    def effort_of(found: Any) -> None:
        assert found == {0: EACH}
        assert looks[0] < 20 * RANGES
        looks[0] = 0

    looks[0] = 0
    effort_of(erasure_rules.of(topic.ledger, "people").offsets[1])
    effort_of(decisions.unfinished_erasures(topic.lake, "people")[window.key].ranges)
    effort_of(erased_of(topic.ledger, "people")[window.key])
    effort_of(erasure_ranges.parsed_ranges([f"0:{r.start}-{r.end}" for r in EACH]))
    effort_of(erasure_ranges.joined({}, named))


def test_a_window_looks_at_its_own_ranges_of_a_rule_alone(looks: list[int]) -> None:
    window = samples.sealed("people", "2026-01-01-00:00", p0=(10, 14))
    rules = erasure_rules.Rules({1: {0: EACH}}, (), {})
    looks[0] = 0
    assert rules.erased_in(window) == {0: (OffsetRange(10, 11), OffsetRange(12, 13))}
    assert looks[0] < 20


def test_the_tables_are_opened_once_for_all_windows(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = topic.seal([{0: [(b"a", b"1"), (b"b", b"2")]} for _ in range(6)])
    topic.load_many(windows)
    erasure, opened, delta = topic.erasure, list[str](), Folder.delta

    def counted(self: Folder, version: int | None = None) -> Any:
        opened.append(self.uri)
        return delta(self, version)

    monkeypatch.setattr(Folder, "delta", counted)
    table = topic.lake.table(topic.declaration.raw_table).uri
    ranges = {0: (OffsetRange(0, 12),)}
    assert len(erasure.at_offsets(ranges)) == 6
    erasure.record(erasure.at_offsets(ranges), AUTHOR)
    assert opened.count(table) <= 4
    opened.clear()
    assert len(erasure.returned()) == 6
    assert opened.count(table) <= 2
    opened.clear()
    receipts = {k: replace(r, files_digest="of other files") for k, r in topic.receipts().items()}
    monkeypatch.setattr(Ledger, "receipts", lambda *_: receipts)
    assert not erasure.damaged()
    assert opened.count(table) <= 2


def test_a_key_has_one_digest_for_all_rules_of_one_salt(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    (window,) = topic.seal([{0: [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]}])
    for key in (b"x", b"y", b"b"):
        topic.erasure.record([], AUTHOR, [key])
    topic.load(window)
    digest, taken = erasure_rules.digest, list[bytes]()

    def counted(key: bytes, salt: bytes) -> bytes:
        taken.append(key)
        return digest(key, salt)

    monkeypatch.setattr(erasure_rules, "digest", counted)
    folder = topic.lake.table(topic.declaration.raw_table)
    assert erased_keys.record_found(topic.ledger, folder, paths_of(folder, window.key), window)
    assert sorted(taken) == [b"a", b"b"]
    assert erased_of(topic.ledger, "people") == {window.key: {0: (OffsetRange(1, 2),)}}


def paths_of(folder: Folder, window: str) -> tuple[str, ...]:
    from platform_assets.lake import holdings

    return holdings.files_of(folder, window).paths


def test_rows_are_read_only_in_windows_that_have_rows_without_a_raw_row(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.declaration = replace(topic.declaration, state=StateDeclaration(("key",)))
    windows = topic.seal([{0: [(b"a", b"1"), (b"a", b"2"), (b"b", b"3")]} for _ in range(3)])
    topic.fill(windows)
    for window in windows:
        WindowChanger(topic.declaration, topic.ledger).make(window.key)
    read, offsets_of = list[tuple[str, str]](), rows.Opened.offsets_of

    def counted(self: rows.Opened, key: str) -> Any:
        read.append((self.table.uri.rsplit("/", 2)[1], key))
        return offsets_of(self, key)

    monkeypatch.setattr(rows.Opened, "offsets_of", counted)
    assert topic.erasure.without_raw_row() == {}
    assert read == [], "changes are fewer than the decoded rows, but follow from them"
    # Changes are made from decoded rows, so old ones may have rows that were decoded before.
    key = windows[1].key
    topic.decoder(repairs=(Repair(key, 0, 3, "again"),)).decode(key)
    assert topic.erasure.without_raw_row() == {}
    assert {window for _, window in read} == {key}
    assert ("changes", key) in read
