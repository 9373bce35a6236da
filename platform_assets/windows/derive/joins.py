"""Joins from whose text follows which rows of the driving table see a changed row of the joined table. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Pairs = tuple[tuple[str, str], ...]
"""Columns of the driving table, each with the column of the joined table that has to be equal."""


def keyed(select: Any, alias: str) -> Iterator[tuple[str, str, Pairs]]:
    """Yield the kind, the name and the pairs of each joined table of a select whose first table is the driving one, with
    the name `alias` in lower case, if a row of the joined table is seen only by rows with equal values in the pairs.

    So a driving row whose values are in no changed row of the joined table has the same partners as before. This holds
    for inner, left, semi and anti joins if ON requires `driving.column = joined.column`, or with USING: there, the
    caller has to check that the driving table has the column, because it may also come from another joined table.
    """
    from sqlglot import exp

    for join in select.args.get("joins") or ():
        table = join.this
        if not any(join.args.get(part) for part in ("on", "using", "method")):
            # Spark's settings decide which tables a join after a comma sees. A comma is a cross join here.
            return
        if not isinstance(table, exp.Table) or table.args.get("db") is None or table.args.get("joins"):
            continue
        own = (table.alias or table.name).lower()
        if own == alias or join.args.get("method"):
            continue
        if (named := table.args.get("alias")) is not None and named.args.get("columns"):
            # The text then has other names than the table.
            continue
        if pairs := tuple(_pairs(join, alias, own)):
            yield table.args["db"].name, table.name, pairs


def _pairs(join: Any, driving: str, joined: str) -> Iterator[tuple[str, str]]:
    from sqlglot import exp

    for each in join.args.get("using") or ():
        yield each.name, each.name
    on = join.args.get("on")
    waiting = [] if on is None else [on]
    while waiting:
        node = waiting.pop()
        if isinstance(node, exp.Paren):
            waiting.append(node.this)
        elif isinstance(node, exp.And):
            waiting += [node.expression, node.this]
        elif isinstance(node, exp.EQ | exp.NullSafeEQ):
            sides = {_table_of(side): side.name for side in (node.this, node.expression) if _table_of(side)}
            if set(sides) == {driving, joined}:
                yield sides[driving], sides[joined]


def _table_of(node: Any) -> str:
    """Return the name before a column in lower case; an empty text for other expressions, and for fields of structs."""
    from sqlglot import exp

    is_column = isinstance(node, exp.Column) and not node.args.get("db") and not node.is_star
    return node.table.lower() if is_column else ""


def reads_all_columns(root: Any) -> bool:
    """Return True if a query may read columns that its text does not name: by `*`, or by a natural join."""
    from sqlglot import exp

    for node in root.find_all(exp.Star, exp.Join):
        if isinstance(node, exp.Join):
            if node.args.get("method"):
                return True
        elif not isinstance(node.parent, exp.Count):
            return True
    return False


def is_named(column: str, *texts: str) -> bool:
    """Return True if a text may name a column. Names in other letters than ASCII's are taken to be named."""
    return not column.isascii() or any(column.lower() in text.replace("``", "`").lower() for text in texts)
