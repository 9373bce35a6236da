"""Spark's part of derived tables that have totals: what rows of groups add, and how totals change by the difference. It never
commits.

Numbers of rows and sums are whole numbers or decimals, so that adding what groups have now and subtracting what they had before gives
exactly the totals that all rows give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from platform_assets.engines.deriving import AllRowsNeededError, quoted
from platform_assets.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import Column, DataFrame

    from platform_assets.model.derived import Totals

_WHOLE: Final = ("byte", "short", "integer", "long")
MOST_DIFFERENCES: Final = 1_000_000
"""Maximum number of rows of a table that a run changes. If more have changed, it computes all rows."""


class TotalsQueries:
    """Totals of the rows of a query whose group columns are `by`, which the totals do not have."""

    def __init__(self, totals: Totals, by: Collection[str]) -> None:
        self._totals, self._by = totals, {name.lower() for name in by}

    def keys(self, frame: DataFrame) -> list[str]:
        """Return the columns by which rows of the query, or of the table, are equal. Raises ConfigurationError if a column is
        missing, or has a type of which totals are not exact."""
        names = {field.name.lower() for field in frame.schema.fields}
        if missing := [name for name in self._totals.sums if name.lower() not in names]:
            raise ConfigurationError(f"totals: the query has no column {missing[0]!r}: add it to SELECT")
        if self._totals.count.lower() in names - self._by and self._by <= names:
            raise ConfigurationError(
                f"totals: the query has a column {self._totals.count!r}, which is the name for the number of rows: rename it"
            )
        found, sums = [], {name.lower() for name in self._totals.sums}
        for field in frame.schema.fields:
            name, kind = field.name, field.dataType.jsonValue()
            # A column in `by` can be summed too.
            if name.lower() in sums and kind not in _WHOLE and not str(kind).startswith("decimal("):
                raise ConfigurationError(f"totals: {name!r} has the type {kind}: cast it to BIGINT or DECIMAL")
            if name.lower() in self._by or self._totals.is_value(name):
                continue
            if any(word in repr(kind) for word in ("'map'", "'float'", "'double'")):
                raise ConfigurationError(
                    f"totals: rows cannot be equal in {name!r}, because its type has floating-point numbers or maps: cast it, or list "
                    "it in `sum`"
                )
            found.append(name)
        if not found:
            raise ConfigurationError("totals: the query needs a column in addition to those in `by` and `sum`")
        return found

    def of(self, rows: DataFrame) -> DataFrame:
        """Return the totals of the query's rows."""
        return self._added(rows.select(*self._signed(rows, 1)), self.keys(rows))

    def differences(self, before: DataFrame, now: DataFrame) -> pa.Table:
        """Return the changes of the totals if some of the query's rows were those of `before` and are those of `now`.

        Raises AllRowsNeededError if these are too many, or if the query has other columns now.
        """
        if before.schema.simpleString() != now.schema.simpleString():
            raise AllRowsNeededError("the query has other columns now, because columns of its inputs changed")
        both = before.select(*self._signed(before, -1)).unionAll(now.select(*self._signed(now, 1)))
        added = self._added(both, self.keys(now))
        found = added.where(" OR ".join(f"{quoted(name)} <> 0" for name in self._values)).limit(MOST_DIFFERENCES + 1)
        table = found.toArrow()
        if table.num_rows > MOST_DIFFERENCES:
            raise AllRowsNeededError(f"more than {MOST_DIFFERENCES:,} rows of the table changed")
        return table

    def changed(self, held: DataFrame, differences: DataFrame) -> DataFrame:
        """Return the table's rows `held` after `differences` were added. Rows that count no rows of the query are gone."""
        both = held.unionByName(differences.select(*map(quoted, held.columns)))
        return (
            self._added(both, self.keys(held))
            .where(f"{quoted(self._totals.count)} <> 0")
            .select(*map(quoted, held.columns))
        )

    @property
    def _values(self) -> tuple[str, ...]:
        return (self._totals.count, *self._totals.sums)

    def _signed(self, rows: DataFrame, sign: int) -> list[Column]:
        """Return the keys, the number of rows, and the values that are to be added, each with its type in the table."""
        from pyspark.sql import functions as F

        keys, kinds = self.keys(rows), {field.name.lower(): field.dataType for field in rows.schema.fields}
        values = []
        for name in self._totals.sums:
            kind = _total_type(kinds[name.lower()])
            value = F.coalesce(F.col(quoted(name)).cast(kind), F.lit(0).cast(kind))
            values.append((F.negative(value) if sign < 0 else value).alias(name))
        return [
            *(F.col(quoted(key)) for key in keys),
            F.lit(sign).cast("bigint").alias(self._totals.count),
            *values,
        ]

    def _added(self, rows: DataFrame, keys: list[str]) -> DataFrame:
        from pyspark.sql import functions as F

        kinds = {field.name.lower(): field.dataType for field in rows.schema.fields}

        def total(name: str) -> Column:
            # Without ANSI mode, `sum` would wrap around, or be null, which later sums would take for 0.
            text = f"totals: the sum of {name!r} has too many digits: cast it to a wider DECIMAL, or to fewer decimals"
            found = F.coalesce(F.try_sum(F.col(quoted(name))), F.raise_error(F.lit(text)))
            return found.cast(_total_type(kinds[name.lower()])).alias(name)

        return rows.groupBy(*(F.col(quoted(key)) for key in keys)).agg(*map(total, self._values))


def _total_type(kind: Any) -> str:
    """Return the type of a sum of values of a type. It depends on the scale only, so sums of sums have the same type."""
    text: str = kind.simpleString()
    if not text.startswith("decimal("):
        return "bigint"
    scale = int(text.removesuffix(")").rpartition(",")[2])
    return f"decimal(38,{scale})"
