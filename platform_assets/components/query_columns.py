"""Mistakes in columns that derived tables and published topics name, found from the columns that topics declare. No service
is needed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from platform_assets.components.yaml_check import Declared, DeclaredDerived, DeclaredPublished
from platform_assets.components.yaml_files import Mistake
from platform_assets.decoding.formats import decoder_of
from platform_assets.errors import ConfigurationError
from platform_assets.lake import changes_table, dead_letter_table, decoded_table, state_table
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.derived import WINDOW, DerivedRef, Totals
from platform_assets.model.publishing import WITH_SCHEMA, Part, PublishDeclaration
from platform_assets.model.tables import StateKind, StateRef, TableKind, TableRef
from platform_assets.windows.derive import query
from platform_assets.windows.derive.columns import Analysis, Columns, analysed
from platform_assets.windows.derive.query import Input
from platform_assets.windows.publish.encoding import Encoder

_STAND_IN: Final = Part("json")


def unpublishable(
    published: Sequence[DeclaredPublished], topics: Sequence[Declared], derived: Sequence[DeclaredDerived] = ()
) -> tuple[Mistake, ...]:
    """Return a mistake for each column that a published topic names and its table does not have, and for each schema that
    columns cannot have. Of a derived table, only names are known."""
    declared: dict[TableRef | StateRef, TopicDeclaration] = {}
    for topic in topics:
        declared |= dict.fromkeys((*topic.declaration.tables, *topic.declaration.state_tables), topic.declaration)
    wanted = any(isinstance(each.declaration.table, DerivedRef) for each in published)
    analyses = _analyses(derived, topics) if wanted else iter(())
    made = {each.declaration.table: columns for each, _, _, columns in analyses}
    mistakes: list[Mistake] = []
    for each in published:
        d = each.declaration
        if isinstance(d.table, DerivedRef):
            if (known := made.get(d.table)) is not None:
                mistakes += _lacking(each, known)
            continue
        if d.table not in declared:
            continue
        schema = dict(_schemas(declared[d.table]))[d.table.kind]
        for field, line, columns in _named(each):
            unknown = [c for c in columns if c not in schema.names]
            for column in unknown:
                mistakes.append(Mistake(each.file, line, f"{field}: {_no_column(d.table.name, column, schema.names)}"))
            if not unknown and (text := _no_schema(d, field, schema)) is not None:
                mistakes.append(Mistake(each.file, line, f"{field}: {text}"))
    return tuple(sorted(mistakes))


def _named(each: DeclaredPublished) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Yield the fields of a published topic that name columns, with their lines and columns."""
    d = each.declaration
    yield "key", each.key_line, () if d.key is None else d.key.columns
    yield "value", each.value_line, d.value.columns
    yield "headers", each.headers_line, tuple(column for _, column in d.headers)


def _lacking(each: DeclaredPublished, columns: Columns) -> Iterator[Mistake]:
    """Yield a mistake for each column that a published topic names and its derived table does not have."""
    for field, line, named in _named(each):
        for column in (c for c in named if c.lower() not in {*columns, WINDOW}):
            text = f"{field}: {_no_column(each.declaration.table.name, column, columns)}"
            yield Mistake(each.file, line, text)


def _no_schema(declaration: PublishDeclaration, field: str, columns: pa.Schema) -> str | None:
    """Return what is wrong with the schema of published keys or values; None if nothing is, or they have none."""
    alone = replace(declaration, headers=(), tombstones=False)
    part = declaration.sides.get("key" if field == "key" else "value")
    if field == "headers" or part is None or part.format not in WITH_SCHEMA:
        return None
    # The other side has a mistake of its own.
    alone = replace(alone, value=_STAND_IN) if field == "key" else replace(alone, key=_STAND_IN)
    try:
        Encoder(alone, columns)
    except ConfigurationError as e:
        return str(e)
    return None


def _no_column(table: str, column: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(column, names, 1)
    return f"{table} has no column {column!r}: " + (
        f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(names)}"
    )


def examined(
    derived: Sequence[DeclaredDerived], topics: Sequence[Declared]
) -> tuple[tuple[Mistake, ...], tuple[Mistake, ...]]:
    """Return the mistakes in the columns that queries read, in their `by` and in `expect`, and warnings about results that may
    differ each time.

    Columns of tables that are not declared are taken to be unknown, and so are those of tables made from each other.
    """
    mistakes, warnings = [], []
    for each, parsed, found, columns in _analyses(derived, topics):
        if found.columns is not None and columns is not None:
            sums = () if each.declaration.totals is None else each.declaration.totals.sums
            for name in (n for n in sums if n.lower() not in found.columns):
                text = f"totals: {_no_column('the query', name, found.columns)}"
                mistakes.append(Mistake(each.file, each.sql_line, text))
            for column in dict.fromkeys(
                c for e in each.declaration.expect for c in e.columns if c.lower() not in columns
            ):
                text = f"expect: {_no_column(each.declaration.table.name, column, columns)}"
                mistakes.append(Mistake(each.file, each.expect_line, text))
        for finding in found.mistakes:
            line = each.by_line if finding.line is None else each.sql_line + finding.line - 1
            text = finding.message if finding.line is None else f"sql: {finding.message}"
            mistakes.append(Mistake(each.file, line, text))
        warnings += [Mistake(each.file, each.sql_line, f"sql: {text}") for text in parsed.warnings]
        warnings += [Mistake(each.file, each.sql_line + (f.line or 1) - 1, f"sql: {f.message}") for f in found.warnings]
    return tuple(sorted(mistakes)), tuple(sorted(warnings))


def _of_totals(totals: Totals, by: Iterable[str], columns: Columns) -> Columns:
    """Return the columns of a table with totals, from those of its query. The types of sums are not known."""
    left = {name: kind for name, kind in columns.items() if name not in {each.lower() for each in by}}
    return {**left, **{name.lower(): "" for name in totals.sums}, totals.count.lower(): "BIGINT"}


def _analyses(
    derived: Sequence[DeclaredDerived], topics: Sequence[Declared]
) -> Iterator[tuple[DeclaredDerived, query.Query, Analysis, Columns | None]]:
    """Yield each derived table with its query, what is found in it, and the table's columns, None if they are not known.
    The tables that it reads come first."""
    waiting = {each.declaration.table: (each, query.parsed(each.declaration)) for each in derived}
    read = {i for _, parsed in waiting.values() for i in parsed.inputs if not isinstance(i, DerivedRef)}
    known: dict[Input, Columns] = {}
    for topic in topics:
        tables = (*topic.declaration.tables, *topic.declaration.state_tables)
        known |= declared_columns(topic.declaration, [t for t in tables if t in read])
    while waiting:
        ready = (t for t, (_, parsed) in waiting.items() if not any(i in waiting for i in parsed.inputs))
        each, parsed = waiting.pop(next(ready, next(iter(waiting))))
        found = analysed(parsed, each.declaration.by, known)
        columns = found.columns
        if columns is not None:
            if (totals := each.declaration.totals) is not None:
                columns = _of_totals(totals, each.declaration.by, columns)
            known[each.declaration.table] = columns
        yield each, parsed, found, columns


def declared_columns(declaration: TopicDeclaration, tables: Sequence[TableRef | StateRef]) -> dict[Input, Columns]:
    """Return the columns of these tables of a topic, without those that are not declared in YAML."""
    schemas = dict(_schemas(declaration)) if tables else {}
    return {
        table: {field.name.lower(): decoded_table.type_name(field.type) for field in schemas[table.kind]}
        for table in tables
        if table.kind in schemas
    }


def _schemas(declaration: TopicDeclaration) -> Iterator[tuple[TableKind | StateKind, pa.Schema]]:
    dead = dead_letter_table.columns()
    yield "dead_letters", dead
    yield "raw", pa.schema([dead.field(name) for name in dead_letter_table.RAW_COLUMNS])
    if (decode := declaration.decode) is not None:
        key = None if decode.key is None else decoder_of(decode.key).fields
        decoded = decoded_table.columns(key, decoder_of(decode.value).fields)
        yield "decoded", decoded
        if declaration.state is not None:
            changes = changes_table.columns(decoded, declaration.state)
            yield "changes", changes
            yield "state", state_table.live_columns(changes)
            yield "state_deleted", state_table.dead_columns(changes, declaration.state.key)
            yield "history", state_table.history_columns(changes)
