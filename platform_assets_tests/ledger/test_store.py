"""The ledgers on real Delta tables: one cut for each boundary despite races, and entries that are never lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from platform_assets.checks.baseline import audited
from platform_assets.errors import LedgerConflictError, LedgerCorruptError
from platform_assets.lake.failures import LakeNotReadableError
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger import folding, newest_cuts, recording, rollback, unloaded
from platform_assets.ledger.entries import COLUMNS_OF_NEWEST, RecordedCut, SealedWindow, receipt_table
from platform_assets.ledger.recording import Proposed
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableLoad, TableRef
from platform_assets.model.windows import Window
from testbed.samples import cut, edge, hourly, log_entries, receipt, recorded, sealed

CHECKOUT = Path(__file__).parents[2]
KEY = "2026-01-01-00:00"
RACER = """
import sys
from pathlib import Path
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from testbed.samples import cut, edge
root, topic, name, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
ledger = Ledger(Lake.at(root))
print("ready", flush=True)
for number in range(rounds):
    assert sys.stdin.readline().strip() == str(number)
    ledger.create()
    after = edge(number - 1) if number else None
    mine = cut(topic, edge(number), {0: 10 * number + name})
    won = ledger.record_cuts([mine], after)
    held = ledger.newest_cut(topic)
    print("won" if won else "lost", held.edge == edge(number), held.cut.at(0), flush=True)
"""
CREATOR = """
import sys
from pathlib import Path
from platform_assets.lake import raw_table
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableLoad, TableRef
root, topic, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[4])
print("ready", flush=True)
for number in range(rounds):
    assert sys.stdin.readline().strip() == str(number)
    lake = Lake.at(root / str(number))
    Ledger(lake).create()
    raw_table.create(lake.table(TableRef.raw(topic)), topic)
    print("created", flush=True)
"""


def _as_another_process() -> None:
    """Forget everything this process remembers of ledgers, as if the process were new."""
    newest_cuts.of.cache_clear()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(Lake.at(tmp_path))
    made.create()
    return made


class Race:
    """Processes that start each round at the same time, one process for each of `topics`."""

    def __init__(self, root: Path, topics: Sequence[str], rounds: int, program: str = RACER) -> None:
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        self.rounds = rounds
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", program, str(root), topic, str(name), str(rounds)],
                cwd=CHECKOUT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )
            for name, topic in enumerate(topics)
        ]  # fmt: skip

    def __enter__(self) -> Race:
        for process in self.processes:
            assert self._line(process) == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def round(self, number: int) -> list[str]:
        """Run a round and return the answer of each process."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{number}\n")
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.flush()
        return [self._line(process) for process in self.processes]

    def _line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()


# --- compare-and-set ------------------------------------------------------------------------------------------------


def test_processes_that_record_the_same_edge_at_once_leave_one_cut_that_all_read(tmp_path: Path) -> None:
    """The race runs from the creation of the tables through several compactions of small files."""
    rounds = 60
    with Race(tmp_path, ["t", "t", "t"], rounds) as race:
        for number in range(rounds):
            answers = race.round(number)
            winners = [name for name, answer in enumerate(answers) if answer.startswith("won")]
            assert len(winners) == 1, answers
            assert {answer.split(" ", 1)[1] for answer in answers} == {f"True {10 * number + winners[0]}"}
    cuts = Ledger(Lake.at(tmp_path)).cuts("t")
    assert [c.edge for c in cuts] == [edge(n) for n in range(rounds)]
    rows = DeltaTable(tmp_path / "_ledger" / "cuts").to_pyarrow_table()
    assert rows.num_rows == rounds


def test_processes_that_create_the_tables_at_once_make_each_of_them_once(tmp_path: Path) -> None:
    """Creating a table a second time would make later commits of the first writer fail."""
    rounds = 12
    with Race(tmp_path, ["t", "t", "t"], rounds, CREATOR) as race:
        for number in range(rounds):
            assert race.round(number) == ["created"] * 3
            for table in ("_ledger/cuts", "_ledger/commits", "raw/t"):
                assert DeltaTable(tmp_path / str(number) / table).version() == 0


def test_processes_that_record_different_topics_at_once_all_win(tmp_path: Path) -> None:
    rounds = 15
    with Race(tmp_path, ["a", "b", "c"], rounds) as race:
        for number in range(rounds):
            assert all(answer.startswith("won True") for answer in race.round(number))
    for name, topic in enumerate("abc"):
        assert [c.cut.at(0) for c in Ledger(Lake.at(tmp_path)).cuts(topic)] == [10 * n + name for n in range(rounds)]


def test_a_handle_that_went_stale_between_look_up_and_commit_is_refused(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rival commits after this process has looked up the newest boundary and before it commits."""
    write, rival = recording.write_deltalake, Ledger(Lake.at(tmp_path))  # type: ignore[attr-defined]

    def late(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(recording, "write_deltalake", write)
        _as_another_process()
        assert rival.record_cuts([cut("t", edge(0), {0: 1})], None)
        write(*arguments, **options)

    monkeypatch.setattr(recording, "write_deltalake", late)
    assert not ledger.record_cuts([cut("t", edge(0), {0: 2})], None)
    assert [c.cut.at(0) for c in ledger.cuts("t")] == [1]


def test_a_stale_handle_is_refused_although_the_rival_went_further(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, rival = recording.write_deltalake, Ledger(Lake.at(tmp_path))  # type: ignore[attr-defined]

    def late(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(recording, "write_deltalake", write)
        _as_another_process()
        assert rival.record_cuts(hourly("t", [{0: 1}]), None)
        write(*arguments, **options)

    monkeypatch.setattr(recording, "write_deltalake", late)
    assert not ledger.record_cuts(hourly("t", [{0: 2}, {0: 3}, {0: 4}]), None)
    assert [c.cut.at(0) for c in ledger.cuts("t")] == [1]


def test_another_topic_in_between_does_not_refuse_a_cut(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, other = recording.write_deltalake, Ledger(Lake.at(tmp_path))  # type: ignore[attr-defined]

    def late(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(recording, "write_deltalake", write)
        _as_another_process()
        assert other.record_cuts([cut("u", edge(0), {0: 1})], None)
        write(*arguments, **options)

    monkeypatch.setattr(recording, "write_deltalake", late)
    assert ledger.record_cuts([cut("t", edge(0), {0: 2})], None)
    assert [len(ledger.cuts(t)) for t in "tu"] == [1, 1]


def test_a_refusal_without_a_rival_is_an_error_that_may_be_tried_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise recording.CommitFailedError("too many retries")  # type: ignore[attr-defined]

    monkeypatch.setattr(recording, "write_deltalake", refuse)
    with pytest.raises(LedgerConflictError, match="'t'"):
        ledger.record_cuts([cut("t", edge(0), {0: 1})], None)


def test_threads_that_record_the_same_edge_at_once_leave_one_cut(ledger: Ledger, tmp_path: Path) -> None:
    """The sensors of a code location tick in threads that share one handle."""
    with ThreadPoolExecutor(4) as pool:
        for number in range(20):
            after = edge(number - 1) if number else None
            cuts = [cut("t", edge(number), {0: 10 * number + name}) for name in range(4)]
            won = list(pool.map(lambda c, a=after: Ledger(Lake.at(tmp_path)).record_cuts([c], a), cuts))
            assert won.count(True) == 1
    assert [c.edge for c in ledger.cuts("t")] == [edge(n) for n in range(20)]


def test_cuts_of_many_topics_are_one_commit_and_who_was_overtaken_is_left_out(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rival commits before the look-up, another one commits between the look-up and the commit."""
    names = ["a", "b", "c", "d"]
    assert ledger.record_cuts([cut("a", edge(0), {0: 1})], None)
    write, rival = recording.write_deltalake, Ledger(Lake.at(tmp_path))  # type: ignore[attr-defined]

    def late(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(recording, "write_deltalake", write)
        _as_another_process()
        assert rival.record_cuts([cut("c", edge(0), {0: 3})], None)
        write(*arguments, **options)

    monkeypatch.setattr(recording, "write_deltalake", late)
    proposed = [Proposed((cut(name, edge(0), {0: 7}), cut(name, edge(1), {0: 8})), None) for name in names]
    before = DeltaTable(tmp_path / "_ledger" / "cuts").version()
    assert ledger.record_cuts_of_many(proposed) == {"b", "d"}
    assert DeltaTable(tmp_path / "_ledger" / "cuts").version() == before + 2, (
        "that of the rival, and one for both topics"
    )
    for _ in range(2):
        newest = {name: ledger.newest_cut(name) for name in names}
        assert {n: c and c.cut.at(0) for n, c in newest.items()} == {"a": 1, "b": 8, "c": 3, "d": 8}
        _as_another_process()
    assert ledger.newest_edges(names) == {"a": edge(0), "b": edge(1), "c": edge(0), "d": edge(1)}


def test_many_topics_are_folded_in_turn_and_nothing_is_lost(soon_folded: Ledger, tmp_path: Path) -> None:
    """All topics reach the limit of files with the same commit: some topics are folded at once, the others with the
    next commits."""
    names, rounds = [f"t{n:02}" for n in range(12)], 14
    most = 0
    for number in range(rounds):
        after = edge(number - 1) if number else None
        proposed = [Proposed((cut(name, edge(number), {0: number}),), after) for name in names]
        assert soon_folded.record_cuts_of_many(proposed) == set(names)
        most = max(most, data_files(tmp_path, "cuts"))
    assert most <= 12 * 9, "folds keep up"
    for name in names:
        assert [c.cut.at(0) for c in soon_folded.cuts(name)] == list(range(rounds))


def test_a_handle_is_for_one_caller_at_a_time(ledger: Ledger, tmp_path: Path) -> None:
    ledger.record_cuts([cut("t", edge(0), {0: 1})], None)
    kept = newest_cuts.of(Lake.at(tmp_path).cuts)
    order: list[str] = []

    def second() -> None:
        with kept.handle():
            order.append("second")

    thread = threading.Thread(target=second)
    with kept.handle():
        thread.start()
        thread.join(1)  # long enough to finish if nothing held it back
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]


def test_the_log_is_read_whole_only_now_and_then(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Folder] = []
    delta = Folder.delta

    def opening(folder: Folder, version: int | None = None) -> DeltaTable:
        opened.append(folder)
        return delta(folder, version)

    ledger.newest_edges("tu")
    monkeypatch.setattr(Folder, "delta", opening)
    for number in range(20):
        for topic in "tu":
            assert ledger.record_cuts([cut(topic, edge(number), {0: number})], edge(number - 1) if number else None)
    assert 1 < len(opened) <= 4


def test_a_handle_that_was_kept_sees_what_others_recorded_since(ledger: Ledger, tmp_path: Path) -> None:
    ledger.record_cuts([cut("t", edge(0), {0: 1})], None)
    kept = newest_cuts.of(Lake.at(tmp_path).cuts)
    _as_another_process()
    for number in range(1, 60):  # enough to fold small files
        assert Ledger(Lake.at(tmp_path)).record_cuts([cut("t", edge(number), {0: number})], edge(number - 1))
    with kept.handle() as handle:
        assert handle.transaction_version("cuts/t") == edge(59).timestamp()
        assert handle.version() == DeltaTable(tmp_path / "_ledger" / "cuts").version()


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_ledger_that_is_put_back_under_a_kept_handle_is_opened_anew(
    ledger: Ledger, tmp_path: Path, made_anew: bool
) -> None:
    """If the old handle were kept, the next cut would be committed after a hole in the log, or every later cut would be
    refused."""
    ledger.record_cuts([cut("t", edge(0), {0: 1})], None)
    shutil.copytree(tmp_path / "_ledger", tmp_path / "backup")
    ledger.record_cuts([cut("t", edge(1), {0: 2})], edge(0))
    shutil.rmtree(tmp_path / "_ledger")
    if made_anew:
        ledger.create()
    else:
        shutil.copytree(tmp_path / "backup", tmp_path / "_ledger")
    assert ledger.record_cuts([cut("t", edge(1), {0: 3})], None if made_anew else edge(0))
    log = tmp_path / "_ledger" / "cuts" / "_delta_log"
    assert sorted(int(p.stem) for p in log.glob("*.json")) == list(range(2 if made_anew else 3))
    assert ledger.cuts("t")[-1].cut.at(0) == 3


@pytest.mark.parametrize("after", [None, edge(0), edge(2)])
def test_who_looked_before_another_recorded_is_told_so(ledger: Ledger, after: datetime | None) -> None:
    ledger.record_cuts(hourly("t", [{0: 1}, {0: 2}]), None)
    assert not ledger.record_cuts([cut("t", edge(3), {0: 9})], after)
    assert ledger.newest_edges(["t", "u"]) == {"t": edge(1)}


# --- order of entries -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "follower",
    [
        pytest.param(cut("t", edge(1), {0: 9, 1: 9}), id="the same edge"),
        pytest.param(cut("t", edge(0), {0: 9, 1: 9}), id="an earlier edge"),
        pytest.param(cut("t", edge(2), {0: 4, 1: 7}), id="a partition shrank"),
        pytest.param(cut("t", edge(2), {0: 9}), id="a partition is gone"),
        pytest.param(cut("t", edge(2), {0: 9, 2: 9}), id="a partition is gone and another came"),
        pytest.param(cut("t", edge(2), {0: 9, 1: 9}, topic_id="B" * 22), id="another topic id"),
        pytest.param(cut("t", edge(2), {0: 9, 1: 9}, generation=0), id="an earlier generation"),
        pytest.param(cut("u", edge(2), {0: 9, 1: 9}), id="another topic"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_cut_that_cannot_follow_is_refused_and_nothing_recorded(
    ledger: Ledger, follower: RecordedCut, at_once: bool
) -> None:
    first = hourly("t", [{0: 1, 1: 0}, {0: 5, 1: 7}])
    if at_once:
        with pytest.raises(LedgerCorruptError, match="does not follow"):
            ledger.record_cuts([*first, follower], None)
        assert ledger.cuts("t") == []
    elif follower.topic == "t":
        assert ledger.record_cuts(first, None)
        with pytest.raises(LedgerCorruptError, match="does not follow"):
            ledger.record_cuts([follower], edge(1))
        assert ledger.cuts("t") == first


def test_a_new_generation_starts_anew_and_makes_no_window_with_the_old_one(ledger: Ledger) -> None:
    old = hourly("t", [{0: 0, 1: 0}, {0: 50, 1: 5}])
    new = [cut("t", edge(n), {0: n}, topic_id="B" * 22, generation=2) for n in (2, 3)]
    ledger.record_cuts(old, None)
    ledger.record_cuts(new, edge(1))
    assert [(w.key, w.generation) for w in ledger.windows("t")] == [(KEY, 1), ("2026-01-01-02:00", 2)]
    assert ledger.window("t", "2026-01-01-01:00") is None


def accepted(topic: str, edge: datetime, offsets: dict[int, int], generation: int = 2) -> RecordedCut:
    found = cut(topic, edge, offsets, topic_id="B" * 22, generation=generation)
    return replace(found, taken=dict.fromkeys(offsets, "accepted"))


def test_a_generation_that_starts_at_the_newest_edge_leaves_no_time_without_a_window(ledger: Ledger) -> None:
    ledger.record_cuts(hourly("t", [{0: 0, 1: 0}, {0: 50, 1: 5}]), None)
    assert ledger.newest_cut("t") == cut("t", edge(1), {0: 50, 1: 5})
    new = accepted("t", edge(1), {0: 3})
    assert ledger.record_cuts([new], edge(1))
    # This process and the other one also forget the newest boundary that they knew.
    assert ledger.newest_cut("t") == Ledger(ledger.lake).newest_cut("t") == new
    assert ledger.newest_edges(["t"]) == {"t": edge(1)}
    later = cut("t", edge(2), {0: 9}, topic_id="B" * 22, generation=2)
    assert ledger.record_cuts([later], edge(1))
    assert [(w.key[-5:], w.generation, w.ranges.triples()) for w in ledger.windows("t")] == [
        ("00:00", 1, ((0, 0, 50), (1, 0, 5))),
        ("01:00", 2, ((0, 3, 9),)),
    ]
    for window in ledger.windows("t"):
        assert ledger.window("t", window.key) == window
    assert unloaded.read(ledger, "t", [w.window for w in ledger.windows("t")]) == ledger.windows("t")


def test_cuts_that_were_taken_before_a_generation_was_accepted_are_refused(ledger: Ledger) -> None:
    ledger.record_cuts(hourly("t", [{0: 0}, {0: 50}]), None)
    assert ledger.record_cuts([accepted("t", edge(1), {0: 3})], edge(1))
    assert not ledger.record_cuts([cut("t", edge(2), {0: 60})], edge(1))
    # If two processes accept it, only the first succeeds.
    assert not ledger.record_cuts([accepted("t", edge(1), {0: 3})], edge(1))
    assert len(ledger.cuts("t")) == 3


def test_a_process_that_knew_the_newest_cut_sees_that_a_generation_was_accepted(tmp_path: Path) -> None:
    """For example, a sensor runs while an operator accepts a generation in a shell. The boundary stays the same, so
    comparing boundaries is not enough."""
    ledger = Ledger(Lake.at(tmp_path))
    ledger.create()
    ledger.record_cuts(hourly("t", [{0: 0}, {0: 50}]), None)
    known = ledger.newest_cut("t")
    assert known is not None
    assert known.generation == 1
    code = (
        "import sys; from datetime import datetime\n"
        "from platform_assets.lake.location import Lake; from platform_assets.ledger.store import Ledger\n"
        "from dataclasses import replace\n"
        "ledger = Ledger(Lake.at(sys.argv[1])); last = ledger.newest_cut('t')\n"
        "assert ledger.record_cuts([replace(last, generation=2, topic_id='B'*22, taken={0: 'accepted'})], last.edge)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    now = ledger.newest_cut("t")
    assert now is not None
    assert (now.generation, now.edge) == (2, known.edge)


# --- reading --------------------------------------------------------------------------------------------------------


def test_cuts_come_back_as_they_were_recorded(ledger: Ledger) -> None:
    cuts = hourly("t", [{0: 0, 1: 2**62}, {0: 3, 1: 2**62}, {0: 3, 1: 2**63 - 1, 2: 1}])
    cuts[2] = replace(cuts[2], taken={0: "carried", 1: "last stable offset", 2: "log start"})
    ledger.record_cuts(cuts, None)
    assert ledger.cuts("t") == cuts
    assert ledger.newest_cut("t") == cuts[2]
    assert ledger.cuts("t", start=edge(1)) == cuts[1:]
    assert ledger.cuts("t", end=edge(1)) == cuts[:2]
    assert ledger.edges("t") == [KEY, "2026-01-01-01:00", "2026-01-01-02:00"]


def test_windows_lie_between_neighbouring_cuts(ledger: Ledger) -> None:
    ledger.record_cuts(hourly("t", [{0: 2}, {0: 3}, {0: 3, 1: 4}]), None)
    first, second = ledger.windows("t")
    assert (first.window, first.ranges.triples()) == (Window(edge(0), edge(1)), ((0, 2, 3),))
    assert (second.window, second.ranges.triples()) == (Window(edge(1), edge(2)), ((0, 3, 3), (1, 0, 4)))
    assert ledger.window("t", first.key) == first
    assert ledger.window("t", second.key) == second
    assert ledger.windows("t", start=edge(1)) == [second]


@pytest.mark.parametrize("key", ["2026-01-01-02:00", "2026-01-01-00:30", "2025-12-31-23:00", "2026-01-02-00:00"])
def test_a_key_that_no_recorded_edge_starts_and_ends_has_no_window(ledger: Ledger, key: str) -> None:
    ledger.record_cuts(hourly("t", [{0: 2}, {0: 3}, {0: 4}]), None)
    assert ledger.window("t", key) is None


def test_a_key_whose_length_changed_has_the_end_that_was_recorded(ledger: Ledger) -> None:
    """Windows are hourly until 02:00, and one minute long from then on: window 01:00 ends at 02:00, and window 02:00
    ends at 02:01."""
    minute = timedelta(minutes=1)
    cuts = hourly("t", [{0: 0}, {0: 5}, {0: 9}])
    ledger.record_cuts(cuts, None)
    ledger.record_cuts([cut("t", edge(2) + n * minute, {0: 9 + n}) for n in (1, 2)], edge(2))
    ends = {w.key: w.window.end for w in ledger.windows("t")}
    assert ends == {
        KEY: edge(1),
        "2026-01-01-01:00": edge(2),
        "2026-01-01-02:00": edge(2) + minute,
        "2026-01-01-02:01": edge(2) + 2 * minute,
    }
    assert {k: w.window.end for k in ends if (w := ledger.window("t", k)) is not None} == ends


def test_topics_do_not_see_each_others_cuts(ledger: Ledger) -> None:
    ledger.record_cuts(hourly("t", [{0: 2}, {0: 3}]), None)
    ledger.record_cuts(hourly("t.u", [{0: 7}]), None)
    assert [c.cut.at(0) for c in ledger.cuts("t.u")] == [7]
    assert ledger.windows("t_u") == []


def test_a_ledger_that_was_never_made_is_empty(tmp_path: Path) -> None:
    absent = Ledger(Lake.at(tmp_path))
    assert absent.newest_cut("t") is None
    assert absent.newest_edges(["t"]) == {}
    assert (absent.cuts("t"), absent.windows("t"), absent.edges("t")) == ([], [], [])
    assert absent.window("t", KEY) is None
    assert absent.receipts(TableRef.raw("t")) == {}
    assert absent.accepted_losses(TableRef.raw("t"), KEY) == {}
    assert not list(tmp_path.iterdir())


def test_an_empty_ledger_is_empty(ledger: Ledger) -> None:
    assert ledger.newest_cut("t") is None
    assert (ledger.cuts("t"), ledger.windows("t"), ledger.edges("t")) == ([], [], [])
    assert ledger.window("t", KEY) is None
    assert ledger.receipts(TableRef.raw("t"), [KEY]) == {}


# --- creation and damage --------------------------------------------------------------------------------------------


def test_creating_again_keeps_what_is_there(ledger: Ledger) -> None:
    ledger.record_cuts(hourly("t", [{0: 2}]), None)
    ledger.create()
    assert len(ledger.cuts("t")) == 1


def test_every_column_of_both_tables_is_explained(ledger: Ledger, tmp_path: Path) -> None:
    for name in ("cuts", "commits"):
        fields = json.loads(DeltaTable(tmp_path / "_ledger" / name).schema().to_json())["fields"]
        assert all(f["metadata"]["comment"] for f in fields)


def test_a_creation_that_was_cut_short_is_finished_by_the_next(tmp_path: Path) -> None:
    """A process may be killed after it has created the log's folder and before its first commit."""
    for name in ("cuts", "commits"):
        (tmp_path / "_ledger" / name / "_delta_log").mkdir(parents=True)
    ledger = Ledger(Lake.at(tmp_path))
    assert ledger.newest_cut("t") is None
    assert ledger.receipts(TableRef.raw("t")) == {}
    ledger.create()
    assert ledger.record_cuts(hourly("t", [{0: 2}]), None)


def test_a_lake_root_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LakeNotReadableError, match=r"lake cannot be read at .*file.*: Not a directory.*LAKE_ROOT"):
        Ledger(Lake.at(tmp_path / "file")).create()


def test_rows_that_end_before_the_edge_that_the_log_names_are_corrupt(ledger: Ledger, tmp_path: Path) -> None:
    ledger.record_cuts(hourly("t", [{0: 2}, {0: 3}]), None)
    DeltaTable(tmp_path / "_ledger" / "cuts").delete("offset = 3")
    with pytest.raises(
        LedgerCorruptError, match=r"2026-01-01 01:00Z as the newest window boundary of topic 't'.*rebuild-ledger"
    ):
        ledger.newest_cut("t")
    with pytest.raises(LedgerCorruptError):
        ledger.record_cuts([cut("t", edge(2), {0: 9})], edge(1))


def test_a_process_that_was_killed_before_its_commit_leaves_nothing(ledger: Ledger, tmp_path: Path) -> None:
    """The killed process's data file exists, but no commit refers to it."""
    ledger.record_cuts(hourly("t", [{0: 2}]), None)
    table = tmp_path / "_ledger" / "cuts"
    copy = tmp_path / "copy"
    shutil.copytree(table, copy)
    Ledger(Lake.at(tmp_path)).record_cuts([cut("t", edge(1), {0: 8})], edge(0))
    newest = max((table / "_delta_log").glob("*.json"))
    newest.unlink()
    assert {f.name for f in table.rglob("*.parquet")} > {f.name for f in copy.rglob("*.parquet")}
    assert len(ledger.cuts("t")) == 1
    assert ledger.record_cuts([cut("t", edge(1), {0: 5})], edge(0))
    assert [c.cut.at(0) for c in ledger.cuts("t")] == [2, 5]


# --- receipts -------------------------------------------------------------------------------------------------------


def window_of(number: int, **ranges: tuple[int, int]) -> SealedWindow:
    return sealed("t", f"2026-01-01-{number:02}:00", 1.0, **(ranges or {"p0": (10 * number, 10 * number + 10)}))


def test_a_receipt_comes_back_as_it_was_recorded(ledger: Ledger) -> None:
    entry = receipt(
        window_of(0, p0=(0, 5), p3=(7, 7)),
        {0: [1, 4]},
        version=3,
        offsets_digest=2**70,
        content_digest=0,
        duplicates=1,
        holes={"markers": 3},
    )
    ledger.record_receipts([entry])
    assert ledger.receipts(TableRef.raw("t")) == {KEY: entry}
    assert (entry.rows, entry.missing) == (2, 3)


def test_the_entry_of_the_newest_table_version_counts_in_whatever_order_they_came(
    ledger: Ledger, rng: random.Random
) -> None:
    """If a run is slow to write its receipt, this receipt does not override the one for a later commit."""
    entries = [
        receipt(window_of(number), version=version, load_id=f"{number}/{version}")
        for number in range(4)
        for version in (None, 2, 5, 9)
    ]
    rng.shuffle(entries)
    for entry in entries:
        ledger.record_receipts([entry])
    newest = ledger.receipts(TableRef.raw("t"))
    assert {k: r.load_id for k, r in newest.items()} == {window_of(n).key: f"{n}/9" for n in range(4)}
    assert ledger.receipts(TableRef.raw("t"), [window_of(2).key]).keys() == {window_of(2).key}
    assert ledger.receipts(TableRef.raw("u")) == {}


def test_of_equal_versions_the_last_entry_counts(ledger: Ledger) -> None:
    for load_id in ("first", "second", "third"):
        ledger.record_receipts([receipt(window_of(0), version=None, load_id=load_id)])
    assert ledger.receipts(TableRef.raw("t"))[KEY].load_id == "third"


def test_a_load_written_down_twice_counts_once(ledger: Ledger) -> None:
    """A run that died after its commit and the run that restores the missing receipt may both record the load."""
    entry = receipt(window_of(0, p0=(0, 5), p1=(0, 3)))
    ledger.record_receipts([entry])
    ledger.record_receipts([replace(entry, kind="rebuilt", seconds=0.1)])
    rows = ledger.commit_rows(TableRef.raw("t"))
    assert pc.sum(rows["rows"]).as_py() == entry.rows == 8
    assert rows.num_rows == 2


def test_only_the_columns_that_are_asked_for_are_read_and_the_same_entries_count(ledger: Ledger) -> None:
    entry = receipt(window_of(0, p0=(0, 5), p1=(0, 3)))
    ledger.record_receipts([entry, receipt(window_of(1))])
    ledger.record_receipts([replace(entry, kind="rebuilt", seconds=0.1)])
    ledger.record_acceptance(window_of(0), {0: [OffsetRange(0, 2)]}, "retention")
    every, some = (ledger.commit_rows(TableRef.raw("t"), columns=columns) for columns in (None, ["rows", "made_from"]))
    assert set(some.column_names) == {*COLUMNS_OF_NEWEST, "kind", "rows", "made_from"}
    assert some.to_pylist() == every.select(some.column_names).to_pylist()


def test_nothing_to_record_makes_no_commit(ledger: Ledger, tmp_path: Path) -> None:
    ledger.record_receipts([])
    assert DeltaTable(tmp_path / "_ledger" / "commits").version() == 0


def test_accepted_losses_add_up_and_are_no_receipts(ledger: Ledger) -> None:
    window = window_of(0, p0=(0, 5), p1=(0, 9))
    ledger.record_acceptance(window, {0: [OffsetRange(0, 2)], 1: [OffsetRange(4, 5)]}, "retention")
    ledger.record_acceptance(window, {0: [OffsetRange(3, 4)]}, "unreadable timestamp")
    accepted = ledger.accepted_losses(TableRef.raw("t"), KEY)
    assert {p: sorted(r) for p, r in accepted.items()} == {
        0: [OffsetRange(0, 2), OffsetRange(3, 4)],
        1: [OffsetRange(4, 5)],
    }
    assert ledger.receipts(TableRef.raw("t")) == {}
    assert ledger.accepted_losses(TableRef.raw("t"), window_of(1).key) == {}
    ledger.record_receipts([receipt(window, {0: [2]})])
    assert ledger.receipts(TableRef.raw("t"))[KEY].rows == 1
    assert ledger.accepted_losses(TableRef.raw("t"), KEY) == accepted


def test_rows_that_another_writer_wrote_anew_are_read_by_key_and_start(ledger: Ledger, tmp_path: Path) -> None:
    """After delta-rs corrects a ledger with an update, the ledger's files have another Arrow type for string columns."""
    windows = [window_of(number) for number in range(4)]
    ledger.record_receipts([receipt(window) for window in windows])
    for window in windows[:3]:
        ledger.record_acceptance(window, {0: [OffsetRange(0, 2)]}, "retention")
    commits = tmp_path / "_ledger" / "commits"
    DeltaTable(commits).update(updates={"reason": "'gone'"}, predicate="kind = 'acceptance'")
    for window in windows:
        DeltaTable(commits).update(updates={"bytes": "7"}, predicate=f"\"window\" = '{window.key}'")
    declared = {pq.read_schema(file).field("window").type for file in commits.rglob("*.parquet")}
    assert pa.string_view() in declared
    keys = [windows[3].key, windows[1].key]
    assert {k: r.bytes for k, r in ledger.receipts(TableRef.raw("t"), keys).items()} == dict.fromkeys(keys, 7)
    assert ledger.commit_rows(TableRef.raw("t"), start=windows[2].window.start)["window"].to_pylist() == [
        w.key for w in windows[2:]
    ]
    assert ledger.accepted_losses(TableRef.raw("t"), windows[0].key) == {0: (OffsetRange(0, 2),)}
    assert ledger.accepted_losses(TableRef.raw("t"), windows[3].key) == {}


# --- folding --------------------------------------------------------------------------------------------------------


@pytest.fixture
def soon_folded(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Return a ledger that folds at 6 files; the races above use the real limit."""
    monkeypatch.setattr(folding, "AT_FILES", 6)
    return ledger


def data_files(root: Path, name: str) -> int:
    return len(DeltaTable(root / "_ledger" / name).file_uris())


def test_folding_keeps_every_cut_and_the_compare_and_set(soon_folded: Ledger, tmp_path: Path) -> None:
    """The test makes several folds, passes a checkpoint of the log, and deletes the log before the checkpoint."""
    number, ledger = 40, soon_folded
    cuts = hourly("t", [{0: n, 1: 3 * n} for n in range(number)])
    ledger.record_cuts(hourly("u", [{0: 1}]), None)
    for n, each in enumerate(cuts):
        assert ledger.record_cuts([each], edge(n - 1) if n else None)
    assert data_files(tmp_path, "cuts") < 8
    assert ledger.cuts("t") == cuts
    assert ledger.newest_cut("t") == cuts[-1]
    log = tmp_path / "_ledger" / "cuts" / "_delta_log"
    DeltaTable(log.parent).create_checkpoint()
    newest = DeltaTable(log.parent).version()
    for entry in log.glob("*.json"):
        if int(entry.stem) < newest:
            entry.unlink()
    assert ledger.cuts("t") == cuts
    assert ledger.newest_edges(["t", "u"]) == {"t": edge(number - 1), "u": edge(0)}
    assert not ledger.record_cuts([cut("t", edge(number), {0: 9})], edge(number - 2))
    assert ledger.record_cuts([cut("t", edge(number), {0: number, 1: 3 * number})], edge(number - 1))


def test_folding_keeps_every_receipt_and_acceptance(soon_folded: Ledger, tmp_path: Path) -> None:
    ledger = soon_folded
    ledger.record_acceptance(window_of(0), {0: [OffsetRange(0, 2)]}, "retention")
    number = 30
    entries = [receipt(window_of(n % 10), version=n, load_id=str(n)) for n in range(number)]
    for entry in entries:
        ledger.record_receipts([entry])
    assert data_files(tmp_path, "commits") < 8
    assert {r.load_id for r in ledger.receipts(TableRef.raw("t")).values()} == {
        str(n) for n in range(number - 10, number)
    }
    assert DeltaTable(tmp_path / "_ledger" / "commits").to_pyarrow_table().num_rows == number + 1
    assert ledger.accepted_losses(TableRef.raw("t"), KEY) == {0: (OffsetRange(0, 2),)}


def test_a_long_ledger_is_not_written_again_by_each_fold(
    soon_folded: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon_folded.record_cuts(hourly("t", [{0: n} for n in range(3_000)]), None)
    (long,) = DeltaTable(tmp_path / "_ledger" / "cuts").file_uris()
    monkeypatch.setattr(folding, "SIZES", (Path(long).stat().st_size,))
    for n in range(3_000, 3_020):
        soon_folded.record_cuts([cut("t", edge(n), {0: n})], edge(n - 1))
    assert long in DeltaTable(tmp_path / "_ledger" / "cuts").file_uris()
    assert data_files(tmp_path, "cuts") < 8
    assert len(soon_folded.cuts("t")) == 3_020


def test_newest_entries_are_folded_apart_from_long_files_until_there_are_many_of_these(
    soon_folded: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check reads the newest entries, so they must not be in the same file as a long history."""
    cuts = hourly("t", [{0: n} for n in range(3_506)])
    soon_folded.record_cuts(cuts[:500], None)

    def files() -> list[str]:
        return DeltaTable(tmp_path / "_ledger" / "cuts").file_uris()

    size = Path(files()[0]).stat().st_size
    monkeypatch.setattr(folding, "SIZES", (size - 1_000, 4 << 20))
    for n in range(500, 2_500, 500):
        soon_folded.record_cuts(cuts[n : n + 500], edge(n - 1))
    long = set(files())
    assert len(long) == 5
    for n in range(2_500, 2_506):
        soon_folded.record_cuts([cuts[n]], edge(n - 1))
    short = set(files()) - long
    assert long < set(files())
    assert len(short) < 6
    assert sum(pq.read_metadata(file).num_rows for file in short) == 6
    soon_folded.record_cuts(cuts[2_506:], edge(2_505))
    assert len(files()) == 1
    assert soon_folded.cuts("t") == cuts


def test_folded_files_are_read_in_parts(soon_folded: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "FOLDED", WriterProperties(max_row_group_size=8))
    soon_folded.record_cuts(hourly("t", [{0: n} for n in range(40)]), None)
    for n in range(40, 45):
        soon_folded.record_cuts([cut("t", edge(n), {0: n})], edge(n - 1))
    (folded,) = DeltaTable(tmp_path / "_ledger" / "cuts").file_uris()
    parts = pq.ParquetFile(folded).metadata
    assert [parts.row_group(n).num_rows for n in range(parts.num_row_groups)] == [8, 8, 8, 8, 8, 5]


def test_a_fold_that_fails_loses_nothing(soon_folded: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def compact(self, **_: Any) -> None:
            raise DeltaError("another process folded first")

    monkeypatch.setattr(DeltaTable, "optimize", property(lambda self: Broken()))
    for n in range(10):
        assert soon_folded.record_cuts([cut("t", edge(n), {0: n})], edge(n - 1) if n else None)
    assert len(soon_folded.cuts("t")) == 10


def test_folding_never_deletes_a_file_that_a_reader_may_still_hold(soon_folded: Ledger, tmp_path: Path) -> None:
    soon_folded.record_cuts(hourly("t", [{0: 0}]), None)
    reader = DeltaTable(tmp_path / "_ledger" / "cuts")
    for n in range(1, 20):
        soon_folded.record_cuts([cut("t", edge(n), {0: n})], edge(n - 1))
    assert reader.to_pyarrow_table().num_rows == 1
    assert any("remove" in entry for entry in log_entries(tmp_path / "_ledger" / "cuts"))


def test_newest_edges_follow_what_others_record_and_a_ledger_put_back(tmp_path: Path) -> None:
    ledger, other = Ledger(Lake.at(tmp_path)), Ledger(Lake.at(tmp_path))
    ledger.create()
    cuts = hourly("t", [{0: n} for n in range(4)])
    assert other.record_cuts(cuts[:2], None)
    assert ledger.newest_edges(["t", "u"]) == {"t": edge(1)}
    shutil.copytree(tmp_path / "_ledger", tmp_path / "backup")
    assert other.record_cuts(cuts[2:3], edge(1))
    assert other.record_cuts([cut("u", edge(0), {0: 0})], None)
    assert ledger.newest_edges(["t", "u"]) == {"t": edge(2), "u": edge(0)}
    shutil.rmtree(tmp_path / "_ledger")
    assert ledger.newest_edges(["t", "u"]) == {}
    shutil.copytree(tmp_path / "backup", tmp_path / "_ledger")
    assert ledger.newest_edges(["t", "u"]) == {"t": edge(1)}


def test_a_newest_cut_that_somebody_edits_is_not_told_from_memory(tmp_path: Path) -> None:
    ledger = Ledger(Lake.at(tmp_path))
    ledger.create()
    assert ledger.record_cuts(hourly("t", [{0: 3}, {0: 5}]), None)
    known = ledger.newest_cut("t")
    assert known is not None
    assert known.cut.offsets == {0: 5}
    table = DeltaTable(tmp_path / "_ledger" / "cuts")
    table.update(updates={"offset": "4"}, predicate='"offset" = 5')
    edited = ledger.newest_cut("t")
    assert edited is not None
    assert edited.cut.offsets == {0: 4}
    # The next cut is compared with what the ledger has now.
    with pytest.raises(LedgerCorruptError):
        ledger.record_cuts([cut("t", edge(2), {0: 3})], edge(1))
    table.delete('"offset" = 4')
    with pytest.raises(LedgerCorruptError):
        ledger.newest_cut("t")


# --- ledgers of earlier releases ------------------------------------------------------------------------------------


LATER = ("made_from", "engine", "confirmed_by")
"""Columns that the ledger of loads did not have in the first release, in the order of their introduction."""


def without_columns(root: Path, lacking: Sequence[str]) -> None:
    """Create the ledger of loads as an earlier release did."""
    Ledger(Lake.at(root)).create()
    commits = root / "_ledger" / "commits"
    fields = [f for f in DeltaTable(commits).schema().fields if f.name not in lacking]
    shutil.rmtree(commits)
    DeltaTable.create(commits, Schema(fields), partition_by=["table"])


@pytest.mark.parametrize("lacking", [LATER[n:] for n in range(len(LATER))], ids=lambda names: names[0])
def test_a_ledger_without_later_columns_is_read_and_gets_them_with_the_first_entry(
    tmp_path: Path, lacking: Sequence[str]
) -> None:
    without_columns(tmp_path, lacking)
    ledger, table = Ledger(Lake.at(tmp_path)), TableRef.raw("t")
    assert ledger.receipts(table) == {}
    window = sealed("t", "2026-01-01-00:00", p0=(0, 5))
    first = receipt(window)
    # As that release wrote it.
    entry = receipt_table([first]).drop_columns(list(lacking))
    write_deltalake(tmp_path / "_ledger" / "commits", entry, mode="append")
    assert ledger.receipts(table) == {window.key: first}
    load = TableLoad(TableRef.raw("t"), 7, "a load", "digest of a declaration")
    made = replace(receipt(window, version=2, load_id="derived"), table=TableRef("decoded", "t"), made_from=load)
    ledger.record_receipts([made])
    assert ledger.receipts(TableRef("decoded", "t")) == {window.key: made}
    assert ledger.receipts(table) == {window.key: first}
    again = receipt(window, version=3, load_id="again", engine="columnar", confirmed_by="connector")
    ledger.record_receipts([again])
    assert ledger.receipts(table) == {window.key: again}


def test_processes_that_add_a_column_at_once_all_write(tmp_path: Path) -> None:
    without_columns(tmp_path, LATER)
    windows = [sealed("t", f"2026-01-01-{hour:02}:00", p0=(hour, hour + 1)) for hour in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda w: Ledger(Lake.at(tmp_path)).record_receipts([receipt(w)]), windows))
    assert len(Ledger(Lake.at(tmp_path)).receipts(TableRef.raw("t"))) == 8


def test_topics_with_the_longest_names_have_cuts_receipts_folded_files_and_checks_of_their_own(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    for topic in ("x" * 249, "x" * 248 + "."):
        count = 18 if topic.endswith("x") else 2  # enough to fold the files of its receipts
        windows = recorded(tmp_path, topic, [{0: number} for number in range(count + 1)])
        for kind in ("raw", "decoded", "dead_letters"):
            for window in windows:
                Ledger(lake).record_receipts([receipt(window, table=TableRef(kind, topic))])
    for topic, count in (("x" * 249, 18), ("x" * 248 + ".", 2)):
        for kind in ("raw", "decoded", "dead_letters"):
            table = TableRef(kind, topic)  # type: ignore[arg-type]
            found = Ledger(lake).receipts(table)
            assert len(found) == count
            assert {r.table for r in found.values()} == {table}
            audit = audited.audited([], {}, windows=count, rows=count)
            audited.remember(lake, table, audit, [])
            assert audited.recall(lake, table) == audit


@pytest.mark.parametrize("error", [CommitFailedError("a transaction with the same id"), OSError(5, "no answer")])
def test_cuts_whose_commit_got_no_answer_are_recorded_and_nobody_was_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """An object store's client repeats such a commit, and the store refuses the repetition because it accepted the
    first request."""
    ledger = Ledger(Lake.at(tmp_path))
    ledger.create()
    assert ledger.record_cuts(hourly("t", [{0: 0}]), None)

    def unanswered(*given: Any, **more: Any) -> None:
        monkeypatch.setattr(recording, "write_deltalake", write_deltalake)
        write_deltalake(tmp_path / "_ledger" / "cuts", *given[1:], **more)
        raise error

    monkeypatch.setattr(recording, "write_deltalake", unanswered)
    assert ledger.record_cuts([cut("t", edge(1), {0: 5})], edge(0))
    assert [c.edge for c in ledger.cuts("t")] == [edge(0), edge(1)]
    assert ledger.record_cuts([cut("t", edge(2), {0: 6})], edge(1))
    assert not ledger.record_cuts([cut("t", edge(2), {0: 6})], edge(1))


def test_entries_of_a_tables_newest_life_count_whatever_their_version(tmp_path: Path) -> None:
    """Entries of releases without lives are the oldest. Within one life, the entry with the highest version is current."""
    ledger, window = Ledger(Lake.at(tmp_path)), sealed("t", "2026-01-01-00:00", p0=(0, 4), p1=(0, 2))
    ledger.create()
    for version, life in ((90, None), (50, "a"), (60, "a"), (2, "b"), (1, "b")):
        ledger.record_receipts([receipt(window, version=version, load_id=f"{life}{version}", table_id=life)])
    found = ledger.receipts(TableRef.raw("t"))[window.key]
    assert (found.load_id, found.table_id, len(found.partitions)) == ("b2", "b", 2)
    ledger.record_receipts([receipt(window, version=61, load_id="a61", table_id="a")])
    assert ledger.receipts(TableRef.raw("t"))[window.key].load_id == "a61"


def test_an_entry_without_a_table_id_belongs_to_the_life_before_it(tmp_path: Path) -> None:
    """During an upgrade or after a downgrade, a release without lives may write after a release that records them."""
    window, other = recorded(tmp_path, "people", [{0: 0}, {0: 100}, {0: 200}])
    ledger = Ledger(Lake.at(tmp_path))
    counting = list[str]()
    written = ((5, None), (9, "a"), (12, None), (11, None), (2, "b"), (3, None), (13, "a"), (14, None))
    for version, life in written:
        ledger.record_receipts([receipt(window, version=version, load_id=f"{version} {life}", table_id=life)])
        counting.append(ledger.receipts(TableRef.raw("people"))[window.key].load_id)
        if version == 9:
            ledger.record_receipts([receipt(other, version=1, load_id="other", table_id=None)])
    assert counting == ["5 None", "9 a", "12 None", "12 None", "2 b", "3 None", "13 a", "14 None"]
    assert ledger.receipts(TableRef.raw("people"))[other.key].load_id == "other"


def test_loads_of_another_life_than_the_restored_one_are_forgotten(tmp_path: Path) -> None:
    """The versions of the forgotten loads say nothing about the restored table."""
    ledger = Ledger(Lake.at(tmp_path))
    ledger.create()
    windows = [sealed("t", f"2026-01-01-0{n}:00", p0=(n, n + 1)) for n in range(4)]
    lives = ((5, "a"), (9, "a"), (1, "b'"), (3, None))
    ledger.record_receipts(
        [receipt(w, version=v, load_id=w.key, table_id=life) for w, (v, life) in zip(windows, lives, strict=True)]
    )
    assert rollback.forget_loads(ledger.lake, TableRef.raw("t"), 6, "a") == (windows[1].key, windows[2].key)
    assert sorted(ledger.receipts(TableRef.raw("t"))) == [windows[0].key, windows[3].key]
