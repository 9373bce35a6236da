"""Sealed windows that are not loaded: one process queries them repeatedly, as a sensor does."""

from __future__ import annotations

import random
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from platform_assets.lake import delta_log
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger import followed, rollback, unloaded
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef
from testbed.samples import cut, edge, receipt, recorded

TOPIC = "clicks"
TABLE = TableRef.raw(TOPIC)


def sealed(root: Path, windows: int) -> list[SealedWindow]:
    return recorded(root, TOPIC, [{0: n * 10, 1: n} for n in range(windows + 1)])


def seal_more(ledger: Ledger, first: int, number: int) -> list[SealedWindow]:
    cuts = [cut(TOPIC, edge(n), {0: n * 10, 1: n}) for n in range(first + 1, first + number + 1)]
    assert ledger.record_cuts(cuts, edge(first))
    return ledger.windows(TOPIC, start=edge(first))


def found(ledger: Ledger, newest: int, just_sealed: list[SealedWindow] | None = None) -> list[str]:
    return list(unloaded.find(ledger, TABLE, edge(newest), just_sealed).windows)


def test_windows_without_a_receipt_are_found_and_those_of_other_tables_do_not_count(tmp_path: Path) -> None:
    windows, ledger = sealed(tmp_path, 4), Ledger(Lake.at(tmp_path))
    ledger.record_receipts([receipt(windows[1]), receipt(windows[0], table=TableRef.raw("others"))])
    assert found(ledger, 4) == [windows[n].key for n in (0, 2, 3)]
    assert found(ledger, 4) == [windows[n].key for n in (0, 2, 3)]
    ledger.record_receipts([receipt(windows[2])])
    assert found(ledger, 4) == [windows[n].key for n in (0, 3)]


@pytest.mark.parametrize("given", [False, True], ids=["read from the ledger", "given by the tick that sealed them"])
def test_what_is_followed_equals_what_a_new_process_finds(tmp_path: Path, rng: random.Random, given: bool) -> None:
    windows, ledger, newest = sealed(tmp_path, 3), Ledger(Lake.at(tmp_path)), 3
    loaded: set[str] = set()
    for _ in range(12):
        new: list[SealedWindow] = []
        if rng.random() < 0.6:
            new = seal_more(ledger, newest, rng.randrange(1, 4))
            newest += len(new)
            windows += new
        if rng.random() < 0.6:
            some = [w for w in windows if w not in new and rng.random() < 0.4]
            ledger.record_receipts([receipt(w, version=1) for w in some])
            loaded |= {w.key for w in some}
        followed = found(ledger, newest, new if given else None)
        assert followed == [w.key for w in windows if w.key not in loaded]
    unloaded._known.clear()
    assert found(ledger, newest) == followed


def test_nothing_is_opened_while_all_is_loaded_and_nothing_new_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows, ledger = sealed(tmp_path, 2), Ledger(Lake.at(tmp_path))
    ledger.record_receipts([receipt(w) for w in windows])
    assert found(ledger, 2) == []
    monkeypatch.setattr(Folder, "delta", lambda folder: pytest.fail(f"opened {folder}"))
    monkeypatch.setattr(Folder, "read", lambda folder, name: pytest.fail(f"read {name} of {folder}"))
    assert found(ledger, 2) == []


def test_while_windows_wait_and_nothing_was_recorded_no_table_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (window,), ledger = sealed(tmp_path, 1), Ledger(Lake.at(tmp_path))
    assert found(ledger, 1) == [window.key]
    monkeypatch.setattr(Folder, "delta", lambda folder: pytest.fail(f"opened {folder}"))
    assert found(ledger, 1) == [window.key]


def test_the_newest_acceptance_of_a_window_is_told(tmp_path: Path) -> None:
    windows, ledger = sealed(tmp_path, 2), Ledger(Lake.at(tmp_path))
    assert not unloaded.find(ledger, TABLE, edge(2)).accepted
    before = datetime.now(UTC)
    for reason in ("first", "second"):
        ledger.record_acceptance(windows[1], {0: [OffsetRange(10, 12)]}, reason)
    accepted = unloaded.find(ledger, TABLE, edge(2)).accepted
    assert list(accepted) == [windows[1].key]
    assert before <= accepted[windows[1].key] <= datetime.now(UTC)


def test_a_ledger_that_was_put_back_is_read_again(tmp_path: Path) -> None:
    windows, ledger = sealed(tmp_path, 3), Ledger(Lake.at(tmp_path))
    ledger.record_receipts([receipt(windows[0])])
    shutil.copytree(tmp_path / "_ledger" / "commits", tmp_path / "backup")
    ledger.record_receipts([receipt(windows[1])])
    assert found(ledger, 3) == [windows[2].key]
    shutil.rmtree(tmp_path / "_ledger" / "commits")
    shutil.copytree(tmp_path / "backup", tmp_path / "_ledger" / "commits")
    assert found(ledger, 3) == [windows[1].key, windows[2].key]


def test_windows_are_read_with_their_offsets_and_no_others(tmp_path: Path) -> None:
    windows, ledger = sealed(tmp_path, 5), Ledger(Lake.at(tmp_path))
    wanted = [windows[0].window, windows[3].window]
    assert unloaded.read(ledger, TOPIC, wanted) == [windows[0], windows[3]]
    assert unloaded.read(ledger, TOPIC, []) == []


class Reads:
    """Counts reads in a lake's folders, and fails if a table is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: list[str] = []
        read = Folder.read

        def counted(folder: Folder, name: str) -> bytes | None:
            self.files.append(name)
            return read(folder, name)

        monkeypatch.setattr(Folder, "read", counted)
        for name in ("delta", "open"):
            monkeypatch.setattr(Folder, name, lambda folder, *_: pytest.fail(f"opened {folder}"))


def test_the_ticks_after_a_load_read_its_commit_once_for_all_topics_and_open_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ticks together make one small read for each new commit, however many windows the ledger has."""
    topics, ledger, windows = [f"clicks-{n}" for n in range(10)], Ledger(Lake.at(tmp_path)), 30
    tables = [TableRef.raw(topic) for topic in topics]
    for topic in topics:
        recorded(tmp_path, topic, [{0: n * 10} for n in range(windows + 1)])
        ledger.record_receipts([receipt(w) for w in ledger.windows(topic)[:-1]])
    for table in tables:
        assert len(unloaded.find(ledger, table, edge(windows)).windows) == 1
    for topic in topics:
        ledger.record_receipts([receipt(ledger.windows(topic)[-1])])
    reads = Reads(monkeypatch)
    for table in tables:
        assert not unloaded.find(ledger, table, edge(windows)).windows
    assert len(reads.files) == len(set(reads.files)) == len(topics)


def test_commits_that_change_nothing_that_counts_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows, ledger = sealed(tmp_path, 20), Ledger(Lake.at(tmp_path))
    assert len(found(ledger, 20)) == 20
    for window in windows[:17]:
        ledger.record_receipts([receipt(window)])
    log = ledger.lake.commits
    made = [delta_log.commit(log, version) for version in range(delta_log.newest_version(log) or 0)]
    assert any(c.rearranges for c in made if c is not None), "their files were folded"
    reads = Reads(monkeypatch)
    assert found(ledger, 20) == [w.key for w in windows[17:]]
    assert len(reads.files) == len(set(reads.files))


def test_entries_that_somebody_deletes_have_the_ledger_read_again(tmp_path: Path) -> None:
    windows, ledger = sealed(tmp_path, 3), Ledger(Lake.at(tmp_path))
    ledger.record_receipts([receipt(w) for w in windows[:2]])
    assert found(ledger, 3) == [windows[2].key]
    ledger.lake.commits.delta().delete(f"\"window\" = '{windows[0].key}'")
    assert found(ledger, 3) == [windows[0].key, windows[2].key]


def test_a_table_that_asks_after_very_many_commits_reads_the_ledger_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows, ledger = sealed(tmp_path, 12), Ledger(Lake.at(tmp_path))
    assert len(found(ledger, 12)) == 12
    monkeypatch.setattr(followed, "_KEPT", 4)
    followed.of.cache_clear()
    unloaded._known.clear()
    assert len(found(ledger, 12)) == 12
    for window in windows[:9]:
        ledger.record_receipts([receipt(window)])
    assert found(ledger, 12) == [w.key for w in windows[9:]]


def test_an_acceptance_among_the_commits_is_seen_with_its_time(tmp_path: Path) -> None:
    windows, ledger = sealed(tmp_path, 2), Ledger(Lake.at(tmp_path))
    assert not unloaded.find(ledger, TABLE, edge(2)).accepted
    ledger.record_acceptance(windows[1], {0: [OffsetRange(10, 12)]}, "seen")
    assert len(found(ledger, 2)) == 2
    followed_at = unloaded.find(ledger, TABLE, edge(2)).accepted
    unloaded._known.clear()
    assert followed_at == unloaded.find(ledger, TABLE, edge(2)).accepted
    assert list(followed_at) == [windows[1].key]


def test_loads_that_are_forgotten_are_seen_before_the_next_edge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a table is restored, the ledger forgets the table's later loads. The daemon keeps running meanwhile."""
    windows, ledger = sealed(tmp_path, 2), Ledger(Lake.at(tmp_path))
    ledger.record_receipts([receipt(windows[0], version=1), receipt(windows[1], version=2)])
    assert found(ledger, 2) == []
    assert rollback.forget_loads(ledger.lake, TABLE, 1) == (windows[1].key,)
    monkeypatch.setattr(followed, "_LATELY_SECONDS", 0.0)
    assert found(ledger, 2) == [windows[1].key]
