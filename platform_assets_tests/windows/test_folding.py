"""Folds of a state in a lake: commits, crashes, races, readers, erasures, and files that other programs rewrite."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from platform_assets.checks import state as checks
from platform_assets.cli.state_snippets import as_of, changes_from, fresh_view, view_of_all
from platform_assets.errors import (
    ChangesOutdatedError,
    ConcurrentFoldError,
    FilesLostError,
    NoChangesError,
    StateOutdatedError,
)
from platform_assets.lake import changes_table, delta_log, state_table
from platform_assets.lake.location import Folder, Lake
from platform_assets.model.keeping import Keep
from platform_assets.model.state import StateDeclaration
from platform_assets.windows.maintain.merging import Upkeep
from platform_assets.windows.state import folding
from platform_assets.windows.state.folding import TopicState
from platform_assets_tests.support.decoded_topic import DecodedTopic, order
from platform_assets_tests.support.made_changes import COLUMNS, DAYS, MadeChanges, change
from platform_assets_tests.support.state_histories import LIVE, by_key, expected
from platform_assets_tests.support.state_lakes import STEPS, CrashedError, LakeHistory, crashing, fresh_rows
from platform_assets_tests.support.variants import long_after

A, B, C, D = DAYS[:4]


@pytest.fixture
def made(tmp_path: Path) -> MadeChanges:
    return MadeChanges(tmp_path, StateDeclaration(("id",), history=True))


def test_a_state_has_the_newest_row_of_each_key(made: MadeChanges) -> None:
    made.load(A, [change(1, A, 0, "old"), change(2, A, 1, "kept"), change(3, A, 2, "gone")])
    made.load(B, [change(1, B, 3, "new"), change(3, B, 4, None)])
    outcome = made.state().fold()
    assert (outcome.made, outcome.rows, outcome.deleted, outcome.through) == ("rebuild", 2, 1, B)
    assert {key: row["name"] for key, row in made.live().items()} == {1: "new", 2: "kept"}
    assert list(made.dead()) == [3]
    made.check()


def test_a_second_fold_changes_nothing(made: MadeChanges) -> None:
    made.load(A, [change(1, A, 0, "x")])
    made.state().fold()
    assert made.state().fold().made == "unchanged"
    assert made.state().pending().windows == ()


def test_a_late_window_neither_overwrites_nor_resurrects(made: MadeChanges) -> None:
    made.load(B, [change(1, B, 5, "new"), change(2, B, 6, None)])
    made.state().fold()
    made.load(A, [change(1, A, 0, "late"), change(2, A, 1, "late"), change(3, A, 2, "late")])
    outcome = made.state().fold()
    assert (outcome.made, outcome.windows, outcome.through) == ("fold", (A,), B)
    assert sorted(made.live()) == [1, 3]
    made.check()


def test_fresh_rows_have_the_values_of_a_replaced_window(made: MadeChanges) -> None:
    made.load(A, [change(1, A, 0, "old"), change(2, A, 1, "kept")])
    made.load(B, [change(1, B, 2, "replaced")])
    made.state().fold()
    made.load(B, [change(1, B, 2, "new")])
    state = made.state()
    since, is_folded = changes_from(state.pending())
    codes = fresh_view(state, LIVE.names, since, None, is_folded=is_folded)
    for code in (codes["polars"], codes["duckdb"]):
        found = fresh_rows(code)
        assert {row["id"]: row["name"] for row in found} == {1: "new", 2: "kept"}


@pytest.mark.parametrize(
    "declared",
    [
        StateDeclaration(("id",)),
        StateDeclaration(("id",), order="rev", deletes="none"),
        StateDeclaration(("id",), keep="first", deletes="none"),
        StateDeclaration(("id",), deletes="debezium"),
    ],
    ids=["position", "version", "first", "debezium"],
)
def test_a_view_of_all_changes_has_no_rows_that_a_replaced_window_lost(
    tmp_path: Path, declared: StateDeclaration
) -> None:
    made = MadeChanges(tmp_path, declared)
    made.load(A, [change(1, A, 0, "lost", rev=1), change(2, A, 1, "lost", rev=9), change(3, A, 2, "kept")])
    made.load(B, [change(2, B, 3, "b", rev=2)])
    made.load(C, [change(4, C, 4, "removed by age")])
    made.state().fold()
    made.load(A, [change(2, A, 1, "a", rev=1), change(3, A, 2, "kept")])
    made.folder.delta().delete(f"\"window\" = '{C}'")
    state = made.state()
    places = {"live": state.live_folder, "changes": state.changes_folder}
    opened = {name: folder.delta().to_pyarrow_dataset() for name, folder in places.items()}
    with duckdb.connect() as connection:
        for name, rows in opened.items():
            connection.register(name, rows)
        found = connection.sql(view_of_all(declared, state.opened().live.columns.names)).pl()
    second = "a" if declared.keep == "first" else "b"
    assert dict(found.select("id", "name").rows()) == {2: second, 3: "kept", 4: "removed by age"}


@pytest.mark.parametrize("folder", ["a lake's folder", "50% ü"])
def test_printed_code_reads_folders_with_any_name(tmp_path: Path, folder: str) -> None:
    made = MadeChanges(tmp_path / folder, StateDeclaration(("id",), history=True))
    made.load(A, [change(1, A, 0, "old"), change(2, A, 1, "kept")])
    made.state().fold()
    made.load(B, [change(1, B, 2, "new")])
    state = made.state()
    since, is_folded = changes_from(state.pending())
    codes = fresh_view(state, LIVE.names, since, None, is_folded=is_folded)
    codes_as_of = as_of(state, A, None)
    for reader in ("polars", "duckdb"):
        assert {row["id"]: row["name"] for row in fresh_rows(codes[reader])} == {1: "new", 2: "kept"}, reader
        rows = fresh_rows(codes_as_of[reader], "rows")
        assert {row["id"]: row["name"] for row in rows} == {1: "old", 2: "kept"}, reader


@pytest.fixture
def collected(made: MadeChanges, monkeypatch: pytest.MonkeyPatch) -> MadeChanges:
    """Return a state of windows B and C in which key 2 was deleted in B, and is no longer kept; key 4 was deleted in C."""
    made.declared = replace(made.declared, deletes_kept=Keep(1))
    monkeypatch.setattr(folding, "collectable", lambda *_: B)
    made.load(B, [change(1, B, 5, "new"), change(2, B, 6, None)])
    made.load(C, [change(3, C, 7, "other"), change(4, C, 8, None)])
    assert (made.state().fold().collected, list(made.dead())) == (B, [4])
    made.check()
    return made


def fresh(made: MadeChanges) -> list[int]:
    """Return the keys that the printed code for fresh rows finds."""
    state, found = made.state(), dict[str, Any]()
    since, is_folded = changes_from(state.pending())
    exec(fresh_view(state, state.opened().live.columns.names, since, None, is_folded=is_folded)["polars"], found)
    return sorted(found["fresh"].collect()["id"])


def test_a_late_window_does_not_bring_back_a_key_whose_delete_was_collected(collected: MadeChanges) -> None:
    late = [change(1, A, 0, "late"), change(2, A, 1, "late"), change(5, A, 2, "late"), change(6, A, 3, None)]
    collected.load(A, late)
    assert fresh(collected) == [1, 3, 5]
    assert collected.state().compare().is_equal
    outcome = collected.state().fold()
    assert (outcome.made, outcome.windows) == ("fold", (A,))
    assert (sorted(collected.live()), sorted(collected.dead())) == ([1, 3, 5], [4])
    collected.check()
    assert collected.state().compare().is_equal


def test_a_replaced_window_whose_deletes_were_collected_makes_the_state_again(collected: MadeChanges) -> None:
    collected.load(A, [change(2, A, 1, "before")])
    collected.state().fold()
    assert sorted(collected.live()) == [1, 3]
    collected.load(B, [change(1, B, 5, "new")], erased=6)
    assert "keys deleted up to window" in collected.state().pending().rebuild
    assert collected.state().fold().made == "rebuild"
    assert sorted(collected.live()) == [1, 2, 3], "the delete was erased, so the record before it counts"
    collected.check()


@pytest.mark.parametrize("step", STEPS)
def test_a_fold_that_collects_and_ends_at_any_step_is_completed_by_the_next(made: MadeChanges, step: str) -> None:
    made.declared = replace(made.declared, deletes_kept=Keep(1))
    with patch.object(folding, "collectable", lambda *_: ""):
        made.load(B, [change(1, B, 5, "row"), change(2, B, 6, "row")])
        made.state().fold()
    made.load(C, [change(1, C, 7, None)])
    with patch.object(folding, "collectable", lambda *_: C), pytest.raises(CrashedError):
        made.state(crashing(step)).fold()
    made.load(A, [change(1, A, 0, "late"), change(3, A, 1, None)])
    made.state().fold()
    assert list(made.live()) == [2]
    made.check()


def test_deletes_are_collected_without_pending_changes_too_but_not_a_truncate(made: MadeChanges) -> None:
    made.declared = StateDeclaration(("id",), deletes="debezium", deletes_kept=Keep(1))
    truncate = change(0, A, 0, None) | {"id": None}
    made.load(A, [truncate, change(1, A, 1, None), change(2, A, 2, "row")])
    with patch.object(folding, "collectable", lambda *_: ""):
        made.state().fold()
        assert set(made.dead()) == {None, 1}
        assert made.state().fold().made == "unchanged"
    with patch.object(folding, "collectable", lambda *_: A):
        assert made.state().fold().made == "fold"
        assert set(made.dead()) == {None}
        made.check()
        assert made.state().fold().made == "unchanged"
    made.declared = replace(made.declared, deletes_kept=None)
    assert made.state().fold(rebuild=True).collected == ""
    assert set(made.dead()) == {None, 1}


def test_a_fold_that_collects_nothing_can_be_read_by_earlier_releases(made: MadeChanges) -> None:
    made.load(A, [change(1, A, 0, None)])
    made.state().fold()
    fold = state_table.opened(made.state().dead_folder).fold
    assert fold is not None
    assert not {"collected", "truncated"} & set(json.loads(fold.to_json()))


def test_a_window_that_is_decoded_again_gives_back_what_it_had_replaced(made: MadeChanges) -> None:
    made.load(A, [change(1, A, 0, "first"), change(2, A, 1, "first")])
    made.load(B, [change(1, B, 5, "second"), change(2, B, 6, None), change(3, B, 7, "only here")])
    made.state().fold()
    made.load(B, [])
    pending = made.state().pending()
    assert pending.replaces
    assert pending.is_due
    assert made.state().fold().made == "fold"
    assert {key: row["name"] for key, row in made.live().items()} == {1: "first", 2: "first"}
    made.check()


@pytest.mark.parametrize("step", STEPS)
def test_a_fold_that_ends_at_any_step_is_completed_by_the_next(made: MadeChanges, step: str) -> None:
    made.load(A, [change(1, A, 0, "x"), change(2, A, 1, "y"), change(3, A, 2, None)])
    made.state().fold()
    before = made.live()
    made.load(B, [change(1, B, 5, None), change(2, B, 6, "z"), change(3, B, 7, "again")])
    with pytest.raises(CrashedError):
        made.state(crashing(step)).fold()
    if step != "past files":
        assert made.live() == before
    made.load(C, [change(4, C, 8, "more")])
    made.state().fold()
    made.check()


def test_a_reinsert_survives_a_crash_between_both_commits_and_a_second_decoding(made: MadeChanges) -> None:
    """Key 1 is then in neither table, and the window that reinserted it no longer has it. Its deletion must come back,
    or a late record would resurrect the key."""
    made.load(B, [change(1, B, 0, None)])
    made.state().fold()
    made.load(C, [change(1, C, 5, "again")])
    with pytest.raises(CrashedError):
        made.state(crashing("state")).fold()
    assert (made.live(), made.dead()) == ({}, {})
    made.load(C, [change(2, C, 6, "other")])
    assert made.state().fold().made == "rebuild"
    made.check()
    made.load(A, [change(1, A, 0, "late")])
    made.state().fold()
    made.check()
    assert 1 not in made.live()


@pytest.mark.parametrize("step", ["state_deleted", "state"])
def test_the_slower_of_two_folds_is_refused(made: MadeChanges, step: str) -> None:
    made.load(A, [change(1, A, 0, "x"), change(2, A, 1, None)])
    made.state().fold()
    made.load(B, [change(1, B, 5, None), change(2, B, 6, "y")])

    def other(at: str) -> None:
        if at == step:
            made.load(C, [change(1, C, 7, "z")])
            made.state().fold()

    with pytest.raises(ConcurrentFoldError):
        made.state(other).fold()
    made.check()
    assert made.state().fold().made == "unchanged"


def test_a_refused_fold_leaves_no_files(made: MadeChanges, tmp_path: Path) -> None:
    made.load(A, [change(1, A, 0, "x")])
    made.state().fold()
    made.load(B, [change(1, B, 5, "y"), change(2, B, 6, None)])

    def refused(step: str) -> None:
        raise ConcurrentFoldError(step)

    with pytest.raises(ConcurrentFoldError):
        made.state(refused).fold()
    for kind, files in (("state", 1), ("state_deleted", 0), ("history", 1)):
        assert len(list((tmp_path / kind).rglob("bucket-*.parquet"))) == files


def test_a_reader_sees_each_key_once_at_every_version(made: MadeChanges) -> None:
    for number, window in enumerate(DAYS[:6]):
        rows = [change(key, window, 10 * number + key, None if (key + number) % 4 == 0 else window) for key in range(8)]
        made.load(window, rows[number % 3 :])
        if number % 2:
            made.load(DAYS[number - 1], [change(number, DAYS[number - 1], number, "again")])
        made.state().fold()
    folder = made.lake.root / "state" / "orders"
    opened = state_table.opened(folder)
    assert opened.version >= 6
    for version in range(1, opened.version + 1):
        commit = delta_log.commit(folder, version)
        assert commit is not None
        fold = state_table.FoldMetadata.from_json(commit.user_metadata)
        assert fold is not None
        assert made.live(version) == expected(made.at_version[fold.changes.version], made.declared)[0]


def test_the_version_before_the_newest_fold_stays_whatever_its_age(made: MadeChanges, tmp_path: Path) -> None:
    for number, window in enumerate((A, B, C)):
        made.load(window, [change(1, window, number, window)])
        made.state().fold()
        for file in (tmp_path / "state").rglob("*.parquet"):
            os.utime(file, (0, 0))
    # The fold of C deleted the files of A's fold, which was days ago, and kept those of B's.
    assert made.live(2)[1]["name"] == B
    assert len(list((tmp_path / "state").rglob("*.parquet"))) == 2


def test_erased_values_leave_every_file(made: MadeChanges, tmp_path: Path) -> None:
    made.load(A, [change(1, A, 0, "older")])
    made.load(B, [change(1, B, 5, "to-be-forgotten"), change(2, B, 6, "kept")])
    made.state().fold()
    made.load(C, [change(2, C, 9, "newer")])
    made.state().fold()
    made.load(B, [change(2, B, 6, "kept")], erased=5)
    assert made.state().pending().erases
    with pytest.raises(CrashedError):
        made.state(crashing("past files")).fold()
    assert made.state().fold().made == "unchanged"
    for kind in ("state", "state_deleted", "history"):
        folder = tmp_path / kind / "orders"
        named = {str(path) for path in DeltaTable(str(folder)).file_uris()}
        assert {str(path) for path in folder.rglob("*.parquet")} == named
    assert made.live()[1]["name"] == "older"
    made.check()


def test_files_that_another_program_rewrote_are_folded(made: MadeChanges) -> None:
    made.load(A, [change(key, A, key, "x") for key in range(50)])
    made.state().fold()
    table = DeltaTable(str(made.lake.root / "state" / "orders"))
    table.optimize.z_order(["name"])
    made.load(B, [change(key, B, 100 + key, None) for key in range(0, 50, 3)])
    assert made.state().fold().made == "fold"
    made.check()


def test_rows_that_another_program_changed_are_made_again(made: MadeChanges) -> None:
    made.load(A, [change(key, A, key, "x") for key in range(5)])
    made.state().fold()
    DeltaTable(str(made.lake.root / "state" / "orders")).delete("id = 3")
    pending = made.state().pending()
    assert "another program" in pending.rebuild
    assert made.state().fold().made == "rebuild"
    made.check()


def test_another_declaration_makes_the_state_again(made: MadeChanges) -> None:
    made.load(A, [change(1, A, 0, "x", rev=5), change(2, A, 1, "y", rev=1)])
    made.load(B, [change(1, B, 5, "z", rev=2)])
    made.state().fold()
    made.declared = StateDeclaration(("id",), order="rev", deletes="none")
    assert made.state().fold().reason == "the declaration of the state has changed"
    assert made.live()[1]["name"] == "x"
    made.check()


def test_a_comparison_finds_what_was_changed(made: MadeChanges) -> None:
    made.load(A, [change(key, A, key, "x") for key in range(5)])
    made.state().fold()
    made.load(B, [change(1, B, 5, "z"), change(2, B, 6, None)])
    assert made.state().compare().is_equal
    made.state().fold()
    assert made.state().compare().is_equal
    folder = made.lake.root / "state" / "orders"
    opened = state_table.opened(folder)
    assert opened.fold is not None
    # Replaced under the name of the fold, as a defect of the fold would.
    DeltaTable(str(folder)).restore(1)
    state_table.commit(state_table.opened(folder), opened.columns, [], opened.fold)
    assert not made.state().compare().is_equal


def test_a_history_has_the_windows_in_which_each_row_counted(made: MadeChanges) -> None:
    made.load(A, [change(1, A, 0, "first"), change(2, A, 1, "kept")])
    made.load(C, [change(1, C, 5, None)])
    made.state().fold()
    made.load(B, [change(1, B, 3, "late")])
    assert made.state().fold().made == "fold"
    names = ("id", "name", "deleted", "valid_from", "valid_to", "ended_kafka_offset")
    found = [tuple(row[name] for name in names) for row in made.history().to_pylist()]
    assert found == [
        (1, "first", False, A, B, 3),
        (1, "late", False, B, C, 5),
        (1, None, True, C, None, None),
        (2, "kept", False, A, None, None),
    ]
    made.check()


def test_a_history_can_be_declared_later_and_given_up(made: MadeChanges) -> None:
    plain, both = StateDeclaration(("id",)), made.declared
    assert plain.digest == both.digest, "changes need not be made again"
    made.declared = plain
    made.load(A, [change(1, A, 0, "x")])
    assert made.state().fold().history is None
    made.declared = both
    assert made.state().pending().rebuild == "the history does not exist yet"
    assert made.state().fold().history == 1
    made.declared = plain
    made.load(B, [change(1, B, 5, "y")])
    made.state().fold()
    assert made.history().num_rows == 1
    made.declared = both
    assert made.state().fold().windows == (B,)
    made.check()


def test_a_topic_without_changes_has_no_state(tmp_path: Path) -> None:
    with pytest.raises(NoChangesError, match="Load and decode"):
        TopicState("orders", StateDeclaration(("id",)), Lake.at(tmp_path)).fold()


@pytest.mark.parametrize("number", long_after(2, range(4)))
def test_random_histories_in_a_lake(tmp_path: Path, number: int) -> None:
    seed = os.environ.get("STATE_SEED", str(random.randrange(1 << 30)))
    print(f"STATE_SEED={seed}")
    LakeHistory(f"{seed}/{number}", tmp_path).run()


def test_changes_without_rows_give_an_empty_state(made: MadeChanges) -> None:
    made.load(A, [])
    outcome = made.state().fold()
    assert (outcome.rows, outcome.deleted) == (0, 0)
    assert by_key(LIVE.empty_table()) == made.live()


def test_a_log_that_is_cleaned_while_a_fold_reads_it_makes_the_state_from_all_changes(
    made: MadeChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.load(A, [change(1, A, 0, "a")])
    made.state().fold()
    for number, window in enumerate((B, C, D), start=1):
        made.load(window, [change(1 + number, window, number, window)])
    made.folder.delta().create_checkpoint()
    read, reads = delta_log.commit, list[int]()

    def cleaned(table: Folder, version: int) -> delta_log.Commit | None:
        found = read(table, version)
        if table == made.folder and version == 2:
            reads.append(version)
            for gone in (2, 3):
                (made.root / "changes/orders" / delta_log.name_of(gone)).unlink(missing_ok=True)
        return found

    monkeypatch.setattr(delta_log, "commit", cleaned)
    outcome = made.state().fold()
    assert reads
    assert (outcome.made, outcome.windows) == ("rebuild", (A, B, C, D))
    assert "lacks versions after the last fold" in outcome.reason
    monkeypatch.undo()
    made.check()


@pytest.mark.parametrize("step", long_after(1, STEPS))
def test_a_load_during_a_fold_is_pending_after_it(made: MadeChanges, step: str) -> None:
    made.load(A, [change(1, A, 0, "x"), change(2, A, 1, None)])

    def loading(at: str) -> None:
        if at == step:
            made.load(B, [change(1, B, 5, None), change(3, B, 6, "y")])
            made.load(A, [change(2, A, 1, "decoded again")])

    made.state(loading).fold()
    pending = made.state().pending()
    assert (pending.windows, pending.replaces) == ((A, B), True)
    made.state().fold()
    made.check()


KILLED = """
import os, signal, sys
from platform_assets.lake.location import Lake
from platform_assets.model.state import StateDeclaration
from platform_assets.windows.state.folding import TopicState

def before(step):
    if step == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

declared = StateDeclaration(("id",), history=True)
TopicState("orders", declared, Lake.at(sys.argv[1]), before_step=before).fold()
"""


@pytest.mark.parametrize("step", long_after(1, STEPS))
def test_a_killed_process_leaves_a_state_that_the_next_fold_completes(
    made: MadeChanges, tmp_path: Path, step: str
) -> None:
    made.load(A, [change(1, A, 0, "x"), change(2, A, 1, "y"), change(3, A, 2, None)])
    made.state().fold()
    made.load(B, [change(1, B, 5, None), change(3, B, 6, "again")])
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), step], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert made.state().fold().made == ("unchanged" if step == "past files" else "fold")
    made.check()


BY_ID = StateDeclaration(("id",), deletes="none")


def decoded(root: Path) -> tuple[DecodedTopic, TopicState]:
    """Return a topic with two windows whose changes are folded, and its state of three rows."""
    topic = DecodedTopic(root, "orders")
    topic.state = BY_ID
    topic.load([order(1), order(2)], [order(1), order(3)])
    topic.decode()
    for window in topic.windows:
        topic.changer.make(window.key)
    state = TopicState(topic.topic, BY_ID, topic.lake)
    assert state.fold().rows == 3
    return topic, state


def test_upkeep_and_vacuum_of_the_changes_neither_change_nor_delay_a_fold(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path, "orders")
    topic.state = BY_ID
    keys = topic.load([order(1), order(2)], [order(1), order(3)], [order(2), order(4)], [order(5)])
    state = TopicState(topic.topic, BY_ID, topic.lake)

    def make(*windows: str) -> None:
        topic.decode(*windows)
        for key in windows:
            topic.changer.make(key)

    make(*keys[:2])
    state.fold()
    make(keys[2])
    merged = list(Upkeep(topic.declaration.changes_table, topic.ledger).run("9"))
    assert [each.version for each in merged] == [DeltaTable(str(state.changes_folder)).version()]
    for folder in (state.changes_folder, state.live_folder, state.dead_folder):
        DeltaTable(str(folder)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    make(keys[3])
    outcome = state.fold()
    assert (outcome.made, outcome.windows, outcome.rows) == ("fold", tuple(keys[2:]), 5)
    assert state.compare().is_equal
    assert all(each.passed for each in checks.results(topic.declaration, BY_ID, topic.ledger, seed="1"))


def assert_waits(topic: DecodedTopic, state: TopicState, rows: int) -> None:
    pending = state.pending()
    assert "other columns or another `state:`" in pending.waits
    assert not pending.is_due
    for rebuild in (False, True):
        with pytest.raises(ChangesOutdatedError, match="left as they are"):
            state.fold(rebuild=rebuild)
    with pytest.raises(ChangesOutdatedError):
        state.compare()
    assert DeltaTable(str(state.live_folder)).to_pyarrow_table().num_rows == rows
    assert all(each.undecided for each in checks.results(topic.declaration, state.declared, topic.ledger, seed="1"))


def test_a_state_is_left_as_it_is_while_a_table_of_changes_that_started_over_is_filled(tmp_path: Path) -> None:
    topic, state = decoded(tmp_path)
    columns = state.opened().source.columns
    at = columns.get_field_index("amount")
    changes_table.prepare(state.changes_folder, "orders", columns.set(at, pa.field("amount", pa.string())))
    assert "started over in version" in state.pending().rebuild
    assert_waits(topic, state, 3)
    topic.changer.make(topic.windows[0].key)
    assert_waits(topic, state, 3)
    topic.changer.make(topic.windows[1].key)
    assert state.pending().is_due
    assert state.fold().rows == 3
    assert all(each.passed for each in checks.results(topic.declaration, BY_ID, topic.ledger, seed="1"))


def test_no_fold_mixes_changes_of_two_declarations(tmp_path: Path) -> None:
    topic, _ = decoded(tmp_path)
    topic.state = StateDeclaration(("amount",), deletes="none")
    state = TopicState(topic.topic, topic.state, topic.lake)
    for window in topic.windows:
        assert_waits(topic, state, 3)
        topic.changer.make(window.key)
    assert state.fold().reason == "the declaration of the state has changed"
    assert state.pending().waits == ""
    assert all(each.passed for each in checks.results(topic.declaration, topic.state, topic.ledger, seed="1"))


def test_a_new_window_without_changes_holds_up_no_fold(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path, "orders")
    topic.state = BY_ID
    first, second = topic.load([order(1)], [order(2)])
    topic.decode(first)
    topic.changer.make(first)
    state = TopicState(topic.topic, BY_ID, topic.lake)
    state.fold()
    topic.decode(second)
    pending = state.pending()
    assert (pending.waits, pending.rebuild) == ("", "")


def test_a_requested_rebuild_that_ended_between_its_commits_is_completed(made: MadeChanges) -> None:
    made.load(A, [change(1, A, 0, "right"), change(2, A, 1, None)])
    made.state().fold()
    folder = made.lake.root / "state" / "orders"
    opened = state_table.opened(folder)
    assert opened.fold is not None
    # Wrong rows under the name of the fold, as a defect of the fold would write them.
    state_table.commit(opened, opened.columns, [], opened.fold)
    with pytest.raises(CrashedError):
        made.state(crashing("state")).fold(rebuild=True)
    pending = made.state().pending()
    assert pending.is_due
    assert "ended between its two commits" in pending.rebuild
    made.load(B, [change(3, B, 5, "more")])
    assert made.state().fold().made == "rebuild"
    made.check()


def test_an_erasure_that_ended_between_both_commits_is_finished_in_both_tables(
    made: MadeChanges, tmp_path: Path
) -> None:
    made.load(A, [change(1, A, 0, "kept"), change(2, A, 1, None), change(3, A, 2, None)])
    made.state().fold()
    made.load(A, [change(1, A, 0, "kept"), change(3, A, 2, None)], erased=1)
    with pytest.raises(CrashedError):
        made.state(crashing("state")).fold()
    assert made.state().pending().is_interrupted
    with pytest.raises(CrashedError):
        made.state(crashing("state_deleted")).fold()
    assert not made.state().pending().is_interrupted
    # The files that had the erased key, which the first fold wrote.
    assert not list((tmp_path / "state_deleted").rglob("v0-*/*.parquet"))
    made.state().fold()
    assert not made.state().pending().is_due
    assert_only_named(tmp_path, "state", "state_deleted", "history")
    made.check()


def assert_only_named(root: Path, *kinds: str) -> None:
    """Assert that these tables have no files besides those of their newest versions."""
    for kind in kinds:
        named = set(DeltaTable(str(root / kind / "orders")).file_uris())
        assert {str(path) for path in (root / kind / "orders").rglob("*.parquet")} == named


def test_a_record_that_is_erased_after_the_first_commit_of_the_first_fold_leaves_every_file(
    made: MadeChanges, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.load(A, [change(1, A, 0, "kept"), change(2, A, 1, None)])
    with pytest.raises(CrashedError):
        made.state(crashing("state")).fold()
    made.load(A, [change(1, A, 0, "kept")], erased=1)
    monkeypatch.setattr(folding, "erased_of", lambda *_: {A: {0: ()}})
    assert made.state().fold().reason == "the state is new"
    assert_only_named(tmp_path, "state", "state_deleted", "history")
    made.check()


@pytest.mark.parametrize("erases", [False, True])
def test_a_rebuild_deletes_past_files_only_after_an_erasure(made: MadeChanges, tmp_path: Path, erases: bool) -> None:
    made.load(A, [change(1, A, 0, "x")])
    made.state().fold()
    made.state().fold(rebuild=True, erases=erases)
    assert len(list((tmp_path / "state").rglob("bucket-*.parquet"))) == (1 if erases else 2)


@pytest.mark.parametrize("kind", ["state", "state_deleted", "history"])
def test_a_lost_file_of_the_state_is_made_again(made: MadeChanges, tmp_path: Path, kind: str) -> None:
    made.load(A, [change(1, A, 0, "x"), change(2, A, 1, None)])
    made.state().fold()
    (lost,) = (tmp_path / kind).rglob("bucket-*.parquet")
    lost.unlink()
    made.load(B, [change(3, B, 5, "y")])
    outcome = made.state().fold()
    assert (outcome.made, outcome.reason) == ("rebuild", f"data files of {kind}/orders are missing or damaged")
    made.check()


def change_a_value(path: Path, column: str) -> None:
    """Change one bit in the data pages of a column, so that the file can still be read, with other values."""
    content = path.read_bytes()
    before = pq.read_table(pa.BufferReader(content))
    chunk = pq.read_metadata(path).row_group(0).column(before.column_names.index(column))
    end = chunk.data_page_offset + chunk.total_compressed_size
    for at in range(end - 1, chunk.data_page_offset, -1):
        damaged = bytearray(content)
        damaged[at] ^= 1
        try:
            after = pq.read_table(pa.BufferReader(damaged))
        except (OSError, pa.ArrowException):
            continue
        if len(after) == len(before) and not after[column].equals(before[column]):
            path.write_bytes(damaged)
            return
    raise AssertionError(f"no bit changes only values of {column}")


@pytest.mark.parametrize("kind", ["state", "state_deleted", "history"])
def test_a_damaged_page_of_the_state_is_not_carried_on(made: MadeChanges, tmp_path: Path, kind: str) -> None:
    made.load(A, [change(1, A, 0, "x"), change(2, A, 1, None)])
    made.state().fold()
    (path,) = (tmp_path / kind).rglob("bucket-*.parquet")
    change_a_value(path, "id")
    made.load(B, [change(3, B, 5, "y")])
    outcome = made.state().fold()
    assert (outcome.made, outcome.reason) == ("rebuild", f"data files of {kind}/orders are missing or damaged")
    made.check()


def test_a_lost_file_of_the_changes_fails_the_fold(made: MadeChanges, tmp_path: Path) -> None:
    made.load(A, [change(1, A, 0, "x")])
    made.state().fold()
    before = set((tmp_path / "changes").rglob("*.parquet"))
    made.load(B, [change(1, B, 5, "y")])
    (lost,) = set((tmp_path / "changes").rglob("*.parquet")) - before
    lost.unlink()
    with pytest.raises(FilesLostError, match="changes/orders"):
        made.state().fold()
    assert made.live()[1]["name"] == "x"


def test_a_comparison_is_undecided_before_the_state_is_made_again(made: MadeChanges) -> None:
    made.load(A, [change(1, A, 0, "x", rev=5), change(2, A, 1, "y", rev=1)])
    made.state().fold()
    made.declared = StateDeclaration(("id",), order="rev", deletes="none")
    with pytest.raises(StateOutdatedError, match="the declaration of the state has changed"):
        made.state().compare()
    made.state().fold()
    assert made.state().compare().is_equal


@pytest.mark.parametrize("name", ["place", "place_max", "key0", "count"])
def test_a_key_column_may_have_any_name(tmp_path: Path, name: str) -> None:
    columns = [field.with_name(name) if field.name == "rev" else field for field in COLUMNS]
    made = MadeChanges(tmp_path, StateDeclaration((name, "id"), deletes="none"), pa.schema(columns))

    def row(offset: int, value: int, text: str) -> dict[str, object]:
        return {**change(1, A, offset, text), name: value}

    made.load(A, [row(0, 5, "old"), row(1, 5, "new"), row(2, 6, "other")])
    assert made.state().fold().rows == 2
    rows = DeltaTable(str(tmp_path / "state" / "orders")).to_pyarrow_table().to_pylist()
    assert sorted((each[name], each["name"]) for each in rows) == [(5, "new"), (6, "other")]
