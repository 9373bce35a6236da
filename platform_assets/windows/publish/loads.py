"""Rows of one load of a window, in a fixed order, also after a later load has replaced them.

A publisher compares a new load with the rows that it has published. Until that is done, VACUUM must not delete the files
with those rows: `needed_files` names them, for every published topic of a table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.errors import FilesLostError, PublishedRowsLostError, PublishingInterruptedError
from platform_assets.kafka.publisher import Topics
from platform_assets.lake import delta_log, holdings, load_log, rows
from platform_assets.lake.failures import VersionGoneError
from platform_assets.lake.location import Folder, Lake
from platform_assets.lake.parquet import leaves
from platform_assets.ledger.entries import EXPIRED
from platform_assets.ledger.store import Ledger
from platform_assets.model.logs import logger
from platform_assets.model.publishing import POSITION
from platform_assets.model.tables import TableRef

_log = logger(__name__)

_PLACE: Final = pa.schema([(POSITION[0], pa.int32()), (POSITION[1], pa.int64())])
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, order=True)
class Load:
    """One load of a window: its id, the table version of its commit, and the number of its rows."""

    load_id: str
    version: int
    rows: int


def read(ledger: Ledger, table: TableRef, key: str, load: Load, wanted: pa.Schema, topic: str) -> pa.Table:
    """Return columns and the position of the rows of a load, sorted by partition and offset. `wanted` are columns that the
    table has now; one that it did not have then, or a member of a column, is null. `topic` is the published topic, for messages.

    Raises PublishedRowsLostError if the rows can no longer be read, and PublishingInterruptedError if another load
    replaces them right now.
    """
    folder = ledger.lake.table(table)
    try:
        _check_known(ledger, table, key, load, topic)
        version = _version(ledger, table, key, load)
        names = list(dict.fromkeys((*POSITION, *wanted.names)))
        blocks = list(rows.batches_of(folder, key, version, names, if_known=True))
    except (VersionGoneError, FilesLostError) as e:
        raise PublishedRowsLostError(topic, table.name, key, load.load_id, str(e)) from e
    found = pa.Table.from_batches(blocks) if blocks else _PLACE.empty_table()
    for name in (n for n in wanted.names if n not in found.schema.names):
        found = found.append_column(wanted.field(name), pa.nulls(found.num_rows, wanted.field(name).type))
    found = found.select(names)
    for column in wanted:
        held = found[column.name]
        if {*leaves("", held.type)} < {*leaves("", column.type)}:
            # Members that were added since become null. A column whose type changed stays as it was published.
            found = found.set_column(names.index(column.name), column, held.cast(column.type))
    if not _is_sorted(found):
        found = found.sort_by([(name, "ascending") for name in POSITION])
    if found.num_rows != load.rows:
        newest = load_log.newest_loads(folder).get(key)
        if newest is not None and newest.version > load.version and version >= newest.version:
            raise PublishingInterruptedError(topic, f"reading window {key}", "it is being loaded again")
        cause = f"version {version} of the table has {found.num_rows:,} rows of the window instead of {load.rows:,}"
        raise PublishedRowsLostError(topic, table.name, key, load.load_id, cause)
    return found


def are_same(ledger: Ledger, table: TableRef, key: str, load: Load, other: Load) -> bool:
    """Return True if the ledger proves that two loads of a window have the same rows, in all columns."""
    found = [ledger.receipt_of(table, key, each.load_id) for each in (load, other)]
    digests = {None if r is None or r.is_expired else (r.rows, r.offsets_digest, r.content_digest) for r in found}
    return None not in digests and len(digests) == 1


def only_lacks(ledger: Ledger, table: TableRef, key: str, load: Load, other: Load) -> bool:
    """Return True if the ledger shows that the rows of load `other` of a window are rows of `load`, which cannot be read:
    the same Kafka records, decoded by the same declaration, if they were decoded."""
    before, now = (ledger.receipt_of(table, key, each.load_id) for each in (load, other))
    if before is None or now is None or now.rows > before.rows:
        return False
    sources = {
        (r.topic_id, r.generation, None if r.made_from is None else r.made_from.declaration) for r in (before, now)
    }
    return len(sources) == 1


def is_unknown(ledger: Ledger, table: TableRef, key: str, load: Load, topic: str) -> bool:
    """Return True if the table does not have this load of a window, whose entry the ledger does not have either."""
    try:
        _check_known(ledger, table, key, load, topic)
    except PublishedRowsLostError:
        return True
    return False


def _is_sorted(rows: pa.Table) -> bool:
    partition, offset = (rows[name].to_numpy() for name in POSITION)
    later = partition[1:] - partition[:-1]
    return bool(((later > 0) | ((later == 0) & (offset[1:] > offset[:-1]))).all())


def _check_known(ledger: Ledger, table: TableRef, key: str, load: Load, topic: str) -> None:
    """Raise PublishedRowsLostError if the table does not have this load of the window: the table was created again, or
    restored from before the load, so its versions mean something else."""
    folder = ledger.lake.table(table)
    # A receipt may name a later version that only moved the rows, so the commit need not be the load's own.
    commit = delta_log.commit(folder, load.version)
    made = () if commit is None else load_log.loads_in(commit)
    ids = [each.metadata.load_id for each in made if each.metadata.window.key == key]
    if load.load_id in ids or not (load.rows or ids):
        return
    cause = f"version {load.version} of the table is load {ids[0]}" if ids else "the ledger does not know this load"
    # A ledger that was rebuilt does not know loads whose commits have left the log, but the table still has their rows.
    is_impossible = made or (commit is None and load.version > load_log.version(folder))
    if ids or (is_impossible and load.load_id not in {load_id for _, load_id in ledger.past_loads(table, key)}):
        raise PublishedRowsLostError(topic, table.name, key, load.load_id, cause)


def _version(ledger: Ledger, table: TableRef, key: str, load: Load) -> int:
    """Return a version that has the rows of `load`: its own if the files of that version are still there; otherwise the
    last one before a later load, because upkeep may have merged the files since."""
    folder = ledger.lake.table(table)
    files = holdings.files_if_kept(folder, key, load.version)
    if files is not None and all(folder.has(unquote(name)) for name in files.paths):
        return load.version
    later = [v for v, load_id in ledger.past_loads(table, key) if v > load.version and load_id != load.load_id]
    return later[0] - 1 if later else load_log.version(folder)


# --- files that VACUUM must keep ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Late:
    """Windows that may be sent after later ones: those `before` a window, because of `start` or an earlier release, and
    `windows` that later ones did not wait for, because they were parked or their rows were lost."""

    before: str = ""
    windows: frozenset[str] = frozenset()

    def has(self, key: str) -> bool:
        """Return True if the window may be sent after later ones."""
        return key < self.before or key in self.windows


@dataclass(frozen=True, slots=True)
class Pins:
    """The state of a published topic, as a lake records it.

    `loads` are, by window, the loads that are published or about to be. `done` is a fingerprint of what is published
    completely. `topics` are the topics that were sent to and that recorded the progress. `sent` has, by window, the load and the
    number of its records that this progress contained. `late` is None if an earlier release recorded this.
    """

    table: TableRef | None = None
    loads: Mapping[str, Sequence[Load]] = field(default_factory=dict)
    done: str = ""
    topics: Topics | None = None
    sent: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    late: Late | None = None

    def is_earlier(self, key: str, load: Load) -> bool:
        """Return True if `load` of a window is an earlier one than that of `sent`."""
        later = [each.load_id for each in self.loads.get(key, ())]
        versions = [each.version for each in self.loads.get(key, ()) if each.load_id == self.sent[key][0]]
        # Loads that were about to be published follow: after a table was created again, they have lower versions.
        following = later[later.index(self.sent[key][0]) + 1 :] if versions else []
        return bool(versions) and load.version < versions[0] and load.load_id not in following


def pin(lake: Lake, topic: str, pins: Pins) -> None:
    """Record what is published or about to be, before it is published. Raises LakeNotWritableError."""
    assert pins.table is not None
    document = {
        "version": _VERSION,
        "table": pins.table.name,
        "done": pins.done,
        "loads": {key: [[e.load_id, e.version, e.rows] for e in each] for key, each in sorted(pins.loads.items())},
        "topics": None if pins.topics is None else [pins.topics.target, pins.topics.progress],
        "sent": {key: list(each) for key, each in sorted(pins.sent.items())},
        **({} if pins.late is None else {"late": [pins.late.before, sorted(pins.late.windows)]}),
    }
    lake.published.write(f"{topic}.json", json.dumps(document, separators=(",", ":")).encode())


def pinned(lake: Lake, topic: str) -> Pins:
    """Return what `pin` recorded. Without a record, there is no table."""
    content = lake.published.read(f"{topic}.json")
    if content is None:
        return Pins()
    document = json.loads(content)
    topics, late = document.get("topics"), document.get("late")
    return Pins(
        TableRef.parse(document["table"]),
        {key: [Load(*fields) for fields in each] for key, each in document["loads"].items()},
        document["done"],
        None if topics is None else Topics(*topics),
        {key: (load_id, sent) for key, (load_id, sent) in document.get("sent", {}).items()},
        None if late is None else Late(late[0], frozenset(late[1])),
    )


def needed_files(ledger: Ledger, table: TableRef) -> frozenset[str]:
    """Return the paths, not percent-encoded, of files of `table` with rows of published loads that a later load has
    replaced, and whose corrections are not published yet."""
    lake = ledger.lake
    found: set[str] = set()
    for name in lake.published.files():
        if not name.endswith(".json"):
            continue
        pins = pinned(lake, name.removesuffix(".json"))
        if pins.table != table or not pins.loads:
            continue
        current = _load_ids(ledger, table)
        for key, each in pins.loads.items():
            for load in each:
                if current.get(key, load.load_id) != load.load_id:
                    found |= _paths(lake.table(table), key, ledger, table, load)
    return frozenset(found)


def _load_ids(ledger: Ledger, table: TableRef) -> dict[str, str]:
    """Return the newest load of each window, without expired ones: nothing more is published of these."""
    entries = ledger.commit_rows(table, columns=["load_id", "kind"])
    entries = entries.filter(pc.not_equal(entries["kind"], EXPIRED))
    return dict(zip(entries["window"].to_pylist(), entries["load_id"].to_pylist(), strict=True))


def _paths(folder: Folder, key: str, ledger: Ledger, table: TableRef, load: Load) -> set[str]:
    files = holdings.files_if_kept(folder, key, _version(ledger, table, key, load))
    if files is None:
        _log.warning("%s: the log no longer names the files of the published load of window %s", table, key)
    return set() if files is None else {unquote(path) for path in files.paths}
