"""The records that an erasure selects, the work that it has done, and the work that is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from platform_assets.errors import (
    ErasureUnfinishedError,
    ReplayErasureUnfinishedError,
    UnerasedReplay,
    UnreadableFilesLeftError,
)
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.offsets import size_of
from platform_assets.windows.erase.erasing import Ranges
from platform_assets.windows.erase.erasure_ranges import triples


@dataclass(frozen=True, slots=True)
class Selected:
    """Offsets of one sealed window to be erased, by partition.

    For a loaded window, these are only offsets that have a row, so each stands for a record. For other windows, these
    are all offsets that were requested. The rows of an expired window were removed because they are past `keep`.
    """

    sealed: SealedWindow
    ranges: Ranges
    is_loaded: bool
    is_expired: bool = False

    @property
    def offsets(self) -> int:
        """Number of offsets."""
        return sum(size_of(parts) for parts in self.ranges.values())

    def to_fields(self) -> dict[str, Any]:
        """Return plain JSON values, with offsets as `[partition, start, end]`, end exclusive."""
        return {
            "window": self.sealed.key,
            "generation": self.sealed.generation,
            "loaded": self.is_loaded,
            "offsets": triples(self.ranges),
        }


@dataclass(frozen=True, slots=True)
class Done:
    """The result of an erasure: the number of windows, and the numbers of removed rows and rewritten bytes by table."""

    windows: int
    rows: Mapping[str, int]
    bytes: Mapping[str, int]

    def to_fields(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"windows": self.windows, "rows": dict(self.rows), "bytes_written": dict(self.bytes)}


@dataclass(frozen=True, slots=True)
class Left:
    """Work that an erasure could not do: windows of the topic's tables with the causes, replays by name, and, by table,
    unreadable files of past versions that may hold rows of expired windows.

    `expired` are those of the windows that have expired.
    """

    windows: Mapping[str, str] = field(default_factory=dict)
    replays: Mapping[str, UnerasedReplay] = field(default_factory=dict)
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    expired: frozenset[str] = frozenset()

    def check(self, table: str, *, keys_forgotten: bool = False) -> None:
        """Raise ErasureUnfinishedError if windows are left, ReplayErasureUnfinishedError if replays are left, and
        UnreadableFilesLeftError if only files are left."""
        if self.windows:
            cause = next(iter(self.windows.values()))
            raise ErasureUnfinishedError(
                table,
                list(self.windows),
                cause,
                keys_forgotten=keys_forgotten,
                replays=self.replays,
                expired=self.expired,
            )
        if self.replays:
            raise ReplayErasureUnfinishedError(table, self.replays, keys_forgotten=keys_forgotten)
        if self.files:
            raise UnreadableFilesLeftError(table, self.files)
