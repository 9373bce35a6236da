"""The files of a table of a state: one file for each bucket with rows, sorted by key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from platform_assets.engines.decoding.task import encodings
from platform_assets.engines.shared.files import CODEC, DELTAS, codecs
from platform_assets.lake import state_table
from platform_assets.lake.data_files import NewFile, described
from platform_assets.lake.field_ids import ids_of
from platform_assets.lake.location import Folder

_NAME: Final = re.compile(r"folds/[^/]+/bucket-(\d+)-of-(\d+)\.parquet")
_ROW_GROUP_ROWS: Final = 1 << 17
_BLOCK_ROWS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class FileSide:
    """Implements `Side` with files. `paths` are those of the present files, in the form that the log uses; `below` is
    the folder for new files. `key` has bounds in the new files."""

    folder: Folder
    table_columns: pa.Schema
    paths: tuple[str, ...]
    below: str
    key: Sequence[str]
    written: list[NewFile] = field(default_factory=list)

    @property
    def columns(self) -> pa.Schema:
        """Implement `Side.columns`."""
        return pa.schema([each.remove_metadata() for each in self.table_columns])

    @property
    def buckets(self) -> int:
        """The number of buckets in which the present files were written; 1 if that is unknown."""
        names = [_NAME.fullmatch(unquote(path)) for path in self.paths]
        return max((int(name[2]) for name in names if name is not None), default=1)

    def blocks(self, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Implement `Side.blocks`. Raises FilesLostError."""
        columns = self.columns if names is None else pa.schema([self.columns.field(name) for name in names])
        for path in self.paths:
            yield from state_table.blocks(self.folder, path, columns, _BLOCK_ROWS)

    def has_buckets(self, count: int) -> bool:
        """Implement `Side.has_buckets`. Another program may have rewritten the files."""
        names = [_NAME.fullmatch(unquote(path)) for path in self.paths]
        numbers = [int(name[1]) for name in names if name is not None and int(name[2]) == count]
        return len(set(numbers)) == len(self.paths)

    def bucket(self, number: int) -> pa.Table:
        """Implement `Side.bucket`. Raises FilesLostError."""
        of_number = [path for path in self.paths if int(unquote(path).rpartition("bucket-")[2][:4]) == number]
        found = (
            block for path in of_number for block in state_table.blocks(self.folder, path, self.columns, _BLOCK_ROWS)
        )
        return pa.Table.from_batches(found, self.columns)

    def write(self, number: int, count: int, rows: pa.Table) -> None:
        """Implement `Side.write`. Raises LakeNotWritableError."""
        rows = rows.combine_chunks()
        name = f"{self.below}/bucket-{number:04}-of-{count:04}.parquet"
        dictionaries, deltas = encodings(self.columns)
        sample = rows.slice(0, _BLOCK_ROWS).to_batches()
        with (
            self.folder.writing(),
            self.folder.content.create(name) as sink,
            pq.ParquetWriter(
                sink,
                ids_of(self.table_columns).in_file(self.columns),
                compression=codecs(sample, self.columns, CODEC, dictionaries, deltas),
                use_dictionary=list(dictionaries),
                column_encoding=dict.fromkeys(deltas, DELTAS),
                write_statistics=[*self.key, *state_table.BOUNDED],
                write_page_index=True,
                write_page_checksum=True,
                store_schema=False,
            ) as writer,
        ):
            writer.write_table(rows, row_group_size=_ROW_GROUP_ROWS)
        self.written.append(described(self.folder, name))


class Unwritten(FileSide):
    """A side whose new rows are not written."""

    __slots__ = ()

    @classmethod
    def of(cls, side: FileSide) -> Unwritten:
        """Return a side with the present rows of `side`."""
        return cls(side.folder, side.table_columns, side.paths, side.below, side.key)

    def write(self, number: int, count: int, rows: pa.Table) -> None:
        """Implement `Side.write`."""
