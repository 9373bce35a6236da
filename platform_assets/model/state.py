"""The declaration of a topic's state: the key of a row, the order of its records, and what deletes a key. No I/O."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Final, Literal, get_args

from platform_assets.errors import ConfigurationError
from platform_assets.model import debezium
from platform_assets.model.keeping import Keep

CODE_VERSION: Final = 1
"""Version of the rules that choose a record for each key.

A release that changes the rules raises this version, so that the changes of all windows are made again. Rules that read
the operation of change events are one version ahead.
"""

POSITION: Final = "position"
"""The order by generation, window, partition and offset alone."""
Deletes = Literal["tombstone", "debezium", "none"]
"""tombstone: a record without a value deletes the key in the record's key; debezium: a change event that deletes a row
does so too; none: no record deletes a key."""
DELETES: Final[tuple[Deletes, ...]] = get_args(Deletes)
Kept = Literal["last", "first"]
"""last: the last record of a key counts; first: the first one, so that repeated records of a producer are dropped."""
KEPT: Final[tuple[Kept, ...]] = get_args(Kept)
Snapshots = Literal["partial", "whole"]
"""partial: rows that a snapshot of the connector lacks stay in the state; whole: each snapshot has every row of the table,
so that keys without a record since the first one of a complete snapshot are deleted."""
SNAPSHOTS: Final[tuple[Snapshots, ...]] = get_args(Snapshots)
RECORD_KEY: Final = "key"
"""The column of decoded rows that has the record's key, if keys are single values."""

SUPERSEDED: Final = "superseded"
NO_VALUE: Final = "without a value"
NO_KEY: Final = "without a key"
NO_VERSION: Final = "without a version"
TRUNCATE: Final = "of a truncate, in a topic with several partitions"
OTHER_KEY: Final = "with other values in the record's key than in the row"
SEVERAL_PARTITIONS: Final = "keys in several partitions"
"""Names of the figures of a window. superseded: records that another record of their key replaces; without a value:
tombstones of a topic whose state has no deletes; without a key: records with a null in a key column; without a version:
records with a null in the version column; of a truncate: change events that delete all rows of a table in the
database, but no key of the state, because nothing tells which records of other partitions come before them; keys in
several partitions: keys with records in more than one partition, between which the order is fixed but arbitrary; with other
values in the record's key: records of a row whose deletes, which have the record's key, would reach another row."""
REFUSED: Final = (NO_VALUE, NO_KEY, NO_VERSION, TRUNCATE)
"""Figures of records that are in no row and that no other record replaces: dead letters of the state."""


@dataclass(frozen=True, slots=True)
class StateDeclaration:
    """The declaration of a topic's state.

    `key` lists columns of the decoded table. Records of one key are in a total order: first by the column `order`,
    unless that is `POSITION`, and then by generation, window, partition and offset. `keep` says which of them counts.
    `operation`, `lsn` and `snapshot` are the decoded columns that contain these facts about a change event. `deletes:
    debezium` uses the first one, and `snapshots: whole` all of them.
    With `history`, there is also a table of earlier rows. `deletes_kept` is the time after which a deleted key is
    removed from the table of deleted keys; None if it never is.
    """

    key: tuple[str, ...]
    order: str = POSITION
    deletes: Deletes = "tombstone"
    keep: Kept = "last"
    operation: str = debezium.DEFAULT_NAMES[debezium.OPERATION]
    lsn: str = debezium.DEFAULT_NAMES[debezium.LSN]
    snapshot: str = debezium.DEFAULT_NAMES[debezium.SNAPSHOT]
    snapshots: Snapshots = "partial"
    history: bool = False
    deletes_kept: Keep | None = None

    def __post_init__(self) -> None:
        if not self.key:
            raise ConfigurationError("key: lists no column: list the columns that identify a row, such as [id]")
        for name in self.key:
            if self.key.count(name) > 1:
                raise ConfigurationError(f"key: {name!r} is given twice: keep one of them")
        if RECORD_KEY in self.key and len(self.key) > 1:
            raise ConfigurationError(
                f"key: {RECORD_KEY!r} is the whole key of a record, so no other column can be added to it: give [{RECORD_KEY}] "
                "alone, or only columns of the value"
            )
        for name, given, known in (
            ("deletes", self.deletes, DELETES),
            ("keep", self.keep, KEPT),
            ("snapshots", self.snapshots, SNAPSHOTS),
        ):
            if given not in known:
                raise ConfigurationError(f"{name}: must be one of {', '.join(known)}, not {given!r}")
        is_debezium = self.deletes == "debezium"
        if self.has_deletes and self.version is not None:
            raise ConfigurationError(
                f"deletes: a tombstone has no column {self.version!r}, so it has no place in an order by that column, and the "
                "deleted key could come back: use `order: position`" + ("" if is_debezium else ", or `deletes: none`")
            )
        if self.has_deletes and self.keep == "first":
            raise ConfigurationError(
                "deletes: with `keep: first`, a key keeps its first record, so no later record can delete it: use "
                + ("`keep: last`" if is_debezium else "`deletes: none`")
            )

        if self.has_sweeps and not is_debezium:
            raise ConfigurationError(
                "snapshots: only change events say which snapshot they belong to: use `format: debezium`, or leave `snapshots` out"
            )
        if self.deletes_kept is not None and not self.has_deletes:
            raise ConfigurationError(
                "deletes_kept: with `deletes: none`, the state has no deleted keys, so there is nothing to remove: leave "
                "`deletes_kept` out"
            )

    @property
    def has_deletes(self) -> bool:
        """True if records can delete keys. Tombstones are then among those records."""
        return self.deletes != "none"

    @property
    def has_truncates(self) -> bool:
        """True if one record can delete all keys. Its change has null in each key column."""
        return self.deletes == "debezium"

    @property
    def has_sweeps(self) -> bool:
        """True if a complete snapshot deletes all keys without a record since its first one."""
        return self.snapshots == "whole"

    @property
    def version(self) -> str | None:
        """The column that comes before the position in the order; None without one."""
        return None if self.order == POSITION else self.order

    @property
    def digest(self) -> str:
        """Digest of everything that determines which record of a key counts."""
        what = {
            "code": CODE_VERSION + self.has_truncates,
            "key": self.key,
            "order": self.order,
            "deletes": self.deletes,
            "keep": self.keep,
        }
        if self.has_truncates:
            what["operation"] = self.operation
        if self.has_sweeps:
            what |= {"snapshots": self.snapshots, "lsn": self.lsn, "snapshot": self.snapshot}
        return hashlib.sha256(json.dumps(what, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]
