"""Erasure of records of windows that expired: no bytes stay unnoticed, and no file that is in use is deleted. No Kafka, no
Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import Schema

from platform_assets.errors import ErasureUnfinishedError, UnreadableFilesLeftError
from platform_assets.lake import derived_table, holdings
from platform_assets.lake.location import SHARED, shared_folder
from platform_assets.lake.vacuum import vacuum as vacuumed
from platform_assets.ledger import decisions
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.derived import DerivedRef
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableKind
from platform_assets.windows.decide.deciding import Deciding
from platform_assets.windows.derive import erased
from platform_assets.windows.erase import expired_files
from platform_assets.windows.maintain.expiry_reasons import ERASING
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, found_in, proved, shown
from platform_assets_tests.support.expiries import (
    KEEP,
    KINDS,
    SEEN,
    held,
    keys,
    lose_and_rebuild_ledger,
    made,
    run,
    table,
)
from platform_assets_tests.support.recovery import vacuum

ZERO = OffsetRange(0, 1)
NAMES = DerivedRef("names")


@pytest.fixture
def topic(layout: str, tmp_path: Path) -> MadeTopic:
    """A decoded topic of three windows, all of which are past its `keep`."""
    found = made(tmp_path / "lake", 3)
    run(found, SEEN)
    return found


def erase(topic: MadeTopic, *erased: bytes, **options: Any) -> list[str]:
    """Erase keys as the command does; return what it says."""
    said: list[str] = []
    deciding(topic, said.append).erasure({}, list(erased), **options)
    return said


def deciding(topic: MadeTopic, report: Callable[[str], None] = lambda text: None) -> Deciding:
    return Deciding(
        topic.declaration, topic.ledger, _never, _never, _never, AUTHOR, report, confirm=lambda question: None
    )


def _never() -> NoReturn:
    raise AssertionError


def derive(topic: MadeTopic, run_id: str, value: str) -> Path:
    """Replace all rows of `derived/names` by one with this text, as a run does. Return the new file."""
    lake = topic.ledger.lake
    folder, rows = lake.table(NAMES), pa.table({"name": [value]})
    file = topic.root / "derived" / "names" / "groups" / run_id / "part-0.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(rows, file)
    schema = Schema.from_arrow(rows.schema)
    derived_table.create(folder, NAMES, schema)
    source, digest = table(topic, "decoded"), derived_table.RowsDigest(1, 1)
    inputs = {"decoded/people": derived_table.InputVersion(source.version(), str(source.metadata().id))}
    seen = erased.seen(lake, [topic.declaration.decoded_table])
    made = derived_table.Derivation(NAMES, run_id, "x", inputs, "whole", "", {}, {}, digest, digest, digest, seen)
    new = derived_table.written_files(folder, f"groups/{run_id}", [])
    derived_table.commit(folder, folder.delta(), made, new, (), schema)
    return file


def completed(topic: MadeTopic) -> list[tuple[str, ...]]:
    """Return the windows of each completed erasure."""
    return [decision.windows for decision in decisions.decisions(topic.ledger.lake, topic.topic, ("erased",))]


# --- derived tables ----------------------------------------------------------------------------------------------


def test_derived_tables_learn_of_an_erased_key_whose_rows_have_expired_everywhere(topic: MadeTopic) -> None:
    past, lake = derive(topic, "run-1", "v-2-1-1 of k1"), topic.ledger.lake
    run(topic)
    derive(topic, "run-2", "somebody else")
    vacuum(table(topic, "raw"))
    vacuum(table(topic, "decoded"))
    assert past.exists()
    assert erased.left(lake, topic.topic) == []

    said = erase(topic, b"k1")
    assert completed(topic) == [()]
    assert erased.left(lake, topic.topic) == [NAMES]
    assert "NOT ERASED YET: derived/names" in said[-1]
    assert topic.erasure.unfinished() == []
    derive(topic, "run-3", "somebody else")
    assert erased.seen(lake, [NAMES]) == {topic.topic: 1}
    proved(topic)


def test_an_erasure_that_only_deletes_files_of_expired_windows_is_recorded_once(topic: MadeTopic) -> None:
    run(topic)
    vacuum(table(topic))
    assert topic.erasure.uncompared().files
    assert "erased" in erase(topic, b"k1", forget_keys=True)[-1]
    assert completed(topic) == [()]
    topic.erasure.run(AUTHOR)
    assert completed(topic) == [()]


# --- rows that are back ------------------------------------------------------------------------------------------


def test_an_erasure_rewrites_rows_that_came_back_and_upkeep_removes_them(topic: MadeTopic) -> None:
    version = {kind: table(topic, kind).version() for kind in KINDS}
    run(topic)
    for kind in KINDS[:2]:
        table(topic, kind).restore(version[kind])
    topic.erasure.record(topic.erasure.at_offsets({0: (ZERO,)}), AUTHOR)
    assert run(topic).held == {keys(topic)[0]: ERASING}
    topic.erasure.run(AUTHOR)
    assert found_in(topic.root, b"v-0-0-0") == []
    assert {o for k, p, o in held(topic) if (k, p) == (keys(topic)[0], 0)} == {1}
    assert run(topic).held == {}
    assert held(topic) == held(topic, "decoded") == set()
    proved(topic)


def test_an_erasure_by_key_is_complete_although_raw_rows_came_back(topic: MadeTopic) -> None:
    version = table(topic).version()
    run(topic)
    table(topic).restore(version)
    assert "erased" in erase(topic, b"k1")[-1]
    for number in range(3):
        assert found_in(topic.root, b"v-%d-0-1" % number) == []
    assert len(held(topic)) == 6
    assert run(topic).held == {}
    assert held(topic) == set()
    proved(topic)


def test_an_erasure_keeps_all_other_rows_of_windows_that_somebody_restored(topic: MadeTopic) -> None:
    version = {kind: table(topic, kind).version() for kind in KINDS}
    before = held(topic)
    run(topic)
    topic.declaration = replace(topic.declaration, keep=None)
    for kind in KINDS[:2]:
        table(topic, kind).restore(version[kind])
    erase(topic, b"k1")
    left = {(k, p, o) for k, p, o in before if o % 2 == 0}
    assert held(topic) == held(topic, "decoded") == left
    assert not any(r.is_expired for kind in KINDS[:2] for r in topic.receipts(kind).values())
    # Dead letters were not restored. The check names this remedy.
    for key in keys(topic):
        topic.decoder().decode(key)
    assert held(topic) == held(topic, "decoded") == left
    proved(topic)


def test_an_erasure_names_returned_rows_that_nothing_proves_until_they_are_deleted(topic: MadeTopic) -> None:
    version = table(topic).version()
    run(topic)
    lose_and_rebuild_ledger(topic)
    table(topic).restore(version)
    with pytest.raises(ErasureUnfinishedError, match="has expired: delete its rows") as raised:
        erase(topic, b"k1")
    assert "platform-assets load" not in str(raised.value)
    assert len(held(topic)) == 12
    for key in keys(topic):
        table(topic).delete(f"window = '{key}'")
    assert "erased" in erase(topic, b"k1")[-1]
    for number in range(3):
        assert found_in(topic.root, b"v-%d-0-1" % number) == []


def without_recording_raw(monkeypatch: pytest.MonkeyPatch, instead: Callable[[], None]) -> None:
    """Call `instead` when upkeep is about to record that it has removed raw rows."""
    record = Ledger.record_receipts

    def recorded(ledger: Ledger, receipts: Sequence[Receipt]) -> None:
        if any(r.table.kind == "raw" and r.is_expired for r in receipts):
            monkeypatch.setattr(Ledger, "record_receipts", record)
            instead()
        record(ledger, receipts)

    monkeypatch.setattr(Ledger, "record_receipts", recorded)


@pytest.mark.parametrize("first", ["upkeep", "erase"])
def test_an_erasure_in_windows_whose_removal_was_not_recorded_needs_no_load(
    topic: MadeTopic, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_recording_raw(monkeypatch, _never)
    with pytest.raises(AssertionError):
        run(topic)
    assert not any(r.is_expired for r in topic.receipts().values())
    topic.erasure.record(topic.erasure.at_offsets({0: (ZERO, OffsetRange(2, 3))}), AUTHOR)
    if first == "upkeep":
        assert run(topic).held == {}
        assert all(r.is_expired for r in topic.receipts().values())
    topic.erasure.run(AUTHOR)
    assert found_in(topic.root, b"v-0-0-0") == found_in(topic.root, b"v-1-0-0") == []
    assert run(topic).held == {}
    assert held(topic) == held(topic, "decoded") == set()
    assert all(r.is_expired for kind in KINDS for r in topic.receipts(kind).values())
    proved(topic)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_rows_that_upkeep_removed_are_not_recorded_as_erased(
    topic: MadeTopic, kind: TableKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep is killed before it records the removal, and an erasure of one record finds the removal."""
    record = Ledger.record_receipts

    def recorded(ledger: Ledger, receipts: Sequence[Receipt]) -> None:
        if any(r.table.kind == kind and r.is_expired for r in receipts):
            _never()
        record(ledger, receipts)

    before = topic.receipts(kind)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "record_receipts", recorded)
        with pytest.raises(AssertionError):
            run(topic)
    topic.erasure.record(topic.erasure.at_offsets({0: (ZERO,)}), AUTHOR)
    topic.erasure.run(AUTHOR)
    found = topic.receipts(kind)[keys(topic)[0]]
    assert found.is_expired
    run(topic)
    assert topic.receipts(kind)[keys(topic)[0]].holes == found.holes
    expected = {key: {**(r.holes or {}), "expired": r.rows} for key, r in before.items()}
    assert {key: r.holes for key, r in topic.receipts(kind).items()} == expected


def test_an_erasure_between_a_removal_and_its_record_is_complete(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def erasing() -> None:
        topic.erasure.record(topic.erasure.at_offsets({0: (ZERO,)}), AUTHOR)
        topic.erasure.run(AUTHOR)

    without_recording_raw(monkeypatch, erasing)
    run(topic)
    assert found_in(topic.root, b"v-0-0-0") == []
    assert run(topic).held == {}
    assert all(r.is_expired for r in topic.receipts().values())
    proved(topic)


def test_offsets_of_an_expired_window_are_named_as_such(topic: MadeTopic) -> None:
    run(topic)
    said: list[str] = []
    deciding(topic, said.append).erasure({0: (ZERO,)}, [])
    assert "1 offsets of an expired window" in said[0]


# --- files of derived tables --------------------------------------------------------------------------------------


def test_files_that_cannot_be_read_are_left_and_named(topic: MadeTopic) -> None:
    """Another program may be writing them, and may commit them next."""
    first, *_, last = keys(topic)
    run(topic)
    vacuum(table(topic))
    folder = topic.root / "decoded" / topic.topic
    since = table(topic, "decoded").version()
    left = [folder / "part-x.parquet", folder / shared_folder(first, last, since, "y") / "a.parquet"]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    assert SHARED in str(left[1])
    planned = replace(deciding(topic), author=None).erasure({}, [b"k1"])
    assert planned["unreadable"] == {"decoded/people": sorted(str(path.relative_to(folder)) for path in left)}
    with pytest.raises(UnreadableFilesLeftError) as raised:
        erase(topic, b"k1")
    assert set(raised.value.files) == {"decoded/people"}
    assert all(path.exists() and path.name in str(raised.value) for path in left)
    assert found_in(topic.root, b"v-2-1-1") == []
    # The remedy that the message names.
    assert "`platform-assets vacuum decoded/people`" in str(raised.value)
    table(topic, "decoded").alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 hours"})
    vacuumed(replace(topic.declaration.raw_table, kind="decoded"), topic.lake.table(topic.declaration.decoded_table))
    assert not any(path.exists() for path in left)
    erase(topic, b"k1")


@pytest.mark.long
def test_a_raw_file_that_cannot_be_read_is_named(topic: MadeTopic) -> None:
    run(topic)
    path = topic.root / "raw" / topic.topic / "part-x.parquet"
    path.write_bytes(b"half")
    with pytest.raises(UnreadableFilesLeftError, match=r"raw/people: part-x\.parquet"):
        erase(topic, b"k1")
    assert found_in(topic.root, b"v-2-1-1") == []
    assert path.exists()
    path.unlink()
    erase(topic, b"k1")


def test_a_file_that_is_in_use_again_by_the_time_of_deletion_is_left(topic: MadeTopic) -> None:
    version = table(topic, "decoded").version()
    run(topic)
    vacuum(table(topic))
    found = topic.erasure.uncompared()
    assert sum(map(len, found.files.values())) >= 3
    table(topic, "decoded").restore(version)
    expired_files.delete(topic.ledger, found)
    assert len(held(topic, "decoded")) == 12


# --- bytes that stayed --------------------------------------------------------------------------------------------


def test_adopted_rules_reach_records_of_expired_windows_on_disk(topic: MadeTopic, tmp_path: Path) -> None:
    run(topic)
    other = MadeTopic(topic.root, topic="origin")
    sealed = other.seal([{0: [(b"k1", b"w")]}])
    other.fill(sealed)
    erase(other, b"k1")
    assert found_in(topic.root, b"v-2-1-1")
    deciding(topic).adoption("origin")
    for number in range(3):
        assert found_in(topic.root, b"v-%d-1-1" % number) == []


@pytest.mark.long
def test_adopted_rules_are_one_decision_whatever_the_number_of_files(layout: str, tmp_path: Path) -> None:
    topic = MadeTopic(tmp_path / "lake")
    topic.declaration = replace(topic.declaration, records_per_file=1)
    for sealed in topic.seal([{0: [(b"k1", b"a"), (b"k1", b"b"), (b"k2", b"c")]}, {0: [(b"k1", b"d")]}]):
        topic.fill([sealed])
    other = MadeTopic(topic.root, topic="origin")
    other.fill(other.seal([{0: [(b"k1", b"w")]}]))
    erase(other, b"k1")
    deciding(topic).adoption("origin")
    made = decisions.decisions(topic.lake, topic.topic, ("erase",))
    first, second = keys(topic)
    assert [each.windows for each in made] == [(), (first, second)]
    assert made[1].details["offsets"] == {first: [[0, 0, 2]], second: [[0, 3, 4]]}
    assert {o for _, _, o in held(topic)} == {2}


def test_records_are_found_although_upkeep_removes_their_windows_meanwhile(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions, done = holdings.actions, list[int]()

    def then(folder: Any, *args: Any, **options: Any) -> Any:
        if not done:
            done.append(1)
            run(topic)
        return actions(folder, *args, **options)

    monkeypatch.setattr(holdings, "actions", then)
    erase(topic, b"k1", forget_keys=True)
    assert found_in(topic.root, b"v-2-1-1") == []


def test_decoded_rows_are_deleted_although_a_part_of_their_raw_rows_is_on_disk(layout: str, tmp_path: Path) -> None:
    """A VACUUM of the raw table was killed after it had deleted one of a window's files."""
    topic = MadeTopic(tmp_path / "lake")
    topic.declaration = replace(topic.declaration, keep=KEEP, records_per_file=1)
    topic.fill(
        topic.seal([{0: [(b"a", b"first-value")], 1: [(b"b", b"second-value")]}, {0: [(b"b", b"third-value")], 1: []}])
    )
    run(topic, SEEN)
    run(topic)
    (gone, *_) = (place for place in found_in(topic.root, b"first-value") if place.startswith("raw/"))
    (topic.root / gone.removesuffix(": value")).unlink()
    assert found_in(topic.root, b"first-value")
    assert any(place.startswith("raw/") for place in found_in(topic.root, b"second-value"))
    erase(topic, b"a")
    assert found_in(topic.root, b"first-value") == []
    # The other window can be compared.
    assert found_in(topic.root, b"third-value")


def test_samples_and_bounds_of_windows_that_cannot_be_compared_are_deleted(layout: str, tmp_path: Path) -> None:
    """Three values that failed an expectation are in the log and the ledger, and outlive their files."""
    topic = MadeTopic(tmp_path / "lake")
    topic.declaration = replace(topic.declaration, keep=KEEP)
    topic.fill(topic.seal([{0: [(b"a", b"FAILS-HERE")]}, {0: [(b"b", b"fine")]}]))
    run(topic, SEEN)
    run(topic)
    for kind in KINDS[:2]:
        vacuum(table(topic, kind))
    assert found_in(topic.root, b"FAILS-HERE")
    erase(topic, b"another")
    assert found_in(topic.root, b"FAILS-HERE") == [], shown(found_in(topic.root, b"FAILS-HERE"))
    proved(topic)
