"""Rows that do not fit in memory, kept in parts in an unnamed temporary file.

An unnamed file disappears with its process, however the process ends. Rows that are erased later must not stay on a
worker's disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Final

import pyarrow as pa
import pyarrow.ipc

_CODEC: Final = "lz4"


@dataclass
class Spill:
    """Rows in numbered parts. Call `close` after use."""

    _file: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    _places: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, part: int, rows: pa.RecordBatch) -> None:
        """Append rows to a part."""
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, rows.schema, options=pa.ipc.IpcWriteOptions(compression=_CODEC)) as stream:
            stream.write_batch(rows)
        written = content.getvalue()
        at = self._file.seek(0, os.SEEK_END)
        self._file.write(written)
        self._places.setdefault(part, []).append((at, written.size))

    @property
    def parts(self) -> Sequence[int]:
        """The numbers of the parts that have rows, in ascending order."""
        return sorted(self._places)

    def rows(self, part: int) -> pa.Table | None:
        """Return the rows of a part in the order in which they were added; None if there are none."""
        places = self._places.get(part)
        if places is None:
            return None
        self._file.flush()
        return pa.concat_tables(pa.ipc.open_stream(self._read(*place)).read_all() for place in places)

    def _read(self, at: int, size: int) -> bytes:
        self._file.seek(at)
        return self._file.read(size)

    def close(self) -> None:
        """Free the disk space."""
        self._file.close()
