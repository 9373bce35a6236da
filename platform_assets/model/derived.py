"""Declarations of derived tables as plain values: SQL over other tables of the lake. No I/O."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from platform_assets.errors import ConfigurationError
from platform_assets.model.expectations import Expectation

DERIVED: Final = "derived"
"""First part of the names of derived tables, which are no tables of a topic."""
WINDOW: Final = "window"
LONGEST_NAME: Final = 64
_COLUMN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME: Final = re.compile(rf"[a-z][a-z0-9_]{{0,{LONGEST_NAME - 1}}}")


def is_derived(short: str) -> bool:
    """Return True if `short` can be the name of a derived table below `derived/`."""
    return _NAME.fullmatch(short) is not None


@dataclass(frozen=True, slots=True, order=True)
class DerivedRef:
    """A derived table. Its name is its path below the lake root, and its asset key without the prefix.

    Raises ConfigurationError if `short` is not a name that folders, catalogs and Dagster all accept.
    """

    short: str

    def __post_init__(self) -> None:
        if not is_derived(self.short):
            raise ConfigurationError(
                f"{self.short!r} cannot be the name of a derived table: use 1 to {LONGEST_NAME} of the characters a-z 0-9 _ and "
                "begin with a letter"
            )

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """The name for users and tools, such as `derived/delays_by_day`."""
        return f"{DERIVED}/{self.short}"

    @property
    def parts(self) -> tuple[str, str]:
        """The parts of the name in a path or an asset key."""
        return DERIVED, self.short

    @classmethod
    def parse(cls, name: str) -> DerivedRef | None:
        """Return the derived table with the name `name`; None for names of other tables. Raises ConfigurationError."""
        kind, slash, short = name.partition("/")
        return cls(short) if slash and kind == DERIVED else None


@dataclass(frozen=True, slots=True)
class Totals:
    """The columns of a derived table that has totals in place of its query's rows: for all rows that are equal in the other columns,
    without those in `by`, `count` has their number, and `sums` the sums of these columns.

    Raises ConfigurationError for names that are no plain column names, or that are repeated.
    """

    count: str
    sums: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = (self.count, *self.sums)
        for name in names:
            if not _COLUMN.fullmatch(name):
                raise ConfigurationError(f"totals: {name!r} cannot be a column: use letters, digits and _")
        if len({name.lower() for name in names}) < len(names):
            raise ConfigurationError("totals: two columns have the same name: rename or remove one of them")

    def is_value(self, column: str) -> bool:
        """Return True if a column of the table has numbers or sums, and is not one by which rows are equal."""
        return column.lower() in {name.lower() for name in (self.count, *self.sums)}


@dataclass(frozen=True, slots=True)
class DerivedDeclaration:
    """A derived table: a query in Spark's SQL, and the columns that divide its rows into groups.

    `by` maps each column of a group to the SQL expression over the driving table, which is the first table in the query's FROM. With
    `totals`, the table has the totals of the query's rows over all groups.
    """

    table: DerivedRef
    by: Mapping[str, str]
    sql: str
    expect: tuple[Expectation, ...] = ()
    totals: Totals | None = None

    @property
    def digest(self) -> str:
        """Digest of everything that determines the rows, given the inputs."""
        totals = {} if self.totals is None else {"totals": [self.totals.count, *self.totals.sums]}
        what = json.dumps({"by": dict(self.by), "sql": self.sql, **totals}, separators=(",", ":"))
        return hashlib.sha256(what.encode()).hexdigest()[:16]

    @property
    def is_by_window(self) -> bool:
        """True if the groups are the windows of the driving table."""
        return dict(self.by) == {WINDOW: WINDOW}
