"""Ranges replayed from a shell: in place with proof, and into a second table, which leaves the live table unchanged."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from platform_assets.engines.protocol import LoadEngine
from platform_assets.errors import OffsetsVanishedError, PlatformError
from platform_assets.lake.location import Lake
from platform_assets.ledger.decisions import Author
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange
from platform_assets.windows.decide import generations
from platform_assets.windows.load.replacing import Loaded
from platform_assets.windows.replay.replaying import Replay, fresh_loader, plan
from platform_assets_tests.support.damage import data_files, delete_rows
from platform_assets_tests.support.runs_of import minutes_ago
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, ShellOf
from platform_assets_tests.support.streams import create_again, delete_before
from testbed.loads import Record, TopicLake, numbered, records, table_rows, whole

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, LakeMaker

pytestmark = [pytest.mark.broker, *map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]


def fresh_table(lk: TopicLake, name: str) -> Path:
    return lk.root / "replays" / name / "raw" / lk.topic


def alter(lk: TopicLake, key: str, value: bytes) -> None:
    """Change only one byte of a record's value in the data file."""
    (file,) = data_files(lk, key)
    content = file.read_bytes()
    assert content.count(value) == 1, "the value has to be in the file as it is, as random bytes are"
    file.write_bytes(content.replace(value, bytes([value[0] ^ 1]) + value[1:]))


def beside(result: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_beside_the_table_a_range_is_equal_and_one_altered_record_is_found(
    lake: LakeMaker, shell_of: ShellOf, rng: random.Random
) -> None:
    lk = lake(partitions=2, start=minutes_ago(8))
    values = [rng.randbytes(100) for _ in range(9)]
    keys = [lk.window_of([Record(value, b"k", 0, headers=(("h", b"1"),)) for value in values])]
    lk.abort([Record(b"never", partition=1)] * 3)
    lk.commit(numbered(8, 2, "t"))
    keys += [lk.close_window(), lk.close_window(), lk.window_of(numbered(4))]
    for key in keys:
        lk.load(key)
    shell, before = shell_of(lk), lk.snapshot()
    span = f"{keys[0]}..{keys[2]}"

    planned = shell.run("replay", lk.topic, span, "--into", "again", "--dry-run")
    assert planned.exit_code == 0, planned.output
    assert f"raw/{lk.topic}: the selection covers 3 windows: 23 offsets, 17 records" in planned.stdout
    assert not (lk.root / "replays").exists()

    made = shell.run("replay", lk.topic, span, "--into", "again", "--json")
    assert made.exit_code == 0, made.output
    found = beside(made)
    assert found["equal"] is True
    assert found["loaded"] == {keys[0]: "loaded", keys[1]: "loaded", keys[2]: "empty"}
    assert [w["window"] for w in found["compared"]] == keys[:3]
    parts = found["compared"][1]["partitions"]
    assert [(p["partition"], p["live"]["rows"], p["live"] == p["fresh"]) for p in parts] == [(0, 4, True), (1, 4, True)]
    receipt = lk.ledger.receipts(lk.declaration.raw_table)[keys[1]]
    assert sum(int(p["live"]["content_digest"]) for p in parts) == receipt.content_digest
    fresh = Path(found["fresh"])
    assert fresh == fresh_table(lk, "again")
    assert whole(table_rows(fresh)) == [r.whole for r in lk.rows() if r.window in keys[:3]]
    # The live table is unchanged, and the fresh table does not count as a table of the lake.
    assert lk.snapshot() == before
    assert [t.name for t in Lake.at(lk.root).tables()] == [f"raw/{lk.topic}"]

    # A replay with the same name continues where the first one was interrupted.
    again = shell.run("replay", lk.topic, span, "--into", "again")
    assert again.exit_code == 0, again.output
    assert f"{keys[0]}: unchanged, 9 rows from 9 offsets" in again.stdout
    assert f"raw/{lk.topic} matches Kafka: 3 windows, 17 rows" in again.stdout
    later = shell.run("replay", lk.topic, keys[3], "--into", "later")
    assert later.exit_code == 0, later.output
    refused = shell.run("replay", lk.topic, span, "--into", "later")
    assert (refused.exit_code, "holds a replay of another range" in refused.stderr.replace("\n", " ")) == (1, True)

    alter(lk, keys[0], values[5])
    altered = shell.run("replay", lk.topic, "--partition", "0", "--from", "5", "--to", "6", "--into", "proof")
    assert altered.exit_code == 1
    assert (
        "partition 0: 9 rows in the table, 9 rows from Kafka; with a different value: offsets [5, 6)" in altered.stdout
    )
    assert f"raw/{lk.topic} DIFFERS from Kafka in 1 of 1 window" in altered.stdout
    healed = shell.run("replay", lk.topic, f"{keys[0]}..", "--json")
    assert healed.exit_code == 0, healed.output
    assert [w["outcome"] for w in beside(healed)["windows"]] == ["healed", "unchanged", "empty", "unchanged"]
    assert records(lk.rows()) == records(lk.committed())


def test_in_place_all_windows_that_offsets_or_timestamps_touch_are_said_and_loaded(
    lake: LakeMaker, shell_of: ShellOf
) -> None:
    lk = lake(start=minutes_ago(8))
    keys = [lk.window_of(numbered(10, stem=f"{n}-")) for n in range(3)]
    shell = shell_of(lk)
    assert shell.run("load", lk.topic, keys[0], keys[1]).exit_code in (0, 1)
    delete_rows(lk, keys[0])
    result = shell.run("replay", lk.topic, "--partition", "0", "--from", "9", "--to", "40")
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[:5] == [
        f"raw/{lk.topic}: the selection covers 3 windows: 30 offsets, 20 records according to the receipts",
        "partition 0 offsets [30, 40) are in no sealed window",
        f"{keys[0]}: 10 offsets, 10 records: will be read again, and either proved equal or repaired",
        f"{keys[1]}: 10 offsets, 10 records: will be read again, and either proved equal or repaired",
        f"{keys[2]}: 10 offsets, never loaded: will be loaded for the first time",
    ]
    assert [line.partition(",")[0] for line in lines[5:8]] == [
        f"{keys[0]}: healed", f"{keys[1]}: unchanged", f"{keys[2]}: loaded"
    ]  # fmt: skip
    assert result.exit_code == 0, result.output
    assert records(lk.rows()) == records(lk.committed())
    moment = lk.rows(keys[1])[0].timestamp
    before = lk.snapshot()
    since, until = _utc(moment // 1000), _utc(moment // 1000 + 1)
    planned = beside(shell.run("replay", lk.topic, "--since", since, "--until", until, "--dry-run", "--json"))
    assert keys[1] in [w["window"] for w in planned["plan"]]
    assert planned["dry_run"] is True
    assert lk.snapshot() == before
    for wrong in (
        (),
        (keys[0], "--partition", "0"),
        ("--partition", "0", "--from", "4", "--to", "4"),
        ("--since", since),
    ):
        assert shell.run("replay", lk.topic, *wrong).exit_code == 2
    assert shell.run("replay", lk.topic, keys[0], "--into", "../raw").exit_code == 1


def _utc(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_what_kafka_has_no_more_is_kept_in_place_and_not_compared_beside(
    lake: LakeMaker, shell_of: ShellOf, broker: Broker
) -> None:
    lk = lake(start=minutes_ago(8))
    keys = [lk.window_of(numbered(10, stem=f"{n}-")) for n in range(2)]
    for key in keys:
        lk.load(key)
    delete_before(broker.bootstrap, lk.topic, 0, 4)
    shell, before = shell_of(lk), lk.snapshot()
    made = shell.run("replay", lk.topic, "..", *keys[1:], "--into", "a")
    assert made.exit_code == 1, "a span without an end names no window"
    made = shell.run("replay", lk.topic, f"..{keys[1]}", "--into", "a", "--json")
    assert made.exit_code == 0, made.output
    found = beside(made)
    assert [(w["window"], w["left_out"], w["rows_left_out"]) for w in found["compared"]] == [
        (keys[0], {"0": [[0, 4]]}, 4), (keys[1], {}, 0)
    ]  # fmt: skip
    assert [r.offset for r in table_rows(fresh_table(lk, "a"))] == list(range(4, 20))
    assert lk.snapshot() == before
    kept = shell.run("replay", lk.topic, *keys)
    assert kept.exit_code == 0, kept.output
    assert "Kafka no longer has partition 0 offsets [0, 4): will be kept if its rows match its receipt" in kept.stdout
    assert f"{keys[0]}: kept, 10 rows" in kept.stdout
    delete_before(broker.bootstrap, lk.topic, 0, 10)
    nothing = shell.run("replay", lk.topic, keys[0], "--into", "b")
    assert nothing.exit_code == 1
    assert "Kafka no longer has any of these offsets" in nothing.stderr
    assert not (lk.root / "replays" / "b").exists()


def test_a_topic_made_again_is_replayed_once_its_new_generation_is_accepted(
    lake: LakeMaker, shell_of: ShellOf, broker: Broker
) -> None:
    lk = lake(start=minutes_ago(8))
    first = lk.window_of(numbered(6, stem="old"))
    lk.load(first)
    create_again(broker, lk.topic)
    lk.send(numbered(5, stem="new"))
    shell = shell_of(lk)
    for into in ((), ("--into", "x")):
        refused = shell.run("replay", lk.topic, first, *into)
        assert refused.exit_code == 1
        assert f"platform-assets accept-generation {lk.topic}" in refused.stderr.replace("\n", " ")
    assert not (lk.root / "replays").exists()
    change = generations.find(lk.topic, lk.ledger, lk.cluster)
    assert change is not None
    generations.accept(change, Author("tests", "made again"), lk.ledger)
    second = lk.close_window()
    lk.load(second)
    made = shell.run("replay", lk.topic, first, second, "--into", "x", "--json")
    assert made.exit_code == 0, made.output
    found = beside(made)
    assert [(w["generation"], w["kafka_has"], w["in_place"]) for w in found["plan"]] == [
        (1, 0, "keep"),
        (2, 5, "compare"),
    ]
    assert [w["rows_left_out"] for w in found["compared"]] == [6, 0]
    assert [r.value for r in table_rows(fresh_table(lk, "x"))] == [b"new%d" % n for n in range(5)]
    ids = {w.key: w.topic_id for w in lk.ledger.windows(lk.topic)}
    assert {r.topic_id for r in table_rows(fresh_table(lk, "x"))} == {ids[second]}


# --- during loads, and interrupted ----------------------------------------------------------------------------------


class Waiting:
    """An engine that writes only after it is released."""

    def __init__(self, engine: LoadEngine) -> None:
        self.engine, self.asked, self.let = engine, threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def write(self, *arguments: Any) -> Any:
        self.asked.set()
        assert self.let.wait(120)
        return self.engine.write(*arguments)


def begun(
    lk: TopicLake, name: str, keys: list[str], around: Callable[[LoadEngine], LoadEngine] = lambda engine: engine
) -> tuple[Replay, Iterator[tuple[str, Loaded | PlatformError]]]:
    """Begin a replay of these windows. Each window is loaded when the iteration reaches it. `around` wraps the replay's
    engine."""
    live = lk.loader()

    def engine(lake: Lake) -> LoadEngine:
        return around(replace(lk, root=Path(str(lake))).engine)

    windows = [w for w in lk.ledger.windows(lk.topic) if w.key in keys]
    replay = Replay.begin(live, fresh_loader(live, name, engine), plan(live, windows))
    return replay, replay.load(windows, lambda: None)


def test_loads_into_the_live_table_go_on_while_a_range_is_replayed(lake: LakeMaker) -> None:
    lk = lake(partitions=2)
    keys = [lk.window_of(numbered(12, 2, f"{n}-")) for n in range(5)]
    for key in keys[:3]:
        lk.load(key)
    delete_rows(lk, keys[0])
    waiting = Waiting(lk.engine)
    outcomes: list[Loaded] = []

    def load() -> None:
        outcomes.extend(lk.loader(engine=waiting).load(key) for key in (keys[3], keys[0], keys[4]))

    loading = threading.Thread(target=load)
    replay, loads = begun(lk, "beside", keys[:4])
    first = next(loads)
    loading.start()
    try:
        # A load into the live table is in progress while the replay writes and commits the other windows.
        assert waiting.asked.wait(60)
        rest = dict([first, *loads])
        assert all(isinstance(o, Loaded) and o.outcome == "loaded" for o in rest.values())
        windows = {w.key: w for w in lk.ledger.windows(lk.topic)}
        damaged = replay.compare(windows[keys[0]], rest[keys[0]])
        assert [p.only_fresh for p in damaged.partitions if not p.equal] == [(OffsetRange(3, 4), OffsetRange(5, 6))] * 2
    finally:
        waiting.let.set()
        loading.join(120)
    assert [o.outcome for o in outcomes] == ["loaded", "healed", "loaded"]
    assert all(replay.compare(windows[key], rest[key]).equal for key in keys[:4])
    assert records(lk.rows()) == records(lk.committed())
    assert set(replay.fresh.ledger.receipts(lk.declaration.raw_table)) == set(keys[:4])


def test_a_replay_that_was_killed_is_gone_on_with_by_its_name(lake: LakeMaker) -> None:
    lk = lake()
    keys = [lk.window_of(numbered(5, stem=f"{n}-")) for n in range(3)]
    for key in keys:
        lk.load(key)
    before = lk.snapshot()

    class Killed(BaseException):
        """An error that, like SIGKILL, `except Exception` cannot catch."""

    _, loads = begun(lk, "k", keys)
    assert next(loads)[0] == keys[0]
    with pytest.raises(Killed):
        loads.throw(Killed)  # type: ignore[attr-defined]
    replay, loads = begun(lk, "k", keys)
    done = dict(loads)
    assert [o.outcome for o in done.values() if isinstance(o, Loaded)] == ["unchanged", "loaded", "loaded"]
    windows = {w.key: w for w in lk.ledger.windows(lk.topic)}
    assert all(replay.compare(windows[key], done[key]).equal for key in keys)
    assert lk.snapshot() == before


def test_a_loss_accepted_of_the_live_table_is_taken_over(lake: LakeMaker) -> None:
    lk = lake()
    key = lk.window_of(numbered(6))
    (window,) = lk.ledger.windows(lk.topic)
    lk.ledger.record_acceptance(window, {0: (window.ranges.by_partition[0].before(2),)}, "a test")
    lk.load(key)
    replay, loads = begun(lk, "l", [key])
    ((_, outcome),) = loads
    found = replay.compare(window, outcome)
    assert (found.equal, found.rows, found.rows_left_out) == (True, 4, 0)
    assert Ledger(Lake.at(lk.root / "replays" / "l")).accepted_losses(lk.declaration.raw_table, key)


def test_offsets_that_retention_takes_while_they_are_read_are_left_out(lake: LakeMaker, broker: Broker) -> None:
    lk = lake()
    key = lk.window_of(numbered(8))
    lk.load(key)
    lost: list[str] = []

    class Overtaken(Waiting):
        def write(self, *arguments: Any) -> Any:
            if not lost:
                lost.append(key)
                delete_before(broker.bootstrap, lk.topic, 0, 3)
                raise OffsetsVanishedError(lk.topic, key, "a test")
            return self.engine.write(*arguments)

    replay, loads = begun(lk, "o", [key], Overtaken)
    ((_, outcome),) = loads
    assert isinstance(outcome, Loaded)
    found = replay.compare(lk.ledger.windows(lk.topic)[0], outcome)
    assert (found.equal, found.rows, found.rows_left_out) == (True, 5, 3)
    assert found.left_out == {0: (OffsetRange(0, 3),)}
