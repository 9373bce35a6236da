"""The columns that a derived table's query reads and returns, found from the declared columns of its inputs. Pure.

The parser's own qualification resolves the names. A name is reported only if no input, alias or text of the query has it, because a
query that Spark accepts must never be refused here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from platform_assets.windows.derive import expressions
from platform_assets.windows.derive.expressions import line_of
from platform_assets.windows.derive.query import Input, Query, floating_sum, has_floating_text

Columns = Mapping[str, str]
"""Types of a table's columns in the syntax of Spark's DDL, by name in lower case. A type is empty if it is unknown."""

_WORD: Final = re.compile(r"\w+")
_GIVEN_BY_SPARK: Final = re.compile(
    r"col\d*|c\d+|pos|key|value|id|_metadata|grouping__id|spark_grouping_id|"
    r"years?|quarters?|months?|weeks?|days?|dayofyear|hours?|minutes?|seconds?|milliseconds?|microseconds?",
    re.IGNORECASE,
)
"""Names that Spark gives to columns of generated rows, and units of time, which the parser may take for columns."""
_INPUT: Final = "__input_"
_NAMES_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake or a warning. `line` is the line in the query, counted from 1; None if it concerns `by`."""

    line: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Analysis:
    """The columns of a query's result, None if they are not known, and what was found in the query."""

    columns: Columns | None
    mistakes: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()


def analysed(query: Query, by: Mapping[str, str], inputs: Mapping[Input, Columns]) -> Analysis:
    """Resolve the columns in a query and in `by`. `inputs` has the columns of the tables for which they are known."""
    if in_by := tuple(_in_by(query, by, inputs)):
        return Analysis(None, in_by)
    root, names = _with_short_names(query)
    schema = {short: inputs[table] for short, table in names.items() if table in inputs}
    sources = tuple(_wrong_sources(root, names, inputs))
    if sources or len(schema) < len(names):
        return Analysis(None, sources)
    known = _known_names(root, schema)
    try:
        result = _qualified(root, schema)
    except Exception:  # noqa: BLE001  the parser cannot resolve each query that Spark can
        return Analysis(None, tuple(_unknown(root, known)))
    unresolved = tuple(_unknown(result, known))
    return Analysis(_columns(result), unresolved, tuple(_floating(result)))


def _in_by(query: Query, by: Mapping[str, str], inputs: Mapping[Input, Columns]) -> Iterator[Finding]:
    from sqlglot import exp

    columns = inputs.get(query.driving)
    if columns is None:
        return
    for name, text in by.items():
        expression = expressions.by_expression(name, text)
        for column in expression.find_all(exp.Column):
            if column.name.lower() not in columns:
                yield Finding(
                    None, f"`by: {name}`: {query.driving} has no column {column.name!r}: {_hint(column.name, columns)}"
                )
        kind = columns.get(expression.name.lower(), "") if isinstance(expression, exp.Column) else ""
        if kind.startswith("MAP<"):
            yield Finding(
                None, f"`by: {name}` is a {kind}, which cannot divide rows into groups: use one of its values"
            )


def _with_short_names(query: Query) -> tuple[Any, dict[str, Input]]:
    """Return the parsed query with plain names for its tables, so that no name of a topic needs quotes, and these names."""
    from sqlglot import exp

    (root,) = (each for each in expressions.statements(query.text) if each is not None)
    tables = {(each.name.partition("/")[0], each.name.partition("/")[2]): each for each in query.inputs}
    shorts = {table: f"{_INPUT}{number}" for number, table in enumerate(query.inputs)}
    for table in list(root.find_all(exp.Table)):
        if table.args.get("db") is None:
            continue
        found = tables[(table.args["db"].name, table.name)]
        if not table.alias:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
        table.set("this", exp.to_identifier(shorts[found]))
        table.set("db", None)
    return root, {short: table for table, short in shorts.items()}


def _wrong_sources(root: Any, names: Mapping[str, Input], inputs: Mapping[Input, Columns]) -> Iterator[Finding]:
    """Yield a mistake for each `alias.column` whose table does not have the column."""
    from sqlglot import exp
    from sqlglot.optimizer.scope import traverse_scope

    structs = {name for columns in inputs.values() for name in columns}
    try:
        scopes = traverse_scope(root)
    except Exception:  # noqa: BLE001  the parser cannot resolve each query that Spark can
        return
    for scope in scopes:
        sources = {alias.lower(): source for alias, source in scope.sources.items()}
        for column in scope.columns:
            source = sources.get(column.table.lower())
            table = names.get(source.name) if isinstance(source, exp.Table) else None
            columns = None if table is None else inputs.get(table)
            # `a.b` may also be the field b of a struct a.
            if columns is None or column.args.get("db") or column.table.lower() in structs or column.is_star:
                continue
            name = column.name.lower()
            if name not in columns and name != "_metadata":
                yield Finding(line_of(column), f"{table} has no column {column.name!r}: {_hint(name, columns)}")


def _known_names(root: Any, schema: Mapping[str, Columns]) -> set[str]:
    """Return each name in lower case that a column of the query might have, also by a struct's field or a text with a schema."""
    from sqlglot import exp

    known = {name for columns in schema.values() for name in columns}
    for columns in schema.values():
        known |= {word.lower() for kind in columns.values() for word in _WORD.findall(kind)}
    for node in root.walk():
        if isinstance(node, exp.Literal | exp.RawString):
            known |= {word.lower() for word in _WORD.findall(node.name)}
        elif isinstance(node, exp.Identifier) and not (isinstance(node.parent, exp.Column) and node.arg_key == "this"):
            known.add(node.name.lower())
    return known


def _unknown(root: Any, known: set[str]) -> Iterator[Finding]:
    from sqlglot import exp

    seen = set()
    for column in root.find_all(exp.Column):
        name = column.name
        if name.lower() in known or column.is_star or not name or _GIVEN_BY_SPARK.fullmatch(name):
            continue
        if "_metadata" in (part.name.lower() for part in column.parts[:-1]):
            # A field of Spark's hidden column, which the engine refuses or computes.
            continue
        finding = Finding(line_of(column), f"no table of the query has a column {name!r}: {_hint(name, known)}")
        if finding not in seen:
            seen.add(finding)
            yield finding


def _qualified(root: Any, schema: Mapping[str, Columns]) -> Any:
    from sqlglot.optimizer.annotate_types import annotate_types
    from sqlglot.optimizer.qualify import qualify
    from sqlglot.schema import MappingSchema

    typed: dict[str, object] = {
        table: {name: _type(kind) for name, kind in columns.items()} for table, columns in schema.items()
    }
    mapping = MappingSchema(typed, dialect="spark", normalize=False)
    found = qualify(
        root.copy(), dialect="spark", schema=mapping, validate_qualify_columns=False, quote_identifiers=False, identify=False
    )  # fmt: skip
    return annotate_types(found, schema=mapping, dialect="spark")


def _type(kind: str) -> Any:
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        return exp.DataType.build(kind or "UNKNOWN", dialect="spark")
    except SqlglotError:  # a field's name with characters that need quotes
        return exp.DataType.build("UNKNOWN")


def _columns(result: Any) -> Columns | None:
    """Return the columns of a resolved query, without types that may be others in Spark."""
    from sqlglot import exp

    columns = {}
    generated = result.find(exp.Lateral, exp.Explode, exp.Posexplode, exp.Inline) is not None
    for item in result.selects:
        name = item.alias_or_name.lower()
        if item.is_star or not name:
            return None
        unknown = generated or item.type is None or item.type.is_type("unknown") or _has_other_types(item)
        columns[name] = "" if unknown else str(item.type.sql("spark"))
    return columns


def _floating(result: Any) -> Iterator[Finding]:
    """Yield a warning for each sum of a column that is floating by its declared type."""
    from sqlglot import exp

    read = {table.alias_or_name for table in result.find_all(exp.Table) if table.name.startswith(_INPUT)}
    is_sure = not _has_other_types(result)
    for node in result.find_all(exp.Sum, exp.Avg):
        columns = [each for each in node.find_all(exp.Column) if is_sure or each.table in read]
        adds = _is_floating_type(node.this) and any(map(_is_floating_type, columns))
        if adds and not has_floating_text(node):
            yield Finding(line_of(node), floating_sum(str(node.sql("spark"))))


def _is_floating_type(node: Any) -> bool:
    return node.type is not None and bool(node.type.is_type("double", "float"))


def _has_other_types(node: Any) -> bool:
    """Return True if the parser may take a part for floating that is decimal in Spark: 1.5, an average, or a quotient."""
    from sqlglot import exp

    return any(
        isinstance(each, exp.Avg | exp.Div) or (isinstance(each, exp.Literal) and each.is_number and not each.is_int)
        for each in node.walk()
    )


def _hint(name: str, known: set[str] | Columns) -> str:
    close = difflib.get_close_matches(name.lower(), sorted(known), 1)
    if close:
        return f"did you mean {close[0]}?"
    if isinstance(known, set):
        return "select it from a table that has it, or correct the name"
    more = "" if len(known) <= _NAMES_SHOWN else f" and {len(known) - _NAMES_SHOWN} more"
    return f"use one of {', '.join([*known][:_NAMES_SHOWN])}{more}"
