"""Folders of the lake: a missing file reads as empty, and an error names the file that cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_assets.errors import ConfigurationError, LakeNotWritableError
from platform_assets.lake.failures import LakeNotReadableError
from platform_assets.lake.location import Folder, Lake
from platform_assets.model.tables import TableRef


def test_a_folder_that_does_not_exist_has_no_files(tmp_path: Path) -> None:
    folder = Folder.at(tmp_path / "a")
    assert (folder.files(), folder.files("b"), folder.read("c"), folder.size("c"), folder.has("c")) == (
        [],
        [],
        None,
        None,
        False,
    )
    folder.delete()


def test_a_file_in_the_place_of_a_folder_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    folder = Folder.at(tmp_path / "a")
    for read in (folder.files, lambda: folder.read("c"), lambda: folder.size("c"), lambda: folder.has("c")):
        with pytest.raises(LakeNotReadableError, match=f"cannot be read at {folder}.*: Not a directory"):
            read()
    with pytest.raises(LakeNotWritableError, match="cannot be written"):
        folder.write("c", b"y")


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    folder = Folder.at(tmp_path) / "a" / "b"
    for content in (b"first", b"second"):
        folder.write("c.json", content)
        assert folder.read("c.json") == content
    assert folder.files() == ["c.json"]
    assert folder.size("c.json") == 6
    assert (folder.name, str(folder)) == ("b", str(tmp_path / "a" / "b"))


@pytest.mark.parametrize(
    "name", ["../outside", "below/../../outside", "./_log", "//_log", "{outside}", "file://{outside}"]
)
def test_only_files_below_a_folder_are_erased(tmp_path: Path, name: str) -> None:
    """Other programs write paths to a table's log."""
    folder, outside = Folder.at(tmp_path / "table"), tmp_path / "outside"
    outside.write_bytes(b"x")
    for inside in ("_log", "below/a"):
        folder.write(inside, b"x")
    assert not folder.has(name.format(outside=outside))
    folder.erase([name.format(outside=outside), "below/a"])
    assert outside.exists()
    assert (folder.has("_log"), folder.has("below/a")) == (True, False)


def test_a_stamp_is_another_one_once_there_are_other_bytes(tmp_path: Path) -> None:
    folder = Folder.at(tmp_path)
    assert folder.stamp("c.json") is None
    folder.write("c.json", b"first")
    first = folder.stamp("c.json")
    assert first == folder.stamp("c.json") is not None
    folder.write("c.json", b"other")
    assert folder.stamp("c.json") not in (None, first)
    with (tmp_path / "c.json").open("ab") as file:
        file.write(b" and more")
    assert len({first, folder.stamp("c.json")}) == 2


def test_each_table_has_the_folder_of_its_name(tmp_path: Path) -> None:
    lake = Lake.at(f"file://{tmp_path}")
    for name in ("raw/orders", "dead_letters/orders"):
        assert lake.table(TableRef.parse(name)).path == tmp_path / name


@pytest.mark.parametrize("root", ["", "lake", "gs://bucket/lake", "./lake"])
def test_a_root_that_is_no_absolute_local_path_is_refused(root: str) -> None:
    with pytest.raises(ConfigurationError, match="absolute path"):
        Lake.at(root)


def test_folders_that_the_platform_cannot_have_made_are_no_tables_and_no_replays(tmp_path: Path) -> None:
    for folder in (
        "raw/orders",
        "raw/no topic\x1b[31m",
        "raw/" + "x" * 250,
        "decoded/![a](b)",
        "replays/one",
        "replays/<b>",
    ):
        (tmp_path / folder / "_delta_log").mkdir(parents=True)
        (tmp_path / folder / "_delta_log" / f"{0:020}.json").touch()
    lake = Lake.at(tmp_path)
    assert lake.tables() == [TableRef.raw("orders")]
    assert lake.replays() == ["one"]
