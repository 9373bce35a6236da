"""Upkeep of a flat table: small files of quiet windows are merged, if their rows are those of the windows' receipts.

Nothing else is merged: a difference is damage, and is reported. The merged file is proved before the commit, and what it holds is
written down, so that nobody has to read it to know that its windows have the rows of their receipts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from platform_assets.engines.measuring import measure_of
from platform_assets.engines.protocol import NO_ROWS
from platform_assets.errors import FilesLostError
from platform_assets.lake import contents, holdings, load_log, merging, row_copies
from platform_assets.lake.contents import Digests
from platform_assets.lake.location import Folder
from platform_assets.lake.merging import Group
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.digest import Measured
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef
from platform_assets.windows.load.receipts import proved_again
from platform_assets.windows.load.replacing import same

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class MergedFiles:
    """What became of a group of files: they were merged in `version`, or not at all.

    `damaged` are windows whose rows are not those of their receipts. Without them and without a version, another commit came first.
    """

    group: Group
    version: int | None
    bytes: int = 0
    damaged: tuple[str, ...] = ()


@dataclass(frozen=True)
class Upkeep:
    """Merges files of `table`. It needs neither Kafka nor Spark."""

    table: TableRef
    ledger: Ledger

    @property
    def folder(self) -> Folder:
        """The folder of the table."""
        return self.ledger.lake.table(self.table)

    def merge(self, before: str, target: int = merging.TARGET_BYTES) -> Iterator[MergedFiles]:
        """Merge files of windows before the key `before` that have receipts; yield what became of each group.

        Does nothing to a partitioned table. Raises what committing raises; running it again continues.
        """
        if not load_log.exists(self.folder):
            return
        handle = self.folder.delta()
        if not holdings.is_flat(handle):
            return
        receipts = {k: r for k, r in self.ledger.receipts(self.table).items() if k < before and r.kind != "empty"}
        with self.folder.reading():
            files = pa.table(handle.get_add_actions(flatten=True))
        found = holdings.by_window(self.folder, files, flat=True)
        for group in merging.plan(found, receipts, target):
            yield self._merged(group, {key: receipts[key] for key in group.windows})

    def _merged(self, group: Group, receipts: Mapping[str, Receipt]) -> MergedFiles:
        handle = self.folder.delta()
        schema = pa.schema(handle.schema().to_arrow())
        try:
            made = row_copies.merged(self.folder, group.files, schema, measure_of(self.table.kind))
        except FilesLostError as e:
            _log.warning("%d files of %s are not merged: %s", len(group.files), self.table, e)
            # Another commit may have removed and deleted a file meanwhile.
            return MergedFiles(group, None, damaged=tuple(group.windows) if self._names(group) else ())
        if made is None:
            return MergedFiles(group, None)
        damaged = tuple(key for key, receipt in receipts.items() if not _is_of(made.digests, receipt))
        if not damaged:
            # Before the commit, so that whoever sees the file finds its contents.
            name = holdings.in_log(made.file.path)
            contents.record(self.folder, str(handle.metadata().id), name, made.file.bytes, made.digests)
        version = None if damaged else merging.commit(self.folder, handle, group, [made.file])
        if version is None:
            row_copies.discard(self.folder, [made.file])
            return MergedFiles(group, None, damaged=damaged if damaged and self._names(group) else ())
        if len(receipts) == 1:
            self._record(receipts, version)
        return MergedFiles(group, version, made.file.bytes)

    def _names(self, group: Group) -> bool:
        """Return true if the newest version still has all files of a group, so that what was read of them is of today."""
        with self.folder.reading():
            named = set(pa.table(self.folder.delta().get_add_actions())["path"].to_pylist())
        return named.issuperset(file.path for file in group.files)

    def _record(self, receipts: Mapping[str, Receipt], version: int) -> None:
        """Record receipts that name the file of a window alone. Of shared files, the contents are written down."""
        found = holdings.actions_if_kept(self.folder, version, among=tuple(receipts))
        files = {} if found is None else holdings.window_files(found)
        table_id = load_log.table_id(self.folder)
        self.ledger.record_receipts(
            [proved_again(r, files[key], version, table_id) for key, r in receipts.items() if key in files]
        )


def _is_of(digests: Digests, receipt: Receipt) -> bool:
    """Return true if the rows of a window, and no others of its key, are those of its receipt."""
    found: dict[str, Measured] = {topic_id: m for (key, topic_id), m in digests.items() if key == receipt.window.key}
    return set(found) <= {receipt.topic_id} and same(found.get(receipt.topic_id, NO_ROWS), receipt)
