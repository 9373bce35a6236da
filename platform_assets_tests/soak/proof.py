"""Conditions that must hold once all services are back without intervention: tables are complete, and nothing is left
over."""

from __future__ import annotations

import bisect
import fnmatch
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from deltalake import DeltaTable

from platform_assets.errors import BrokerUnreachableError
from platform_assets.lake import delta_log, load_log
from platform_assets.lake.leftovers import FOREVER
from platform_assets.lake.location import Lake
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.tables import TableRef
from platform_assets_tests.soak.embedded import Embedded
from platform_assets_tests.support.history import Row, Send, check_history

_UNFINISHED: Final = ("_temporary", "_staging", ".spark-staging*")
"""Names of folders that contain the files of unfinished writes."""
_PAUSE: Final = 2.0
"""Seconds between two queries of the state. Each query costs as much as a small load."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of several tables: the number of sealed windows, the number of loaded windows, and the number of
    unfinished runs."""

    sealed: int
    loaded: int
    unfinished: int

    @property
    def complete(self) -> bool:
        """True if all sealed windows are loaded and Dagster has nothing to do."""
        return self.sealed == self.loaded and not self.unfinished


def progress(platform: Embedded, topics: Sequence[str]) -> Progress:
    """Return the combined progress of these topics."""
    sealed = loaded = 0
    for topic in topics:
        keys = {w.key for w in platform.ledger.windows(topic)}
        sealed += len(keys)
        loaded += len(keys & set(platform.ledger.receipts(TableRef.raw(topic))))
    return Progress(sealed, loaded, len(platform.unfinished_runs()))


def is_covered(platform: Embedded, topic: str) -> bool:
    """Return True if all current records of the topic are in loaded windows; False if brokers do not answer yet."""
    try:
        ends = platform.cluster.last_stable_offsets(platform.cluster.topic(topic))
    except BrokerUnreachableError:
        return False
    receipts = platform.ledger.receipts(TableRef.raw(topic))
    windows = platform.ledger.windows(topic)
    if not windows or any(w.key not in receipts for w in windows):
        return False
    newest = windows[-1].ranges.by_partition
    return all(p in newest and newest[p].end >= f.offset for p, f in ends.items())


def healed(
    platform: Embedded,
    topics: Sequence[str],
    seconds: float,
    alive: Callable[[], None] = lambda: None,
) -> float:
    """Wait until all records of `topics` are loaded and no run is in progress; return the number of seconds that this
    took.

    Raises AssertionError if it takes longer than `seconds`, because a user would have had to intervene.
    """
    began = time.monotonic()
    while not (all(is_covered(platform, t) for t in topics) and progress(platform, topics).complete):
        alive()
        if time.monotonic() - began > seconds:
            status = platform.command("status")
            raise AssertionError(
                f"no recovery without intervention after {seconds:g} s: {progress(platform, topics)}\n{status.text}"
            )
        time.sleep(_PAUSE)
    return time.monotonic() - began


def table_of(platform: Embedded, topic: str) -> Path:
    """Return the folder of a topic's raw table."""
    return platform.lake / "raw" / topic


def rows(platform: Embedded, topic: str) -> list[Row]:
    """Return the table's rows, read without Spark."""
    found = DeltaTable(table_of(platform, topic)).to_pyarrow_table(columns=["kafka_partition", "kafka_offset", "value"])
    return [Row(*values) for values in zip(*(column.to_pylist() for column in found.columns), strict=True)]


def anomalies(platform: Embedded, topic: str, sends: Sequence[Send]) -> list[str]:
    """Return the anomalies that `sends`, the deep audit and a search for leftovers show in the topic's table."""
    windows = platform.ledger.windows(topic)
    found = [str(a) for a in check_history(sends, rows(platform, topic), [w.ranges for w in windows])]
    audit = platform.command("audit", f"raw/{topic}", "--deep")
    if audit.code:
        found.append(f"`audit --deep` exited with code {audit.code}: {audit.text}")
    return found + leftovers(platform, topic)


def records_by_window(windows: Sequence[SealedWindow], places: Iterable[tuple[int, int | None]]) -> dict[str, int]:
    """Return the number of `places` (partition, offset) in each window."""
    found = dict.fromkeys((w.key for w in windows), 0)
    ends = {
        p: [w.ranges.by_partition[p].end for w in windows if p in w.ranges.by_partition] for p in _partitions(windows)
    }
    of_partition = {p: [w.key for w in windows if p in w.ranges.by_partition] for p in ends}
    for partition, offset in places:
        assert offset is not None
        number = bisect.bisect_right(ends[partition], offset)
        if number < len(ends[partition]):
            found[of_partition[partition][number]] += 1
    return found


def _partitions(windows: Sequence[SealedWindow]) -> set[int]:
    return {p for w in windows for p in w.ranges.by_partition}


def leftovers(platform: Embedded, topic: str) -> list[str]:
    """Return leftovers of crashes that are never needed again: runs that never end, the processes of runs, and folders
    of unfinished writes."""
    found = [f"run {run} never ends" for run in platform.unfinished_runs()]
    found += [f"process {pid} of a run is still running" for pid in platform.run_processes()]
    folder = Lake.at(platform.home.lake).table(TableRef.raw(topic))
    if folder.is_in_store:
        # An object store has no folders: the directory markers that Spark's s3a leaves are empty.
        parts = {name: Path(name).parts for name in folder.written_before(FOREVER, "")}
        return found + [f"file {n} is left" for n, p in parts.items() if any(fnmatch.filter(p, u) for u in _UNFINISHED)]
    return found + [f"folder {path} is left" for name in _UNFINISHED for path in table_of(platform, topic).rglob(name)]


def orphans(platform: Embedded, topic: str) -> list[Path]:
    """Return data files in the table's folder that no commit of the table has added."""
    table = table_of(platform, topic)
    folder = Lake.at(platform.home.lake).table(TableRef.raw(topic))
    commits = (delta_log.commit(folder, version) for version in range(load_log.version(folder) + 1))
    # Paths in the Delta log are percent-encoded.
    named = {table / unquote(file.path) for commit in commits if commit is not None for file in commit.adds}
    return sorted(set(table.rglob("*.parquet")) - named - set(table.glob("_delta_log/*")))
