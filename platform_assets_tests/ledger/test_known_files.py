"""A ledger followed by one process: whatever happens to the ledger's files, the process agrees with what a new process
reads, and it reads each file once."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from platform_assets.lake import remembered
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger import known_files, unloaded
from platform_assets.ledger.entries import COMMIT_COLUMNS, CUT_COLUMNS, SealedWindow
from platform_assets.ledger.known_files import KnownFiles
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from testbed.samples import cut, edge, receipt, recorded

TOPICS = ("clicks", "orders", "a.b_c-d")


def sealed(root: Path, topic: str, windows: int) -> list[SealedWindow]:
    return recorded(root, topic, [{0: n * 10, 1: n} for n in range(windows + 1)])


def by_delta_rs(folder: Path, partition: str, value: str) -> list[dict[str, Any]]:
    rows = DeltaTable(folder).to_pyarrow_table()
    return ordered(rows.filter(pc.equal(rows[partition], value)))


def ordered(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=repr)


def agrees(root: Path) -> None:
    """Fail unless the followed state equals what delta-rs reads from scratch."""
    lake = Lake.at(root)
    for topic in TOPICS:
        of_topic, of_table = known_files.of_cuts(lake).rows(topic), known_files.of_commits(lake).rows(f"raw/{topic}")
        assert of_topic.column_names == list(CUT_COLUMNS)
        assert of_table.column_names == list(COMMIT_COLUMNS)
        assert ordered(of_topic) == by_delta_rs(root / "_ledger" / "cuts", "topic", topic)
        assert ordered(of_table) == by_delta_rs(root / "_ledger" / "commits", "table", f"raw/{topic}")


@pytest.mark.parametrize("small", [0, 1 << 20], ids=["read where they are", "kept"])
def test_what_is_followed_is_what_delta_rs_reads(
    tmp_path: Path, rng: random.Random, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_files, "_SMALL_BYTES", small)
    ledger, windows = Ledger(Lake.at(tmp_path)), {t: sealed(tmp_path, t, 3) for t in TOPICS}
    for number in range(40):
        topic = rng.choice(TOPICS)
        newest = len(windows[topic])
        if rng.random() < 0.5:
            assert ledger.record_cuts(
                [cut(topic, edge(newest + 1), {0: newest * 10 + 10, 1: newest + 1})], edge(newest)
            )
            windows[topic] = ledger.windows(topic)
        else:
            ledger.record_receipts([receipt(w, version=number) for w in rng.sample(windows[topic], 2)])
        if rng.random() < 0.1:
            DeltaTable(tmp_path / "_ledger" / "commits").optimize.compact()
        if rng.random() < 0.1:
            DeltaTable(tmp_path / "_ledger" / "cuts").create_checkpoint()
        if number % 5 == 0:
            agrees(tmp_path)
    agrees(tmp_path)


@pytest.mark.parametrize("small", [0, 1 << 20], ids=["read where they are", "kept"])
def test_entries_are_found_by_their_times(
    tmp_path: Path, rng: random.Random, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most files are completely within the requested time, or completely outside it; the first file is longer."""
    monkeypatch.setattr(known_files, "_SMALL_BYTES", small)
    sealed(tmp_path, "clicks", 34)
    for n in range(35, 41):
        assert Ledger(Lake.at(tmp_path)).record_cuts([cut("clicks", edge(n), {0: n * 10, 1: n})], edge(n - 1))
    files = known_files.of_cuts(Lake.at(tmp_path))

    def edges(**asked: Any) -> Sequence[Any]:
        found: list[Any] = pc.unique(files.rows("clicks", ["edge"], **asked)["edge"]).sort().to_pylist()
        return found

    assert edges() == [edge(n) for n in range(41)]
    assert edges(start=edge(38)) == [edge(n) for n in (38, 39, 40)]
    assert edges(end=edge(1)) == [edge(0), edge(1)]
    assert edges(start=edge(3), end=edge(3)) == [edge(3)]
    assert edges(among=[edge(7), edge(2), edge(2.5)]) == [edge(2), edge(7)]
    assert edges(start=edge(41)) == []
    for _ in range(30):
        first, last = sorted(rng.choices(range(-1, 43), k=2))
        expected = [edge(n) for n in range(41) if first <= n <= last]
        assert edges(start=edge(first), end=edge(last)) == expected
        assert edges(start=edge(first), among=[edge(n) for n in range(20, last)]) == [
            at for at in expected if edge(20) <= at < edge(last)
        ]
    assert files.first("clicks") == edge(0)
    assert files.first("others") is None


def test_a_ledger_that_is_not_there_yet_has_no_entries_and_is_seen_once_it_is(tmp_path: Path) -> None:
    files = known_files.of_cuts(Lake.at(tmp_path))
    assert files.rows("clicks").num_rows == 0
    assert files.first("clicks") is None
    sealed(tmp_path, "clicks", 2)
    assert files.rows("clicks").num_rows == 6


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows, ledger = sealed(tmp_path, "clicks", 3), Ledger(Lake.at(tmp_path))
    ledger.record_receipts([receipt(w) for w in windows])
    before = (ledger.windows("clicks"), ledger.receipts(TableRef.raw("clicks")))
    monkeypatch.setattr(Folder, "delta", lambda folder, version=None: pytest.fail(f"opened {folder}"))
    monkeypatch.setattr(Folder, "open", lambda folder, name: pytest.fail(f"opened {name} of {folder}"))
    assert (ledger.windows("clicks"), ledger.receipts(TableRef.raw("clicks"))) == before


def test_a_ledger_in_the_place_of_another_is_read_again(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    sealed(one, "clicks", 5)
    sealed(other, "clicks", 2)
    ledger = Ledger(Lake.at(one))
    assert len(ledger.windows("clicks")) == 5
    shutil.rmtree(one / "_ledger" / "cuts")
    shutil.copytree(other / "_ledger" / "cuts", one / "_ledger" / "cuts")
    assert len(ledger.windows("clicks")) == 2


def test_a_file_that_is_another_than_it_was_is_read_again(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    sealed(one, "clicks", 1)
    recorded(other, "clicks", [{0: 5, 1: 5}, {0: 6, 1: 6}])
    ledger = Ledger(Lake.at(one))
    assert ledger.windows("clicks")[0].ranges.size == 11
    theirs = sorted((other / "_ledger" / "cuts").rglob("*.parquet"))
    for mine, its in zip(sorted((one / "_ledger" / "cuts").rglob("part*.parquet")), theirs, strict=True):
        os.replace(its, mine)
    assert ledger.windows("clicks")[0].ranges.size != 11


def test_an_earlier_releases_ledger_has_nulls_where_it_lacks_a_column(tmp_path: Path) -> None:
    windows, ledger = sealed(tmp_path, "clicks", 1), Ledger(Lake.at(tmp_path))
    ledger.record_receipts([receipt(w) for w in windows])
    table = DeltaTable(tmp_path / "_ledger" / "commits").to_pyarrow_table().drop_columns(["expectations"])
    files = KnownFiles(Lake.at(tmp_path).commits, "table", "window_start", COMMIT_COLUMNS)
    assert files.rows("raw/clicks")["expectations"].null_count == table.num_rows


def test_what_is_remembered_is_bounded_and_what_was_asked_for_last_stays() -> None:
    kept: remembered.Remembered[int, str] = remembered.Remembered(160)
    for number in range(20):
        kept.keep(number, "a", str(number), 10)
        kept.get(0, "a")
    assert [n for n in range(20) if kept.get(n, "a")] == [0, *range(5, 20)]
    assert kept.get(0, "b") is None
    kept.keep(0, "b", "other", 10)
    assert (kept.get(0, "b"), kept.get(0, "a")) == ("other", None)
    kept.keep(0, "b", "large", 11)
    assert kept.get(0, "b") is None


def test_what_is_unloaded_is_found_without_opening_the_ledger_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows, ledger = sealed(tmp_path, "clicks", 3), Ledger(Lake.at(tmp_path))
    ledger.record_receipts([receipt(windows[0])])
    ledger.receipts(TableRef.raw("clicks"))
    ledger.windows("clicks")
    monkeypatch.setattr(Folder, "delta", lambda folder, version=None: pytest.fail(f"opened {folder}"))
    assert list(unloaded.find(ledger, TableRef.raw("clicks"), edge(3)).windows) == [w.key for w in windows[1:]]
