"""The input of decoding tasks. It consists of plain values without secrets, because Spark stores and displays plans."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

from platform_assets.engines.shared.reports import (
    WrittenFile,
    error_in,
    error_to_json,
    file_from_json,
    file_to_json,
    is_unsupported,
)
from platform_assets.errors import PlatformError
from platform_assets.lake.field_ids import NO_IDS, FieldIds
from platform_assets.model import expectations
from platform_assets.model.decoding import DecodeDeclaration
from platform_assets.model.expectations import FiguresByDigest

Target = Literal["decoded", "dead_letters"]


@dataclass(frozen=True, slots=True)
class Report:
    """A report on share `share`: a file of the table `target`, an error, or, if there is neither a file nor an error,
    the completion of the share.

    The last report contains `figures`: the results of the expectations on single rows, for the rows of the share.
    """

    share: int
    target: Target | None = None
    file: WrittenFile | None = None
    error: PlatformError | None = None
    figures: FiguresByDigest | None = None

    def to_json(self) -> str:
        """Return JSON for `from_json`."""
        value: dict[str, Any] = {"share": self.share, "target": self.target}
        if self.file is not None:
            value["file"] = file_to_json(self.file)
        if self.error is not None:
            value["error"] = error_to_json(self.error)
        if self.figures is not None:
            value["figures"] = expectations.to_fields(self.figures)
        return json.dumps(value)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Parse the result of `to_json`, or a report from a worker that does not have this code."""
        value = json.loads(text)
        if is_unsupported(value):
            return cls(value["share"], error=error_in(value))
        file, figures = value.get("file"), value.get("figures")
        return cls(
            value["share"],
            value["target"],
            None if file is None else file_from_json(file),
            error_in(value),
            None if figures is None else expectations.from_fields(figures),
        )


BYTES_APART: Final = 16 << 20
"""Bytes of column data in a raw table that justify an additional task."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A row group in a file of a raw table. `path` is the path of the file relative to the table's folder, and `bytes`
    is the size of the row group's columns."""

    path: str
    group: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Share:
    """Row groups of one window that one task decodes. `number` is the number of this share within the window. `below`
    is the output folder in both tables."""

    window: str
    below: str
    number: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """Row groups of some windows of a topic, divided into shares, and the settings to turn the records into rows of two
    tables.

    `raw`, `decoded` and `dead_letters` are the tables' folders. `schemas` is the folder for schemas that were read from
    a registry. `registry` is the registry's address, for workers whose environment does not contain the address.
    `layout` and `dead_layout` are the columns that tasks write to the files, without a window column. A partition with
    `rows_apart` rows or more gets a separate file. `window_columns` and `field_ids` have one entry for each output
    table, first for decoded rows and then for dead letters. The entry in `window_columns` is true if the table's files
    also get a window column. The entry in `field_ids` contains the ids of the files' columns.
    """

    topic: str
    raw: str
    decoded: str
    dead_letters: str
    schemas: str
    registry: str
    declaration: DecodeDeclaration
    layout: pa.Schema
    dead_layout: pa.Schema
    shares: tuple[Share, ...]
    rows_apart: int
    window_columns: tuple[bool, bool] = (False, False)
    field_ids: tuple[FieldIds, FieldIds] = (NO_IDS, NO_IDS)


def shares_of(pieces: Sequence[Piece], most: int) -> tuple[tuple[Piece, ...], ...]:
    """Group neighboring pieces into at most `most` shares of about equal size. If there are only a few bytes, there are
    fewer shares. No share is empty."""
    total = sum(piece.bytes for piece in pieces)
    number = max(min(most, len(pieces), -(-total // BYTES_APART)), 1)
    return tuple(_divided(pieces, total, number)) if pieces else ()


def _divided(pieces: Sequence[Piece], total: int, number: int) -> Iterator[tuple[Piece, ...]]:
    share, before, given = list[Piece](), 0, 0
    for piece in pieces:
        # A piece goes to the share that contains most of it, so a share is at most half a piece too large.
        if share and given + 1 < number and (2 * before + piece.bytes) * number > 2 * total * (given + 1):
            yield tuple(share)
            share, given = [], given + 1
        share.append(piece)
        before += piece.bytes
    yield tuple(share)
