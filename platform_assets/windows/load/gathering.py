"""Gathering the rows of a damaged window from every source that has some of them: Kafka, and data files of the table's
versions.

The digests of the receipt prove all of the rows together. Nothing proves only a part of them.
"""

from __future__ import annotations

import functools
import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.engines.protocol import NO_ROWS, LoadEngine, Records, StagedFiles
from platform_assets.errors import (
    BatchTooLargeError,
    ClusterChangedError,
    DamagedBatchError,
    DamagedRowsError,
    LoadError,
    LostForGoodError,
    TopicMissingError,
    TopicRecreatedError,
    TruncationError,
)
from platform_assets.kafka.cluster import Cluster
from platform_assets.lake import data_files, holdings, load_log, rows
from platform_assets.lake.field_ids import FieldIds
from platform_assets.lake.location import load_folder
from platform_assets.ledger.entries import ERASED, Receipt, SealedWindow
from platform_assets.model.digest import digest_of
from platform_assets.model.offsets import OffsetRange, Offsets, common, merge, ranges_of, size_of, subtract
from platform_assets.windows.decide import generations
from platform_assets.windows.decide.generations import Ranges
from platform_assets.windows.load.replacing import WindowReplacer, same
from platform_assets.windows.load.sealing import checked_state

_NONE: Offsets = np.array([], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Left:
    """The number of a window's rows found in all sources together, and the offsets without a row. Used if the rows
    found are not those that were loaded."""

    rows: int
    gone: Ranges

    def refusal(self, receipt: Receipt, cause: LostForGoodError, erased: Ranges) -> LoadError:
        """Return the error for a window that cannot be restored. `cause` explains why Kafka alone does not have all
        rows."""
        less = max(sum(map(size_of, erased.values())) - (receipt.holes or {}).get(ERASED, 0), 0)
        table, key, rows_loaded = receipt.table.name, receipt.window.key, receipt.rows - less
        if self.rows >= rows_loaded:
            return DamagedRowsError(table, key, receipt.rows, self.rows, cause.cause)
        gone = [(p, r.start, r.end) for p, parts in self.gone.items() for r in parts]
        return LostForGoodError(table, key, receipt.rows, cause.cause, left=self.rows + less, gone=gone)


@dataclass(frozen=True)
class Gatherer:
    """Gatherer of one window's rows for `replacer`. `window_column` is true if the table is flat, because the files of
    a flat table have a window column.

    `field_ids` belong to the table's columns.
    """

    replacer: WindowReplacer
    cluster: Cluster
    engine: LoadEngine
    records_per_file: int
    sealed: SealedWindow
    window_column: bool
    field_ids: FieldIds

    def gathered(self, receipt: Receipt, load_id: str, ways: Sequence[Ranges]) -> StagedFiles | Left:
        """Return the rows of `receipt`, written to new files that the caller commits; if this fails, return a
        description of what is left.

        Each element of `ways` is a set of offsets that the original load may have omitted. The first element includes
        all others, and has the offsets that are omitted now.
        """
        always = {p: _in_all([way.get(p, ()) for way in ways]) for p in ways[0]}
        try:
            missing = self.not_in_kafka()
        except TruncationError:
            # The log may have other records at these offsets by now.
            missing = {p: (r,) for p, r in self.sealed.ranges.items()}
        without = {p: (*parts, *always.get(p, ())) for p, parts in missing.items()}
        kafka = self.read(without, str(uuid.uuid4()))
        try:
            return self._chosen(kafka, receipt, load_id, ways)
        finally:
            self.replacer.delete(kafka)

    def not_in_kafka(self) -> Ranges:
        """Return the offsets of the window that cannot be read from Kafka because they expired or belong to an earlier
        log. Raises TruncationError."""
        sealed, ledger = self.sealed, self.replacer.ledger
        inside = generations.within_log(ledger, sealed)
        if any(r.size for r in inside.values()):
            try:
                state = checked_state(self.cluster, sealed.topic, ledger.newest_cut(sealed.topic))
            except (TopicRecreatedError, TopicMissingError, ClusterChangedError):
                inside = {}
            else:
                starts, ends = self.cluster.log_starts(state), self.cluster.last_stable_offsets(state)
                inside = {
                    p: OffsetRange(max(r.start, min(starts[p].offset, r.end)), r.end)
                    for p, r in inside.items()
                    if p in starts and p in ends
                }
                for partition, r in inside.items():
                    if ends[partition].offset < r.end:
                        raise TruncationError(sealed.topic, partition, r.end, ends[partition].offset)
        return {p: r.minus([inside[p]] if p in inside else ()) for p, r in sealed.ranges.items()}

    def read(self, without: Ranges, load_id: str) -> StagedFiles:
        """Write the window's records that Kafka has to new files, except the offsets `without` and damaged batches."""
        try:
            return self._read(without, load_id)
        except DamagedBatchError:
            damaged = self._damaged(without)
            return self._read({p: (*parts, *damaged.get(p, ())) for p, parts in without.items()}, load_id)

    def _records(self, without: Ranges) -> Records:
        s = self.sealed
        return Records(s.topic, s.topic_id, s.key, s.ranges, without, self.window_column, self.field_ids)

    def _read(self, without: Ranges, load_id: str) -> StagedFiles:
        try:
            return self.engine.write(self._records(without), self.replacer.table, load_id, self.records_per_file)
        except BatchTooLargeError as e:
            raise e.of_loaded_window() from None

    def _damaged(self, without: Ranges) -> Ranges:
        """Return the offsets of damaged batches among those requested from Kafka. Raises whatever `find_refused`
        raises."""
        # Imported here because compiled kernels are slow to load, and a code location does not need them.
        from platform_assets.engines.columnar.refused import find_refused

        topic, topic_id = self.sealed.topic, self.sealed.topic_id
        return find_refused(self.cluster.settings, topic, topic_id, self._records(without).pieces).damaged

    def past_paths(self, receipt: Receipt) -> Iterator[str]:
        """Yield data files that the window has or had, each once, as paths in the form of the log. Those of the
        receipt's version come first."""
        table, key = self.replacer.folder, receipt.window.key
        first = [] if receipt.table_version is None else [receipt.table_version]
        seen: set[str] = set()
        for version in dict.fromkeys((*first, load_log.version(table), *self.replacer.past_versions(receipt))):
            files = holdings.files_if_kept(table, key, version)
            for path in () if files is None else files.paths:
                if path not in seen:
                    seen.add(path)
                    yield path

    def _chosen(self, kafka: StagedFiles, receipt: Receipt, load_id: str, ways: Sequence[Ranges]) -> StagedFiles | Left:
        table = self.replacer.folder
        of_kafka, of_table = [quote(f.path) for f in kafka.files], list(self.past_paths(receipt))
        read = [rows.readable_offsets(table, receipt.window.key, paths)[0] for paths in (of_kafka, of_table)]
        for left_out in ways:
            found = [_of_window(offsets, receipt, left_out) for offsets in read]
            wanted = {p: _loaded(receipt, p, found[0][p], found[1][p]) for p in receipt.partitions}
            if digest_of(wanted) != receipt.offsets:
                continue
            # If an offset has another record now, only one of the two orders finds what was loaded.
            for paths in ([*of_kafka, *of_table], [*of_table, *of_kafka]):
                written = self._written(paths, receipt, load_id, wanted)
                if same(written.measured, receipt):
                    return written
                self.replacer.delete(written)
        found = [_of_window(offsets, receipt, ways[0]) for offsets in read]
        held = {p: np.union1d(found[0][p], found[1][p]) for p in receipt.partitions}
        gone = {p: r.minus([*ranges_of(held[p]), *ways[0].get(p, ())]) for p, r in receipt.ranges.items()}
        return Left(sum(map(len, held.values())), {p: parts for p, parts in gone.items() if parts})

    def _written(
        self, paths: Sequence[str], receipt: Receipt, load_id: str, wanted: Mapping[int, Offsets]
    ) -> StagedFiles:
        """Write the rows at the offsets `wanted` to new files. Each row comes from the first file in `paths` that has
        it.

        A row with another topic id, which no digest covers, is used only as a last resort, and gets the topic id of the
        receipt.
        """
        # Imported here because compiled kernels are slow to load, and a code location does not need them.
        from platform_assets.engines.shared.digests import measured

        table, below = self.replacer.folder, load_folder(receipt.window.key, load_id)
        left, found = dict(wanted), NO_ROWS
        try:
            for number, (is_foreign, path) in enumerate(itertools.product((False, True), paths)):
                if not any(map(len, left.values())):
                    break
                part = data_files.readable_rows(table, path, receipt.window.key)
                chosen = None if part is None else _rows_at(part, receipt.topic_id, left, is_foreign=is_foreign)
                if chosen is not None and chosen.num_rows:
                    key = receipt.window.key if self.window_column else None
                    data_files.write_rows(table, f"{below}/gathered-{number:05}.parquet", chosen, key)
                    found += sum((measured(batch) for batch in chosen.to_batches()), NO_ROWS)
        except BaseException:
            (table / below).delete()
            raise
        return StagedFiles(below, data_files.written_files(table, below), found, receipt.engine)


def _in_all(ranges: Sequence[Sequence[OffsetRange]]) -> tuple[OffsetRange, ...]:
    """Return the offsets that all of `ranges` have in common."""
    return functools.reduce(common, ranges, merge(ranges[0]))


def _of_window(found: Mapping[int, Offsets], receipt: Receipt, left_out: Ranges) -> dict[int, Offsets]:
    """Return the distinct offsets among `found` that lie in the window and are not omitted."""
    inside = dict[int, Offsets]()
    for partition, r in receipt.ranges.items():
        offsets = np.unique(found.get(partition, _NONE))
        parts = subtract([r], left_out.get(partition, ()))
        inside[partition] = np.concatenate(
            [_NONE, *(offsets[(offsets >= part.start) & (offsets < part.end)] for part in parts)]
        )
    return inside


def _loaded(receipt: Receipt, partition: int, kafka: Offsets, table: Offsets) -> Offsets:
    """Return the offsets of a partition that were loaded, as far as the number of rows and the bounds in the receipt
    determine them."""
    part = receipt.partitions[partition]
    if part.first_offset is None or part.last_offset is None:
        return _NONE
    first, last = part.first_offset, part.last_offset
    ways = [offsets[(offsets >= first) & (offsets <= last)] for offsets in (np.union1d(kafka, table), table, kafka)]
    # A log that was rewritten may have more records.
    return next((offsets for offsets in ways if len(offsets) == part.rows), ways[0])


def _rows_at(part: pa.Table, topic_id: str, wanted: dict[int, Offsets], *, is_foreign: bool) -> pa.Table:
    """Return the rows of `part` at the offsets `wanted`, each once, and remove those offsets from `wanted`.

    These are the rows with the topic id. With `is_foreign`, they are the rows with another topic id or none, and the
    result has the topic id.
    """
    partitions, offsets = (np.asarray(part[name].to_numpy()) for name in ("kafka_partition", "kafka_offset"))
    of_log = np.asarray(pc.fill_null(pc.equal(part["topic_id"], topic_id), False).to_numpy()) != is_foreign
    taken: list[Offsets] = [_NONE]
    for partition, left in wanted.items():
        at = np.flatnonzero(of_log & (partitions == partition) & np.isin(offsets, left))
        distinct, first = np.unique(offsets[at], return_index=True)
        taken.append(at[first])
        wanted[partition] = np.setdiff1d(left, distinct)
    found = part.take(pa.array(np.sort(np.concatenate(taken))))
    if not is_foreign:
        return found
    at, ids = found.schema.get_field_index("topic_id"), pa.repeat(pa.scalar(topic_id, pa.string()), found.num_rows)
    return found.set_column(at, "topic_id", ids)
