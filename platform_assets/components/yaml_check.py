"""Check the YAML in a definitions folder without loading it: report every mistake with its file, line and remedy."""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import dagster as dg
from dagster.components.core.defs_module import ComponentFileModel
from dagster.components.resolved.context import ResolutionContext
from dagster.components.resolved.errors import ResolutionException
from dagster_shared.yaml_utils.source_position import SourcePositionTree, ValueAndSourcePositionTree
from pydantic import BaseModel, TypeAdapter, ValidationError

from platform_assets.components.derived_table import DerivedTable
from platform_assets.components.left_out import Candidate, left_out
from platform_assets.components.published_topic import PublishedTopic
from platform_assets.components.topic_table import TopicTable
from platform_assets.components.topic_tables import TopicTables
from platform_assets.components.yaml_files import Mistake, documents_in, files_below
from platform_assets.components.yaml_texts import TextContext, has_template
from platform_assets.errors import ConfigurationError
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.derived import DerivedDeclaration, DerivedRef
from platform_assets.model.publishing import PublishDeclaration
from platform_assets.model.tables import StateRef, TableRef
from platform_assets.model.untrusted import cut
from platform_assets.windows.derive import query
from platform_assets.windows.derive.expressions import QueryError

_Found: TypeAlias = "Declared | DeclaredDerived | DeclaredPublished | _Undeclared | Mistake"
Own = TypeVar("Own", TopicTable, PublishedTopic)

TOPIC_TABLE: Final = "platform_assets.components.TopicTable"
TOPIC_TABLES: Final = "platform_assets.components.TopicTables"
DERIVED_TABLE: Final = "platform_assets.components.DerivedTable"
PUBLISHED_TOPIC: Final = "platform_assets.components.PublishedTopic"
_OWN_TYPES: Final = (TOPIC_TABLE, TOPIC_TABLES, PUBLISHED_TOPIC, DERIVED_TABLE)
_EXAMPLES: Final = {
    "topics": "[orders, payments]",
    "each": '{window: "0 * * * *", start: "2026-01-31T00:00Z"}',
    "topic": "orders",
    "window": '"0 * * * *"',
    "start": '"2026-01-31T00:00Z"',
    "table": "delays_by_day",
    "by": '{day: "date(time_hour)"}',
    "sql": "SELECT …",
}
_MOST_REPR: Final = 200
_STAND_INS: Final = {"topic": "stand-in", "window": "0 * * * *", "start": "2000-01-01T00:00Z"}
"""Values to use for required fields that are missing or have the wrong type, so that the other fields can also be
checked."""
_PUBLISHED_STAND_INS: Final = {"topic": "stand-in", "table": "decoded/stand-in.source"}
_TYPES: Final = {
    "string": "text (in quotes if YAML would read it as another type)",
    "int": "a whole number",
    "bool": "true or false",
    "tuple": "a list such as [a, b]",
    "list": "a list such as [a, b]",
    "dict": "a mapping of `name: value` lines",
    "mapping": "a mapping of `name: value` lines",
}


@dataclass(frozen=True, slots=True)
class Declared:
    """A topic whose declaration in a YAML document has no mistake, and the lines of the topic's name and start."""

    declaration: TopicDeclaration
    file: Path
    topic_line: int
    start_line: int
    together_line: int = 0
    found: bool = False
    """True if a pattern found the topic."""


@dataclass(frozen=True, slots=True)
class DeclaredDerived:
    """A derived table whose declaration in a YAML document has no mistake; the lines of its name, of its query's first
    line, and of `by`."""

    declaration: DerivedDeclaration
    file: Path
    table_line: int
    sql_line: int
    by_line: int
    expect_line: int


@dataclass(frozen=True, slots=True)
class DeclaredPublished:
    """A published topic whose declaration has no mistake of its own, and the lines of its fields."""

    declaration: PublishDeclaration
    file: Path
    topic_line: int
    table_line: int
    key_line: int
    value_line: int
    headers_line: int


@dataclass(frozen=True, slots=True)
class _Undeclared:
    """A topic or derived table that is not known, because its YAML has a mistake or needs Python code. `name` is None if
    its name is not known either."""

    name: str | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The declarations in a definitions folder, the mistakes in them, and the topics that are left out so that all
    others can be defined. `published` has those published topics that have no mistake of their own."""

    declared: tuple[Declared, ...]
    mistakes: tuple[Mistake, ...]
    left_out: tuple[Mistake, ...] = ()
    derived: tuple[DeclaredDerived, ...] = ()
    published: tuple[DeclaredPublished, ...] = ()


def judge(folder: Path, *, case_sensitive: bool = True) -> Judgement:
    """Read every YAML file below `folder` that Dagster would load, and each file that Dagster would wrongly skip.
    `case_sensitive` is true if the lake distinguishes `Orders` from `orders`."""
    if not folder.is_dir():
        missing = Mistake(folder, 1, "there is no such folder: create it, or correct PLATFORM_DEFS")
        return Judgement((), (missing,))
    declared: list[Declared] = []
    published: list[DeclaredPublished] = []
    mistakes: list[Mistake] = []
    derived: list[DeclaredDerived] = []
    undeclared: set[str | None] = set()
    for file in files_below(folder):
        for found in _in_file(file, folder):
            if isinstance(found, Mistake):
                mistakes.append(found)
            elif isinstance(found, _Undeclared):
                undeclared.add(found.name)
            elif isinstance(found, DeclaredPublished):
                published.append(found)
            elif isinstance(found, DeclaredDerived):
                derived.append(found)
            else:
                declared.append(found)
    mistakes += _wrong_inputs(derived, declared, undeclared)
    mistakes += _unpublishable(published, declared, derived, undeclared)
    mistakes += _doubled_names(declared)
    candidates = [Candidate(each.declaration, f"{each.file}:{each.topic_line}", each.found) for each in declared]
    omitted = left_out(candidates, case_sensitive=case_sensitive)
    first: dict[str, Declared] = {}
    for each in (each for number, each in enumerate(declared) if number not in omitted):
        other = first.setdefault(each.declaration.topic, each)
        if other is not each:
            where = f"{other.file}:{other.topic_line}"
            text = f"topic: {each.declaration.topic!r} is declared twice, first at {where}: keep one of them"
            mistakes.append(Mistake(each.file, each.topic_line, text))
    beside = tuple(sorted(Mistake(declared[n].file, declared[n].topic_line, why) for n, why in omitted.items()))
    return Judgement(tuple(first.values()), tuple(sorted(mistakes)), beside, tuple(derived), tuple(published))


def _wrong_inputs(
    derived: Sequence[DeclaredDerived], declared: Sequence[Declared], undeclared: Collection[str | None]
) -> Iterator[Mistake]:
    """Yield a mistake for each derived table that is declared twice, reads an unknown table, or reads itself through
    others. A table may be unknown because of a mistake in its own YAML: then there is no mistake here."""
    known: set[query.Input] = {table for each in declared for table in each.declaration.tables}
    known |= {table for each in declared for table in each.declaration.state_tables}
    known |= {each.declaration.table for each in derived}
    reads = {each.declaration.table: query.parsed(each.declaration).inputs for each in derived}
    first: dict[DerivedRef, DeclaredDerived] = {}
    for each in derived:
        table = each.declaration.table
        other = first.setdefault(table, each)
        if other is not each:
            where = f"{other.file}:{other.table_line}"
            yield Mistake(
                each.file, each.table_line, f"table: {table} is declared twice, first at {where}: keep one of them"
            )
        for span in query.parsed(each.declaration).spans:
            if span.table not in known and not _is_excused(span.table, undeclared):
                line = each.sql_line + query.line_at(each.declaration.sql, span.start) - 1
                others = sorted(t.name for t in known - {table})
                close = difflib.get_close_matches(span.table.name, others, 1)
                hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(others) or 'none'}"
                yield Mistake(each.file, line, f"sql: {span.table} is not a table of this project: {hint}")
        if table in _upstream(table, reads):
            yield Mistake(
                each.file, each.table_line, f"table: {table} is made from itself, through other derived tables"
            )


def _is_excused(table: query.Input, undeclared: Collection[str | None]) -> bool:
    """Return True if a table may be missing only because of a mistake in its own YAML, which is reported there."""
    return None in undeclared or (table.short if isinstance(table, DerivedRef) else table.topic) in undeclared


def _upstream(table: DerivedRef, reads: Mapping[DerivedRef, Sequence[query.Input]]) -> set[query.Input]:
    found: set[query.Input] = set()
    waiting: list[query.Input] = [*reads[table]]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += reads.get(each, ()) if isinstance(each, DerivedRef) else ()
    return found


def _unpublishable(
    published: Sequence[DeclaredPublished],
    declared: Sequence[Declared],
    derived: Sequence[DeclaredDerived],
    undeclared: Collection[str | None],
) -> Iterator[Mistake]:
    """Yield a mistake for each published topic whose table is not declared, and for each that is declared twice."""
    tables: set[TableRef | StateRef | DerivedRef] = {each.declaration.table for each in derived}
    for topic in (each.declaration for each in declared):
        tables |= {*topic.tables, *topic.state_tables}
    first: dict[str, DeclaredPublished] = {}
    for each in published:
        d = each.declaration
        if d.table not in tables and not _is_excused(d.table, undeclared):
            yield Mistake(each.file, each.table_line, f"table: {d.table} is not declared: {_remedy(d.table)}")
        other = first.setdefault(d.topic, each)
        if other is not each:
            where = f"{other.file}:{other.topic_line}"
            text = f"topic: {d.topic!r} is published twice, first at {where}: keep one of them"
            yield Mistake(each.file, each.topic_line, text)


def _remedy(table: TableRef | StateRef | DerivedRef) -> str:
    if isinstance(table, DerivedRef):
        return f"declare it with a DerivedTable whose `table` is {table.short}"
    needs = {"decoded": ", with `decode`", "state": ", with `state`"}.get(table.kind, "")
    return f"declare topic {table.topic!r} with a TopicTable{needs}"


def _doubled_names(declared: Sequence[Declared]) -> Iterator[Mistake]:
    """Yield a mistake for each list whose group name another list already has, because Dagster would get two sensors
    with the same name."""
    first: dict[str, tuple[Path, int]] = {}
    reported: set[tuple[Path, int]] = set()
    for each in declared:
        name, place = each.declaration.together, (each.file, each.together_line)
        if name is None or first.setdefault(name, place) == place or place in reported:
            continue
        reported.add(place)
        where = ":".join(map(str, first[name]))
        yield Mistake(*place, f"together: {name!r} is already used for other topics, at {where}: choose another name")


def _in_file(file: Path, folder: Path) -> Iterator[_Found]:
    for found in documents_in(file, folder, _OWN_TYPES):
        if isinstance(found, Mistake):
            yield found
            yield _Undeclared(None)
        else:
            yield from _in_document(file, found)


def _in_document(file: Path, document: ValueAndSourcePositionTree) -> Iterator[_Found]:
    tree, value = document.source_position_tree, document.value
    if value is None:
        # An empty document has the position at which the next one would begin.
        yield Mistake(file, max(tree.position.start.line - 1, 1), "nothing follows this `---`: delete it")
        return
    if not isinstance(value, dict):
        text = f"a component is expected here, with `type: {TOPIC_TABLE}` and `attributes`"
        yield Mistake(file, tree.position.start.line, text)
        return
    try:
        component = TypeAdapter(ComponentFileModel).validate_python(value)
    except ValidationError as e:
        yield from _mistakes(file, tree, _by_field(e, tuple(ComponentFileModel.model_fields)))
        yield _Undeclared(None)
        return
    attributes = tree.children.get("attributes", SourcePositionTree(tree.position, {}))
    if component.type in _CHECKERS:
        given = dict(component.attributes or {})
        yield from _CHECKERS[component.type](file, attributes, given, templates=component.template_vars_module is None)
    elif problem := _not_a_component(component.type):
        yield Mistake(file, _line(tree, "type"), problem)
        yield _Undeclared(None)


def _not_a_component(name: str) -> str | None:
    expected = f"for a topic, use {TOPIC_TABLE}"
    local = name.startswith(".")
    if "." not in name or not all(part.isidentifier() for part in name[local:].split(".")):
        return f"{name!r} is not a component type: {expected}"
    if local:
        return None  # of the project's own Python, which Dagster imports
    try:
        found = pkgutil.resolve_name(name)
    except Exception:  # noqa: BLE001  importing a module runs it
        return f"type {name!r} cannot be imported: {expected}; for any other type, install its package"
    return (
        None
        if isinstance(found, type) and issubclass(found, dg.Component)
        else f"type {name!r} is not a component: {expected}"
    )


def _topic_table(
    file: Path, tree: SourcePositionTree, given: dict[str, Any], *, templates: bool
) -> Iterator[Declared | _Undeclared | Mistake]:
    """Check one topic's attributes; `templates` is true if their templates can be evaluated without Python code."""
    made = _made(TopicTable, _STAND_INS, file, tree, given, templates=templates)
    if isinstance(made, list | None):
        yield _undeclared(given, "topic")
        yield from made or ()
    else:
        yield Declared(made.declaration(), file, _line(tree, "topic"), _line(tree, "start"))


def _undeclared(given: Mapping[str, Any], field: str) -> _Undeclared:
    name = given.get(field)
    return _Undeclared(name if isinstance(name, str) and not has_template(name) else None)


def _published_topic(
    file: Path, tree: SourcePositionTree, given: dict[str, Any], *, templates: bool
) -> Iterator[DeclaredPublished | Mistake]:
    """Check the attributes of a published topic."""
    made = _made(PublishedTopic, _PUBLISHED_STAND_INS, file, tree, given, templates=templates)
    if isinstance(made, list):
        yield from made
    elif made is not None:
        lines = (_line(tree, name) for name in ("topic", "table", "key", "value", "headers"))
        yield DeclaredPublished(made.declaration(), file, *lines)


def _made(
    component: type[Own],
    stand_ins: Mapping[str, str],
    file: Path,
    tree: SourcePositionTree,
    given: dict[str, Any],
    *,
    templates: bool,
) -> Own | list[Mistake] | None:
    """Return the component that these attributes declare, or the mistakes in them; None if only Python code can
    evaluate the templates. `stand_ins` are values for required fields, so that the other fields can also be checked."""
    model, known = _model_of(component)
    context = TextContext.of(ResolutionContext.default())
    wrong = _wrong_fields(component, context, given, templates=templates)
    judged = {k: v for k, v in given.items() if k not in wrong and (templates or not has_template(v))}
    made: Own | None = None
    try:
        attributes = TypeAdapter(model).validate_python({**stand_ins, **judged})
        made = component.resolve_from_model(context, attributes)
    except ValidationError as e:
        wrong |= _by_field(e, known)
    if wrong:
        return list(_mistakes(file, tree, wrong))
    return made if judged == given else None


def _model_of(component: type[dg.Component]) -> tuple[type[BaseModel], tuple[str, ...]]:
    """Return the model of the component's attributes, and the names of its fields."""
    model = component.get_model_cls()
    if model is None:
        raise AssertionError("unreachable: the component has attributes")
    return model, tuple(model.model_fields)


def _wrong_fields(
    component: type[dg.Component], context: ResolutionContext, given: dict[str, Any], *, templates: bool
) -> dict[str, str]:
    """Return what is wrong with the types and the templates of single fields, by field."""
    model, known = _model_of(component)
    wrong: dict[str, str] = {}
    try:
        TypeAdapter(model).validate_python(given)
    except ValidationError as e:
        wrong |= _by_field(e, known)
    for field, value in given.items():
        if field not in wrong and templates and (problem := _template_problem(context, value)):
            wrong[field] = problem
    return wrong


_DERIVED_STAND_INS: Final = {
    "table": "stand_in",
    "by": {"window": "window"},
    "sql": "SELECT window FROM raw.`stand-in`",
}


def _derived_table(
    file: Path, tree: SourcePositionTree, given: dict[str, Any], *, templates: bool
) -> Iterator[DeclaredDerived | _Undeclared | Mistake]:
    """Check the attributes of a derived table."""
    found = list(_derived_mistakes(file, tree, given, templates=templates))
    if not any(isinstance(each, DeclaredDerived) for each in found):
        yield _undeclared(given, "table")
    yield from found


def _derived_mistakes(
    file: Path, tree: SourcePositionTree, given: dict[str, Any], *, templates: bool
) -> Iterator[DeclaredDerived | Mistake]:
    model, known = _model_of(DerivedTable)
    context = TextContext.of(ResolutionContext.default())
    wrong = _wrong_fields(DerivedTable, context, given, templates=templates)
    if wrong or (not templates and has_template(given)):
        yield from _mistakes(file, tree, wrong)
        return
    try:
        # Without the query, so that messages about it can name its line.
        plain = DerivedTable.resolve_from_model(
            context, TypeAdapter(model).validate_python({**given, **_no_query(given)})
        )
    except ValidationError as e:
        yield from _mistakes(file, tree, _by_field(e, known))
        return
    by = context.resolve_value(given["by"])
    sql = str(context.resolve_value(given["sql"]))
    whole = {query_by: str(text) for query_by, text in by.items()} if isinstance(by, dict) else {"window": "window"}
    declaration = replace(plain.declaration(), by=whole, sql=sql)
    line = _sql_line(file, tree)
    try:
        query.parsed(declaration)
    except QueryError as e:
        in_query = e.line is not None and not str(e).startswith("`by")
        yield Mistake(
            file,
            line + (e.line or 1) - 1 if in_query else _line(tree, "by" if str(e).startswith("`by") else "sql"),
            f"sql: {e}",
        )
        return
    except ConfigurationError as e:
        yield Mistake(file, line, f"sql: {e}")
        return
    yield DeclaredDerived(declaration, file, _line(tree, "table"), line, _line(tree, "by"), _line(tree, "expect"))


def _no_query(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return stand-ins for the query, and for `by` if it is a mapping."""
    return {
        name: _DERIVED_STAND_INS[name] for name in ("by", "sql") if name == "sql" or isinstance(given.get(name), dict)
    }


def _sql_line(file: Path, tree: SourcePositionTree) -> int:
    """Return the line of the query's first line: that of `sql`, or the next one if the text begins after `|` or `>`."""
    at = _line(tree, "sql")
    lines = file.read_text(encoding="utf-8").splitlines()
    return (
        at + 1
        if at <= len(lines) and lines[at - 1].split("#")[0].rstrip().endswith(("|", ">", "|-", ">-", "|+", ">+"))
        else at
    )


def _template_problem(context: ResolutionContext, value: Any) -> str | None:
    if not has_template(value):
        return None
    try:
        context.resolve_value(value)
    except ResolutionException as e:
        cause = str(e).strip().splitlines()[-1]
        return (
            f"its template cannot be evaluated: {cause}. To write a literal "
            f"{{{{, put the text into {{% raw %}} … {{% endraw %}}"
        )
    return None


def _topic_tables(
    file: Path, tree: SourcePositionTree, given: dict[str, Any], *, templates: bool
) -> Iterator[Declared | _Undeclared | Mistake]:
    """Check the attributes of a list of topics. A mistake in a shared field is reported once."""
    try:
        made = TopicTables(**given).with_found(file.parent)
    except ConfigurationError as e:
        yield Mistake(file, _line(tree, "pattern"), str(e))
        yield _Undeclared(None)
        return
    except ValidationError as e:
        yield from _mistakes(file, tree, _by_field(e, tuple(TopicTables.model_fields)))
        yield _Undeclared(None)
        return
    reported: set[Mistake] = set()
    for entry in made.entries(tree):
        if entry.tree is None:
            raise AssertionError("unreachable: it was given")
        for found in _topic_table(file, entry.tree, dict(entry.attributes), templates=templates):
            if isinstance(found, Declared):
                d = replace(found.declaration, together=made.together)
                yield replace(found, declaration=d, together_line=_line(tree, "together"), found=entry.found)
            elif isinstance(found, _Undeclared) or found not in reported:
                yield found
            if isinstance(found, Mistake):
                reported.add(found)


_CHECKERS: Final[Mapping[str, Callable[..., Iterator[_Found]]]] = {
    TOPIC_TABLE: _topic_table,
    TOPIC_TABLES: _topic_tables,
    DERIVED_TABLE: _derived_table,
    PUBLISHED_TOPIC: _published_topic,
}
"""Functions that check the attributes of the platform's components, by type."""


def _by_field(error: ValidationError, known: Sequence[str]) -> dict[str, str]:
    """Map each field to its first error; the key "" stands for the whole topic."""
    found: dict[str, str] = {}
    for each in error.errors(include_url=False):
        field = str(each["loc"][0]) if each["loc"] else ""
        found.setdefault(field, _message(each["type"], each["msg"], field, each["input"], known))
    return found


def _message(kind: str, message: str, field: str, value: object, known: Sequence[str]) -> str:
    if kind == "missing":
        return f"it is missing: add `{field}: {_EXAMPLES.get(field, '…')}`"
    if kind == "extra_forbidden":
        close = difflib.get_close_matches(field, known, 1)
        return "unknown field: " + (f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(known)}")
    expected = next((text for start, text in _TYPES.items() if kind.startswith(start)), None)
    return message.removeprefix("Value error, ") if expected is None else f"must be {expected}, not {_repr(value)}"


def _repr(value: object) -> str:
    try:
        return cut(repr(value), _MOST_REPR)
    except ValueError:  # Python does not print numbers with that many digits.
        return "a number with thousands of digits"


def _mistakes(file: Path, tree: SourcePositionTree, wrong: Mapping[str, str]) -> Iterator[Mistake]:
    for field, text in wrong.items():
        yield Mistake(file, _line(tree, field), f"{field}: {text}" if field else text)


def _line(tree: SourcePositionTree, field: str) -> int:
    position = tree.lookup((field,))
    return (position or tree.position).start.line
