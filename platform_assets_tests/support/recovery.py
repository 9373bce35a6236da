"""Histories of a topic's lake, with maintenance, damage and lost ledgers. At the end of each history, the lake is
compared with the producer's notes. Tables are read only with delta-rs. Neither Kafka nor Spark is needed."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from platform_assets.errors import (
    DamagedRowsError,
    ErasureUnfinishedError,
    LoadError,
    LostForGoodError,
    MigrationDamageError,
    OffsetsExpiredError,
    ReloadDiffersError,
    UnprovedRowsError,
    UnrecordedLoadError,
    WindowError,
)
from platform_assets.lake import holdings
from platform_assets.lake.location import Folder
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.offsets import OffsetRange
from platform_assets.windows.load.replacing import Outcome
from platform_assets.windows.maintain.merging import Upkeep
from platform_assets.windows.maintain.migrating import Migration
from platform_assets.windows.recover.rebuild import Rebuilt, rebuild
from platform_assets_tests.support.erasures import MadeTopic
from platform_assets_tests.support.made_kafka import MadeCluster, deciding_of, loader_of

ROWS: Final = 20
"""Number of rows that a window has in each of two partitions."""
WINDOWS: Final = 4
Place = tuple[int, int]
"""Partition and offset."""
EVENTS: Final = (
    "compact", "z_order", "vacuum", "clean log", "delete", "file", "ledger", "rollback", "backup", "expire", "forget", "load",
    "erase", "restore",
)  # fmt: skip


def made_topic(root: Path) -> MadeTopic:
    """Return a topic with two partitions in which each window has several files."""
    topic = MadeTopic(root)
    topic.declaration = replace(topic.declaration, records_per_file=ROWS // 2)
    return topic


def loaded_windows(topic: MadeTopic, kafka: MadeCluster, number: int = WINDOWS) -> list[SealedWindow]:
    """Load `number` windows without decoding them. Each value contains its window, partition and number."""
    sealed = topic.seal(
        [{p: [(b"k%d" % i, b"%d/%d/%d" % (w, p, i)) for i in range(ROWS)] for p in (0, 1)} for w in range(number)]
    )
    for window in sealed:
        assert loader_of(topic, kafka).load(window.key).outcome == "loaded"
    return sealed


def table(topic: MadeTopic, kind: str = "raw") -> DeltaTable:
    return DeltaTable(topic.root / kind / topic.topic)


def compact(delta: DeltaTable) -> None:
    assert delta.optimize.compact()["numFilesRemoved"]


def z_order(delta: DeltaTable) -> None:
    assert delta.optimize.z_order(["kafka_offset"])["numFilesRemoved"]


def vacuum(delta: DeltaTable) -> None:
    assert delta.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)


def clean_log(delta: DeltaTable) -> None:
    """Remove all commits before the newest commit, in the same way as log retention. The newest commit does not belong
    to any window."""
    append_elsewhere(delta)
    delta.create_checkpoint()
    for version in range(delta.version()):
        Path(delta.table_uri.removeprefix("file://"), "_delta_log", f"{version:020}.json").unlink(missing_ok=True)


def append_elsewhere(delta: DeltaTable) -> None:
    """Make a commit that does not concern any window."""
    delta.alter.set_table_properties({"delta.logRetentionDuration": "interval 30 days"})


def lose_ledger(topic: MadeTopic) -> None:
    shutil.rmtree(topic.root / "_ledger")


def lose_file(topic: MadeTopic, key: str) -> None:
    """Delete one data file of a window, if the window has any files."""
    folder = topic.root / "raw" / topic.topic
    for path in holdings.files_of(Folder.at(folder), key).paths[:1]:
        (folder / unquote(path)).unlink(missing_ok=True)


def rebuilt(topic: MadeTopic) -> Rebuilt:
    return rebuild(topic.declaration, topic.ledger, topic.engine)


def files_that_may_hold(delta: DeltaTable, key: str) -> list[dict[str, Any]]:
    """Return the files of a flat table whose statistics do not exclude a window."""
    files = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
    return [f for f in files if f.get("min.window") is None or f["min.window"] <= key <= f["max.window"]]


@dataclass
class History:
    """History of a topic whose windows were loaded. `notes` are the producer's notes: the value at each partition and
    offset. `erased` contains the partition and offset of each erased record. `forgotten` contains those entries of
    `erased` that a ledger no longer has to know. `first` is the start of the first window according to the last
    rebuild. `met` counts the outcomes of the loads that were checked. `is_lost` becomes true when the ledger, the log's
    loads and all data files are lost, so that the lake can only be restored from a backup."""

    topic: MadeTopic
    kafka: MadeCluster
    rng: random.Random
    story: list[str] = field(default_factory=list)
    erased: set[Place] = field(default_factory=set)
    forgotten: set[Place] = field(default_factory=set)
    first: dict[int, int] = field(default_factory=dict)
    met: Counter[str] = field(default_factory=Counter)
    is_lost: bool = False

    def __post_init__(self) -> None:
        self.notes = {(r.partition, r.offset): r.value for r in self.topic.records}
        self.windows = self.topic.ledger.windows(self.topic.topic)
        self._backup = self.topic.root.parent / "ledger of before"

    def happens(self) -> None:
        """Do one maintenance step, or damage one window."""
        if self.is_lost:
            return
        topic, rng, delta = self.topic, self.rng, table(self.topic)
        flat = not delta.metadata().partition_columns
        what, key = (
            rng.choice((*EVENTS, *(("upkeep", "upkeep") if flat else ("migrate",)))),
            rng.choice(self.windows).key,
        )
        self.story.append(f"{what} {key}")
        match what:
            # delta-rs's own ends with an error if a file is lost.
            case "compact":
                with contextlib.suppress(DeltaError):
                    delta.optimize.compact()
            case "z_order":
                with contextlib.suppress(DeltaError):
                    delta.optimize.z_order(["kafka_offset"])
            case "vacuum":
                delta.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
            case "clean log":
                clean_log(delta)
            case "delete":
                with contextlib.suppress(DeltaError):
                    delta.delete(f"window = '{key}' AND kafka_partition = {rng.randrange(2)} AND kafka_offset % 3 = 0")
            case "file":
                lose_file(topic, key)
            case "ledger":
                lose_ledger(topic)
                self._rebuild()
            case "backup":
                shutil.rmtree(self._backup, ignore_errors=True)
                shutil.copytree(topic.root / "_ledger", self._backup)
            case "rollback":
                if self._backup.exists():
                    lose_ledger(topic)
                    shutil.copytree(self._backup, topic.root / "_ledger")
                    self._rebuild()
            case "expire":
                self.kafka.expire(rng.randrange(2), rng.randrange(WINDOWS * ROWS))
            case "forget":
                start = rng.randrange(WINDOWS * ROWS)
                self.kafka.forget(rng.randrange(2), range(start, start + 5))
            case "erase":
                self._erase(rng.randrange(2), rng.randrange(WINDOWS * ROWS))
            case "upkeep":
                # A group with a damaged window is left unchanged.
                upkeep = Upkeep(topic.declaration.raw_table, topic.ledger, target=rng.choice((4_000, 1 << 20)))
                list(upkeep.run("9999"))
            case "migrate":
                with contextlib.suppress(MigrationDamageError):
                    Migration(topic.declaration.raw_table, topic.ledger, rng.choice((4_000, 1 << 20))).run()
            case "restore":
                with contextlib.suppress(DeltaError):
                    delta.restore(rng.randrange(delta.version() + 1))
            case _:
                # A ledger that was rebuilt from an older table may not have the window.
                with contextlib.suppress(LoadError, WindowError):
                    self._load(key)

    def _rebuild(self) -> None:
        self.forgotten |= self.erased
        try:
            self.first = dict(rebuilt(self.topic).first) or self.first
        except LoadError as e:
            if "Restore the table from a backup" not in str(e) or any(self.rows(w.key) for w in self.windows):
                raise
            self.is_lost = True

    def _erase(self, partition: int, offset: int) -> None:
        found = [
            w for w in self.topic.ledger.windows(self.topic.topic) if offset in w.ranges.by_partition.get(partition, ())
        ]
        if not found:
            return
        ranges = {partition: (OffsetRange(offset, offset + 1),)}
        with contextlib.suppress(ErasureUnfinishedError):
            deciding_of(self.topic, self.kafka, []).erasure(ranges, [])
        self.erased.add((partition, offset))
        self.forgotten.discard((partition, offset))

    def _load(self, key: str) -> Outcome:
        return loader_of(self.topic, self.kafka).load(key).outcome

    # --- the end of it

    def ends_well(self) -> None:
        """Load each window. If there is an error, follow its remedy to the end. Check the errors and the table."""
        if self.is_lost:
            return
        for window in self.topic.ledger.windows(self.topic.topic):
            if window.ranges.size:
                self._judge_load(window)
            else:
                assert self._load(window.key) == "empty"
        self._judge_table()

    def _judge_load(self, window: SealedWindow) -> None:
        wanted = self._of(window) - self.erased
        kafka = self._in_kafka() & wanted
        before = self.rows(window.key)
        loaded = self._tried(window.key)
        self.met[loaded if isinstance(loaded, str) else type(loaded).__name__] += 1
        said = self.said(window, loaded)
        # A load that is refused leaves the table as it was.
        versions = self._in_versions(window) if isinstance(loaded, LoadError) else set[Place]()
        kept = versions & wanted
        exact = True
        match loaded:
            case LostForGoodError():
                anywhere = self._in_kafka() | versions
                # A ledger without the erasure treats the erased record like any other row.
                assert not wanted | self._of(window) & self.forgotten <= anywhere, said
                assert not _places(loaded.gone) & anywhere, said
                assert 0 < loaded.lost <= len(self._of(window) - anywhere), said
                self._accept(window)
                kafka |= kept
            case UnrecordedLoadError():
                new = _places(loaded.new)
                assert new <= kafka | self.forgotten, said
                assert not new or not new & set(before or new), said
                others = new - self.forgotten
                self._erase_again(new & self.forgotten)
                if others or not new:
                    self._accept(window)
                    kafka |= kept
            case DamagedRowsError():
                # The receipt has a record that was erased since and is nowhere now, so nothing proves the others.
                assert self.erased & self._of(window), said
                assert not self.erased & self._of(window) <= self._in_kafka() | versions, said
                self._accept(window)
                kafka |= kept
            case UnprovedRowsError():
                assert before is None or set(before) - kafka, said
                self._accept(window)
                kafka |= kept
            case OffsetsExpiredError():
                # There is no receipt, and the table has none of the rows that Kafka lacks.
                assert before is not None, said
                assert not _places(loaded.lost) & (self._in_kafka() | set(before)), said
                self._accept(window)
                kafka |= kept if before else set()
                self._load(window.key)
            case ReloadDiffersError():
                # Kafka has fewer: the table keeps what it has.
                assert set(before or ()) - kafka - self.erased, said
            case LoadError():
                raise loaded
            case outcome:
                is_found = self.topic.receipts()[window.key].is_found
                if outcome == "restored" and is_found:
                    # The next load reports the other records that Kafka has.
                    self._judge_load(window)
                    return
                # Kafka was not asked for the remaining records.
                exact = not (outcome == "kept" and is_found)
        after = self.rows(window.key)
        assert after is not None, said
        missing = kafka - set(after)
        assert not missing or not exact, self.said(window, f"{loaded}\nlacks {sorted(missing)}")
        back = set(after) & self.erased - self.forgotten
        assert not back, self.said(window, f"{loaded}\nerased records are back: {sorted(back)}")
        again = self._tried(window.key)
        done = again in ("unchanged", "kept") or isinstance(again, ReloadDiffersError)
        assert done, self.said(window, f"{loaded}, then {again}")

    def _tried(self, key: str) -> Outcome | LoadError:
        try:
            return self._load(key)
        except LoadError as e:
            return e

    def _judge_table(self) -> None:
        rows = table(self.topic).to_pyarrow_table(columns=["window", "kafka_partition", "kafka_offset", "value"])
        held = [(r["kafka_partition"], r["kafka_offset"]) for r in rows.to_pylist()]
        assert len(held) == len(set(held)), self.said(None, "the table has rows twice")
        windows = {w.key: self._of(w) for w in self.topic.ledger.windows(self.topic.topic)}
        for row in rows.to_pylist():
            place = row["kafka_partition"], row["kafka_offset"]
            assert row["value"] == self.notes[place], self.said(None, f"{place} has another value")
            assert place in windows[row["window"]], self.said(None, f"{place} is in window {row['window']}")
        covered: set[Place] = set().union(*windows.values())
        newest = self.topic.ledger.newest_cut(self.topic.topic)
        if newest is None:
            # The table was new when its log was cleaned and its ledger lost, so everything starts again.
            return
        for p, o in set(self.notes) - covered:
            # Records after the newest cut come with the next window.
            assert o >= newest.cut.at(p) or o < self.first.get(p, 0), self.said(None, f"{(p, o)} is in no window")

    def _accept(self, window: SealedWindow) -> None:
        said = list[str]()
        deciding_of(self.topic, self.kafka, said).loss(window.key)
        assert said[-1].startswith("accepted"), self.said(window, said)

    def _erase_again(self, places: Iterable[Place]) -> None:
        for partition, offset in sorted(places):
            self._erase(partition, offset)

    def _of(self, window: SealedWindow) -> set[Place]:
        return {place for place in self.notes if place[1] in window.ranges.by_partition.get(place[0], ())}

    def _in_kafka(self) -> set[Place]:
        return {(r.partition, r.offset) for r in self.topic.records}

    def _in_versions(self, window: SealedWindow) -> set[Place]:
        """Return all partitions and offsets of this window that have a row in any readable version."""
        versions = range(table(self.topic).version() + 1)
        return set[Place]().union(*(self.rows(window.key, version) or () for version in versions))

    def rows(self, key: str, version: int | None = None) -> dict[Place, bytes] | None:
        """Return the rows of a window at a version, read only with delta-rs and Parquet, or None if the rows cannot be
        read."""
        folder = self.topic.root / "raw" / self.topic.topic
        columns = ["kafka_partition", "kafka_offset", "value"]
        try:
            delta = DeltaTable(folder, version=version)
            if delta.metadata().partition_columns:
                rows = delta.to_pyarrow_table(filters=[("window", "=", key)], columns=columns).to_pylist()
            else:
                # delta-rs's dataset opens no file that cannot hold the window, but cannot filter texts that its Z-order wrote.
                files = [unquote(file["path"]) for file in files_that_may_hold(delta, key)]
                read = [pq.ParquetFile(folder / name).read([*columns, "window"]).to_pylist() for name in files]
                rows = [row for some in read for row in some if row["window"] == key]
        except (DeltaError, OSError):
            return None
        return {(r["kafka_partition"], r["kafka_offset"]): r["value"] for r in rows}

    def said(self, window: SealedWindow | None, what: object) -> str:
        """Return the story and this fault as the message of a failing test."""
        return "\n".join([*self.story, f"{'the table' if window is None else window.key}: {what}"])


def _places(ranges: Iterable[tuple[int, int, int]]) -> set[Place]:
    return {(p, o) for p, start, end in ranges for o in range(start, end)}


def a_history(root: Path, rng: random.Random, events: int = 12) -> History:
    """Make a topic with loaded windows below `root`. Then let `events` random events happen."""
    topic = made_topic(root / "lake")
    kafka = MadeCluster(topic)
    loaded_windows(topic, kafka)
    history = History(topic, kafka, rng)
    for _ in range(events):
        history.happens()
    return history
