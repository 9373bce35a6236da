"""Dagster's event tables, and the newest events in them.

Dagster can only delete a run together with everything that it reported, including materializations of its partitions. This module
deletes events one by one, in the tables of Dagster's SQL stores, which are the same for SQLite and PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import dagster as dg
import sqlalchemy as db
from dagster._core.events import ASSET_EVENTS
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    SqlEventLogStorageTable,
)
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage

from platform_assets.errors import ConfigurationError

MATERIALISED: Final = dg.DagsterEventType.ASSET_MATERIALIZATION.value
PLANNED: Final = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED.value
_OF_ASSETS: Final = tuple(kind.value for kind in ASSET_EVENTS)
_NO_RUN: Final = ""
_AT_ONCE: Final = 500
"""Maximum number of values in one statement, because SQLite has a limit."""

_events: Any = SqlEventLogStorageTable.c
_evaluations: Any = AssetCheckExecutionsTable.c


@dataclass(frozen=True, slots=True)
class Event:
    """An asset event: its storage id, run, type, asset key in the form that Dagster's store uses, and partition."""

    id: int
    run_id: str
    kind: str
    asset: str
    partition: str | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A check evaluation: the id of its row, its status, and the storage id of its event, which old rows lack."""

    id: int
    run_id: str
    status: str
    asset: str
    check: str
    event: int | None


@dataclass(frozen=True, slots=True)
class Deleted:
    """Numbers of deleted events and evaluations, and the bytes of their texts and files. Indexes are not included."""

    events: int = 0
    bytes: int = 0

    def __add__(self, other: Deleted) -> Deleted:
        return Deleted(self.events + other.events, self.bytes + other.bytes)


@dataclass
class EventStore:
    """The events of one instance."""

    storage: SqlEventLogStorage
    _newest: dict[tuple[str, str], frozenset[int]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, instance: dg.DagsterInstance) -> EventStore:
        """Open the event store of `instance`. Raises ConfigurationError if its events are not in an SQL store."""
        storage = instance.event_log_storage
        if not isinstance(storage, SqlEventLogStorage):
            raise ConfigurationError(
                f"Dagster keeps its events in a {type(storage).__name__}, but runs can be deleted only from its "
                "SQLite and PostgreSQL storage"
            )
        return cls(storage)

    def newest_run(self) -> str | None:
        """Return the run of the newest event.

        This event must stay: SQLite reuses the id of the newest row if it is deleted, and Dagster's cursors are ids.
        """
        with self.storage.index_connection() as conn:
            row = conn.execute(db.select(_events.run_id).order_by(_events.id.desc()).limit(1)).fetchone()
        return None if row is None else str(row[0])

    def events(self, run_ids: Sequence[str]) -> list[Event]:
        """Return all asset events that these runs reported."""
        return self._events(_events.run_id.in_(run_ids))

    def evaluations(self, run_ids: Sequence[str]) -> list[Evaluation]:
        """Return all check evaluations that these runs planned or made."""
        query = _evaluation_rows().where(_evaluations.run_id.in_(run_ids))
        return [Evaluation(*row) for row in self._rows(query)]

    def newest_by_partition(self, asset: str, kind: str, partitions: Collection[str | None]) -> dict[str | None, int]:
        """Return the id of the newest event of this kind, by partition. The key None stands for events without a
        partition."""
        of_asset = [_events.asset_key == asset, _events.dagster_event_type == kind]
        newest = db.func.max(_events.id)
        found: dict[str | None, int] = {}
        for some in _pieces(sorted(p for p in partitions if p is not None)):
            query: Any = db.select(_events.partition, newest).where(*of_asset, _events.partition.in_(some))
            found.update((row[0], row[1]) for row in self._rows(query.group_by(_events.partition)))
        if None in partitions:
            ((last,),) = self._rows(db.select(newest).where(*of_asset, _events.partition.is_(None)))
            if last is not None:
                found[None] = last
        return found

    def newest_evaluations(self, asset: str, check: str) -> frozenset[int]:
        """Return the newest rows of a check: one row for each status and for each partition that occurs in evaluations.

        The rows are queried only once. Rows added after that are newer; a row that is no longer the newest is kept
        until the next pruning.
        """
        if (asset, check) not in self._newest:
            query = (
                db.select(db.func.max(_evaluations.id))
                .where(_evaluations.asset_key == asset, _evaluations.check_name == check)
                .group_by(_evaluations.partition, _evaluations.execution_status)
            )
            self._newest[asset, check] = frozenset(row[0] for row in self._rows(query))
        return self._newest[asset, check]

    def delete(
        self, run_id: str, kept: Collection[int], kept_evaluations: Collection[int], *, dry_run: bool = False
    ) -> Deleted:
        """Delete the events and evaluations of a run, except those with these ids, and SQLite's log file for the run."""
        with self.storage.index_connection() as conn:
            events = db.select(_events.id).where(_events.run_id == run_id)
            rows = db.select(_evaluations.id).where(_evaluations.run_id == run_id)
            doomed = [row[0] for row in conn.execute(events).fetchall() if row[0] not in kept]
            judged = [row[0] for row in conn.execute(rows).fetchall() if row[0] not in kept_evaluations]
            found = Deleted(len(doomed), _size(conn, doomed))
            if not dry_run:
                _delete_rows(conn, doomed, judged)
        return found + Deleted(bytes=sum(self._unlink(path, dry_run) for path in self._files(run_id)))

    def without_run(self, before: datetime) -> tuple[list[Event], list[Evaluation]]:
        """Return the events and evaluations that do not belong to a run and were reported before `before`."""
        old = _events.timestamp < before.astimezone(UTC).replace(tzinfo=None)
        at = _evaluations.evaluation_event_timestamp < before.astimezone(UTC).replace(tzinfo=None)
        evaluations = _evaluation_rows().where(_evaluations.run_id == _NO_RUN, at)
        return self._events(_events.run_id == _NO_RUN, old), [Evaluation(*row) for row in self._rows(evaluations)]

    def delete_without_run(
        self, events: Iterable[int], evaluations: Iterable[int], before: datetime, *, dry_run: bool
    ) -> Deleted:
        """Delete these events and evaluations, which do not belong to a run. Also delete all such events before
        `before` from SQLite's second copy."""
        doomed, rows = sorted(events), sorted(evaluations)
        with self.storage.index_connection() as conn:
            found = Deleted(len(doomed), _size(conn, doomed))
            if not dry_run:
                _delete_rows(conn, doomed, rows)
        if not dry_run and isinstance(self.storage, SqliteEventLogStorage):
            # No cursor depends on the ids of this copy, and it is never queried for assets.
            old = _events.timestamp < before.astimezone(UTC).replace(tzinfo=None)
            with self.storage.run_connection(_NO_RUN) as conn:
                conn.execute(db.delete(SqlEventLogStorageTable).where(old))
        return found

    def delete_leftovers(self, instance: dg.DagsterInstance, before: datetime, *, dry_run: bool) -> Deleted:
        """Delete SQLite's logs of deleted runs if they were last written before `before`. Dagster's own deletion leaves
        these files."""
        if not isinstance(self.storage, SqliteEventLogStorage):
            return Deleted()
        # A run is recorded before its log file exists, so files are listed first.
        logs = [run_id for run_id in self.storage.get_all_run_ids() if run_id]
        gone = set(logs) - set(instance.run_storage.get_run_ids())
        files = [path for run_id in sorted(gone) for path in self._files(run_id)]
        old = [path for path in files if path.stat().st_mtime < before.timestamp()]
        return Deleted(bytes=sum(self._unlink(path, dry_run) for path in old))

    def _events(self, *conditions: Any) -> list[Event]:
        """Return the asset events that meet these conditions."""
        wanted = [_events.id, _events.run_id, _events.dagster_event_type, _events.asset_key, _events.partition]
        query = db.select(*wanted).where(*conditions, _events.dagster_event_type.in_(_OF_ASSETS))
        return [Event(*row) for row in self._rows(query) if row[3] is not None]

    def _rows(self, query: Any) -> list[Any]:
        with self.storage.index_connection() as conn:
            return list(conn.execute(query).fetchall())

    def _files(self, run_id: str) -> list[Path]:
        """Return SQLite's file for the run's log, with its journal files."""
        if not isinstance(self.storage, SqliteEventLogStorage):
            return []
        log = self.storage.path_for_shard(run_id)
        return [path for end in ("-wal", "-shm", "") if (path := Path(log + end)).exists()]

    @staticmethod
    def _unlink(path: Path, dry_run: bool) -> int:
        size = path.stat().st_size
        if not dry_run:
            path.unlink(missing_ok=True)
        return size


def _evaluation_rows() -> Any:
    return db.select(
        _evaluations.id,
        _evaluations.run_id,
        _evaluations.execution_status,
        _evaluations.asset_key,
        _evaluations.check_name,
        _evaluations.evaluation_event_storage_id,
    )


def _size(conn: Any, events: Sequence[int]) -> int:
    total = db.func.sum(db.func.length(_events.event))
    sizes = (conn.execute(db.select(total).where(_events.id.in_(some))).scalar() for some in _pieces(events))
    return sum(int(size or 0) for size in sizes)


def _delete_rows(conn: Any, events: Sequence[int], evaluations: Sequence[int]) -> None:
    for some in _pieces(events):
        conn.execute(db.delete(AssetEventTagsTable).where(AssetEventTagsTable.c.event_id.in_(some)))
        conn.execute(db.delete(SqlEventLogStorageTable).where(_events.id.in_(some)))
    for some in _pieces(evaluations):
        conn.execute(db.delete(AssetCheckExecutionsTable).where(_evaluations.id.in_(some)))


def _pieces(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for at in range(0, len(values), _AT_ONCE):
        yield values[at : at + _AT_ONCE]
