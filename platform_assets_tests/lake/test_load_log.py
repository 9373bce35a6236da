"""Reading a table's own log: loads, files, and commits of other writers."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote

import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from platform_assets.errors import LedgerCorruptError
from platform_assets.lake import holdings, load_log, raw_table
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Folder
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.offsets import Cut, OffsetRange, TopicRanges
from platform_assets.model.tables import TableLoad, TableRef
from platform_assets.model.windows import key_of
from testbed.samples import append, edge, overwrite, rows, sealed

METADATA = LoadMetadata(
    "orders.eu",
    "B" * 22,
    3,
    sealed("t", "2026-01-01-05:00").window,
    TopicRanges({0: OffsetRange(3, 2**62), 5: OffsetRange(0, 0)}),
    "load",
    "run",
    (edge(2), Cut({0: 1, 5: 0})),
)


def windows(*numbers: int) -> list[SealedWindow]:
    return [sealed("t", key_of(edge(n)), p0=(10 * n, 10 * n + 10)) for n in numbers]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "raw" / "t"


# --- metadata of a commit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_cut", [METADATA.first_cut, None])
def test_metadata_comes_back_as_it_was_written(first_cut: tuple[object, Cut] | None) -> None:
    metadata = METADATA if first_cut else replace(METADATA, first_cut=None)
    text = metadata.to_json()
    assert LoadMetadata.from_json(text) == metadata
    assert "\n" not in text


def test_the_form_of_the_metadata_stays() -> None:
    """Other programs read the metadata."""
    fields = json.loads(METADATA.to_json())
    assert fields["platform_assets"] == 1
    assert (fields["topic"], fields["generation"]) == ("orders.eu", 3)
    assert (fields["window"], fields["window_end"]) == ("2026-01-01-05:00", "2026-01-01-06:00")
    assert fields["ranges"][0] == {"topic_id": "B" * 22, "partition": 0, "start": 3, "end": 2**62}


def test_a_window_whose_length_changed_keeps_its_end_in_the_metadata() -> None:
    window = replace(METADATA.window, end=METADATA.window.start + timedelta(minutes=1))
    found = LoadMetadata.from_json(replace(METADATA, window=window).to_json())
    assert found is not None
    assert found.window == window


@pytest.mark.parametrize("text", [None, "", "a note", "[1]", "3", "null", '{"somebody": "else"}'])
def test_what_others_write_into_commits_is_not_taken_for_a_load(text: str | None) -> None:
    assert LoadMetadata.from_json(text) is None


def test_metadata_of_a_later_release_is_refused() -> None:
    text = json.dumps({**json.loads(METADATA.to_json()), "platform_assets": 2})
    with pytest.raises(LedgerCorruptError, match="version 2, but this release supports only 1: upgrade"):
        LoadMetadata.from_json(text)


# --- loads ----------------------------------------------------------------------------------------------------------


def test_a_folder_without_a_commit_is_no_table(table: Path) -> None:
    """A process may be killed while it creates the table."""
    assert not load_log.exists(Folder.at(table))
    assert load_log.newest_load(Folder.at(table)) is None
    assert load_log.load_beyond(Folder.at(table), None) is None
    (table / "_delta_log").mkdir(parents=True)
    assert not load_log.exists(Folder.at(table))
    raw_table.create(Folder.at(table), "t")
    assert load_log.exists(Folder.at(table))
    assert load_log.newest_load(Folder.at(table)) is None


def test_loads_are_told_from_other_commits_newest_first(tmp_path: Path, table: Path) -> None:
    first, second = windows(0, 1)
    overwrite(tmp_path, first, load_id="a")
    append(tmp_path, "t", rows(second.key, {0: [3]}))
    overwrite(tmp_path, second, load_id="b")
    DeltaTable(table).optimize.compact()
    write_deltalake(
        table,
        rows(first.key, {0: [3]}),
        mode="append",
        commit_properties=CommitProperties(custom_metadata={"userMetadata": "a note"}),
    )
    found = list(load_log.load_commits(Folder.at(table)))
    assert [(c.metadata.load_id, c.metadata.window) for c in found] == [("b", second.window), ("a", first.window)]
    assert [c.version for c in found] == [3, 1]
    newest = load_log.newest_load(Folder.at(table))
    assert newest == found[0]


def test_a_load_is_found_under_any_number_of_other_commits(tmp_path: Path, table: Path) -> None:
    (first,) = windows(0)
    overwrite(tmp_path, first, load_id="a")
    for _ in range(25):
        append(tmp_path, "t", rows(first.key, {0: [3]}))
    for found in (
        load_log.newest_load(Folder.at(table)),
        load_log.load_beyond(Folder.at(table), None),
    ):
        assert found is not None
        assert (found.version, found.metadata.load_id) == (1, "a")


def test_a_load_beyond_an_edge_is_found_though_an_old_window_was_loaded_last(tmp_path: Path, table: Path) -> None:
    for window in (*windows(0, 1, 2), *windows(0)):
        overwrite(tmp_path, window)
    beyond = load_log.load_beyond(Folder.at(table), edge(2))
    assert beyond is not None
    assert beyond.metadata.window.end == edge(3)
    assert load_log.load_beyond(Folder.at(table), edge(3)) is None


def test_a_load_beyond_an_edge_is_found_whenever_it_came(tmp_path: Path, table: Path) -> None:
    first, second = windows(0, 1)
    overwrite(tmp_path, first)
    assert load_log.load_beyond(Folder.at(table), edge(1)) is None
    for window in (second, first):
        overwrite(tmp_path, window)
    beyond = load_log.load_beyond(Folder.at(table), edge(1))
    assert beyond is not None
    assert beyond.metadata.window.end == edge(2)


def test_rows_of_a_later_window_that_no_load_wrote_are_no_load_beyond(tmp_path: Path, table: Path) -> None:
    overwrite(tmp_path, windows(0)[0])
    append(tmp_path, "t", rows("2027-01-01-00:00", {0: [3]}))
    append(tmp_path, "t", rows("2026-01-01-00:00", {0: [3]}))
    assert load_log.load_beyond(Folder.at(table), edge(1)) is None


# --- files ----------------------------------------------------------------------------------------------------------


def test_files_of_a_window_are_known_by_path_and_size(tmp_path: Path, table: Path) -> None:
    first, second = windows(0, 1)
    overwrite(tmp_path, first)
    overwrite(tmp_path, second, {0: [12]})
    before = holdings.files_of(Folder.at(table), first.key)
    assert (before.rows, len(before.paths)) == (10, 1)
    assert before.bytes == sum((table / unquote(p)).stat().st_size for p in before.paths)
    assert holdings.window_files(holdings.actions(Folder.at(table))) == {
        first.key: before,
        second.key: holdings.files_of(Folder.at(table), second.key),
    }
    assert holdings.files_of(Folder.at(table), "2026-01-01-09:00") == holdings.NO_FILES


def test_any_change_to_the_files_of_a_window_changes_their_digest_and_that_alone(tmp_path: Path, table: Path) -> None:
    first, second = windows(0, 1)
    overwrite(tmp_path, first)
    overwrite(tmp_path, second)
    version = DeltaTable(table).version()
    before, other = holdings.files_of(Folder.at(table), first.key), holdings.files_of(Folder.at(table), second.key)
    append(tmp_path, "t", rows(first.key, {0: [3]}))
    appended = holdings.files_of(Folder.at(table), first.key)
    DeltaTable(table).optimize.compact(partition_filters=[("window", "=", first.key)])
    folded = holdings.files_of(Folder.at(table), first.key)
    DeltaTable(table).delete(f"window = '{first.key}' and kafka_offset = 3")
    deleted = holdings.files_of(Folder.at(table), first.key)
    assert len({before.digest, appended.digest, folded.digest, deleted.digest}) == 4
    assert (before.rows, appended.rows, folded.rows, deleted.rows) == (10, 11, 11, 9)
    assert holdings.files_of(Folder.at(table), second.key) == other
    assert holdings.files_of(Folder.at(table), first.key, version) == before


@pytest.mark.usefixtures("partitioned")
def test_the_same_rows_written_again_are_other_files(tmp_path: Path, table: Path) -> None:
    """The rewritten files have the same sizes, but different names."""
    (first,) = windows(0)
    overwrite(tmp_path, first)
    before = holdings.files_of(Folder.at(table), first.key)
    overwrite(tmp_path, first, load_id="again")
    after = holdings.files_of(Folder.at(table), first.key)
    assert (after.bytes, after.rows) == (before.bytes, before.rows)
    assert after.digest != before.digest


def test_rows_are_unknown_where_a_file_has_no_statistics() -> None:
    files = [DataFile("a", {}, 10, {"numRecords": 3}), DataFile("b", {}, 20, None)]
    assert holdings.files_of_adds(files).rows is None
    assert holdings.files_of_adds(files[:1]).rows == 3


def test_metadata_say_what_a_derived_window_was_made_from() -> None:
    load = TableLoad(TableRef.raw("orders.eu"), 12, "the raw load", "a digest")
    made = replace(METADATA, made_from=load)
    assert LoadMetadata.from_json(made.to_json()) == made
    assert "made_from" not in json.loads(METADATA.to_json())


def test_metadata_name_the_engine_and_those_of_earlier_releases_name_none() -> None:
    made = replace(METADATA, engine="columnar")
    assert LoadMetadata.from_json(made.to_json()) == made
    assert json.loads(made.to_json())["engine"] == "columnar"
    earlier = LoadMetadata.from_json(METADATA.to_json())
    assert earlier is not None
    assert earlier.engine is None
