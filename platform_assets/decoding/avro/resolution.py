"""Avro's schema resolution, which determines how values of one schema are read as values of another schema. It runs
once for each pair of schemas, not once for each value."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from platform_assets.decoding.avro.columns import (
    MOST_PARTS,
    SINGLE,
    TIMESTAMP,
    default_of,
    fields_of,
    logical_type,
    nullable,
    plain_type,
)
from platform_assets.decoding.avro.plan import (
    RESCUED,
    Again,
    Choice,
    Either,
    Empty,
    EmptyItems,
    Leaf,
    Node,
    Output,
    Refused,
    Repeated,
    Struct,
    Variant,
    Wire,
    least_size,
    struct_type,
)
from platform_assets.decoding.avro.types import (
    INSTANTS,
    Around,
    AvroType,
    BadSchema,
    Enum,
    Field,
    Fixed,
    Items,
    OtherRecord,
    Plain,
    PlainKind,
    Record,
    Union,
    described,
)

_PROMOTIONS: Final[frozenset[tuple[PlainKind, PlainKind]]] = frozenset(
    {
        ("int", "long"),
        ("int", "float"),
        ("int", "double"),
        ("long", "float"),
        ("long", "double"),
        ("float", "double"),
        ("string", "bytes"),
        ("bytes", "string"),
    }
)


def plan_of(writer: AvroType, reader: AvroType) -> Struct:
    """Return the plan that turns values written with `writer` into the columns of `reader`. Raises BadSchema if there
    is no such plan, or OtherRecord if the records have different names."""
    if isinstance(reader, Record):
        if isinstance(writer, Record) and not _same_name(writer, reader):
            raise OtherRecord("$", _other_record(writer, reader))
        made = _Resolver(writer).node(writer, reader, "$")
        if not isinstance(made, Struct):
            raise BadSchema("$", f"the writer's type is {described(writer)}, not a record")
        return made
    node = _Resolver(writer).node(writer, reader, "$")
    if node.type is None:
        raise BadSchema("$", f"the writer's type is {described(writer)}, which has no values")
    return Struct(((SINGLE, node),), struct_type([(SINGLE, node)]), (Output(fields_of(reader).field(0), 0, None),))


def plan_of_all(writer: AvroType) -> Struct:
    """Return the plan that reads all parts of a record in their written form. Raises BadSchema if the schema is no such
    record, or has too many parts."""
    made = _Resolver(writer).whole(writer, "$")
    if not isinstance(made, Struct):
        raise BadSchema("$", f"the writer's type is {described(writer)}, not a record")
    return made


class _Resolver:
    """Makes the nodes of a plan, and counts them."""

    def __init__(self, writer: AvroType) -> None:
        self._nodes = 0
        self._records: dict[str, Record] = {}
        self._know(writer)
        self._plans: dict[str, Node] = {}

    def _know(self, schema: AvroType) -> None:
        """Store all records of the writer's schema by name, because recursive records refer to themselves by name."""
        pending = [schema]
        while pending:
            each = pending.pop()
            if isinstance(each, Items):
                pending.append(each.item)
            elif isinstance(each, Union):
                pending += each.branches
            elif isinstance(each, Record) and each.name not in self._records:
                self._records[each.name] = each
                pending += [field.type for field in each.fields]

    def node(self, writer: AvroType, reader: AvroType, place: str) -> Node:
        """Return the node that reads a part."""
        self._count(place)
        if isinstance(writer, Around):
            writer = self._records[writer.name]
        if isinstance(writer, Union):
            return self._either(writer, reader, place)
        wanted, _ = nullable(reader, place)
        if isinstance(writer, Record) and isinstance(wanted, Record):
            if not _same_name(writer, wanted):
                raise BadSchema(place, _other_record(writer, wanted))
            return self._struct(writer, wanted, place)
        if isinstance(writer, Items) and isinstance(wanted, Items) and writer.is_map == wanted.is_map:
            return self._items(writer, wanted, place)
        if isinstance(writer, Enum) and isinstance(wanted, Enum) and _same_name(writer, wanted):
            read_as = tuple(symbol if symbol in wanted.symbols else wanted.default for symbol in writer.symbols)
            return Choice(writer.name, writer.symbols, read_as)
        if isinstance(writer, Fixed) and isinstance(wanted, Fixed) and _same_name(writer, wanted):
            if writer.size == wanted.size:
                return self._leaf("fixed", writer, wanted, place)
        elif (
            isinstance(writer, Plain)
            and isinstance(wanted, Plain)
            and (writer.kind == wanted.kind or (writer.kind, wanted.kind) in _PROMOTIONS)
            and writer.kind != "null"
        ):
            return self._leaf("bytes" if writer.kind == "string" else _wire(writer.kind), writer, wanted, place)
        raise BadSchema(place, f"the writer's type is {described(writer)}, which cannot be read as {described(wanted)}")

    def _leaf(self, wire: Wire, writer: Plain | Fixed, reader: Plain | Fixed, place: str) -> Leaf:
        size = writer.size if isinstance(writer, Fixed) else 0
        wrote, wants = writer.logical, reader.logical
        _check_meaning(writer, reader, place)
        kind = None if wants is None else logical_type(wants, place)
        if kind is None or wants is None:
            return Leaf(wire, plain_type("bytes" if isinstance(reader, Fixed) else reader.kind), size)
        if kind == TIMESTAMP:
            nanoseconds = INSTANTS[(wrote or wants).name]
            return Leaf(wire, kind, factor=max(nanoseconds // 1_000, 1), divisor=max(1_000 // nanoseconds, 1))
        if (
            wrote is not None
            and wants.name == "decimal"
            and (wrote.scale != wants.scale or wrote.precision > wants.precision)
        ):
            raise BadSchema(
                place,
                f"the writer's type is decimal({wrote.precision}, {wrote.scale}), which cannot be read as "
                f"decimal({wants.precision}, {wants.scale})",
            )
        return Leaf(wire, kind, size)

    def _either(self, writer: Union, reader: AvroType, place: str) -> Node:
        """Return a node that reads each branch as the reader declares it. A value becomes a dead letter if the reader
        does not accept the value's branch."""
        wanted, with_null = nullable(reader, place)
        branches: list[Node | Refused | None] = []
        found: Node | None = None
        for branch in writer.branches:
            if branch == Plain("null"):
                missing = Refused("missing", f"null, but the schema's {described(wanted)} cannot be null")
                branches.append(None if with_null else missing)
                continue
            try:
                made = self.node(branch, wanted, place)
            except BadSchema as error:
                branches.append(Refused("wrong_type", str(error)))
                continue
            if found is not None and made.type != found.type:
                branches.append(
                    Refused(
                        "bad_schema", f"{described(writer)} has two branches with different types for the same column"
                    )
                )
                continue
            found = found or made
            branches.append(made)
        if found is None or found.type is None:
            raise BadSchema(
                place, f"the writer's type is {described(writer)}, which cannot be read as {described(wanted)}"
            )
        return Either(tuple(branches), found.type)

    def _items(self, writer: Items, reader: Items, place: str) -> Node:
        inside = place + ("{}" if writer.is_map else "[]")
        item = self.node(writer.item, reader.item, inside)
        if writer.is_map:
            _, is_nullable = nullable(reader.item, inside)
            item = self._pair(item, pa.field("value", fields_type(reader.item, inside), nullable=is_nullable))
        return _repeated(item, inside, is_map_column=reader.is_map_column)

    def _pair(self, value: Node, field: pa.Field) -> Struct:
        parts = [("key", _KEY), ("value", value)]
        key = Output(pa.field("key", pa.string(), nullable=False), 0, None)
        if value.type is None:
            raise BadSchema("$", "map values that take no bytes cannot become a column")
        return Struct(tuple(parts), struct_type(parts), (key, Output(field, 1, None)))

    def _struct(self, writer: Record, reader: Record, place: str) -> Node:
        columns = fields_type(reader, place)
        by_name = {field.name for field in writer.fields}
        # A name takes precedence over an alias, so that swapped names stay as they are.
        source = {field.name: number for number, field in enumerate(reader.fields) if field.name in by_name}
        for number, field in enumerate(reader.fields):
            if field.name in by_name:
                continue
            alias = next((alias for alias in field.aliases if alias in by_name and alias not in source), None)
            if alias is not None:
                source[alias] = number
            elif not field.has_default:
                raise BadSchema(
                    f"{place}.{field.name}",
                    "the writer's schema lacks this field, and the reader's schema has no default for it",
                )
        parts: list[tuple[str, Node]] = []
        child_of: dict[int, int] = {}
        children = 0
        for field in writer.fields:
            target = source.get(field.name)
            at = f"{place}.{field.name}"
            if target is None:
                part = (RESCUED + field.name, self.whole(field.type, at))
            else:
                part = (reader.fields[target].name, self.node(field.type, reader.fields[target].type, at))
                child_of[target] = children
            parts.append(part)
            children += part[1].type is not None
        outputs = tuple(
            Output(columns.field(number), child_of.get(number), self._default(field, number in child_of, place))
            for number, field in enumerate(reader.fields)
        )
        return Struct(tuple(parts), struct_type(parts), outputs)

    def _default(self, field: Field, is_read: bool, place: str) -> object:
        return None if is_read else default_of(field, f"{place}.{field.name}")

    def whole(self, schema: AvroType, place: str) -> Node:
        """Return the plan for a part that the reader lacks. The part keeps its written form as far as possible."""
        self._count(place)
        if isinstance(schema, Plain):
            if schema.kind == "null":
                return Empty()
            return Leaf("bytes" if schema.kind == "string" else _wire(schema.kind), plain_type(schema.kind))
        if isinstance(schema, Fixed):
            return Leaf("fixed", pa.binary(), schema.size) if schema.size else Empty()
        if isinstance(schema, Enum):
            return Choice(schema.name, schema.symbols, schema.symbols)
        if isinstance(schema, Items):
            inside = place + ("{}" if schema.is_map else "[]")
            item = self.whole(schema.item, inside)
            if schema.is_map:
                pair = [("key", _KEY), ("value", item)]
                item = Struct(tuple(pair), struct_type(pair), None)
            return EmptyItems() if not least_size(item) else _repeated(item, inside)
        if isinstance(schema, Around):
            return self._again(schema, place)
        if isinstance(schema, Record):
            parts = [(field.name, self.whole(field.type, f"{place}.{field.name}")) for field in schema.fields]
            made = Struct(tuple(parts), struct_type(parts), None)
            return made if least_size(made) else Empty()
        return self._whole_union(schema, place)

    def _again(self, schema: Around, place: str) -> Again:
        if schema.name not in self._plans:
            self._plans[schema.name] = Empty()  # Placeholder until the plan is known, for parts inside it.
            self._plans[schema.name] = self.whole(self._records[schema.name], place)
        return Again(schema.name, self._plans)

    def _whole_union(self, schema: Union, place: str) -> Node:
        branches = [None if each == Plain("null") else (each, self.whole(each, place)) for each in schema.branches]
        present = [branch for branch in branches if branch is not None]
        if len(present) == 1 and present[0][1].type is not None:
            return Either(tuple(None if branch is None else branch[1] for branch in branches), present[0][1].type)
        named = [None if branch is None else (_branch_name(branch[0]), branch[1]) for branch in branches]
        return Variant(tuple(named), struct_type([branch for branch in named if branch is not None]))

    def _count(self, place: str) -> None:
        self._nodes += 1
        if self._nodes > MOST_PARTS:
            raise BadSchema(place, f"the writer's schema has more than {MOST_PARTS} parts")


def _check_meaning(writer: Plain | Fixed, reader: Plain | Fixed, place: str) -> None:
    """Raise BadSchema if the bytes could be read but would have a different meaning.

    If the writer's or the reader's type has no logical type, the number or the bytes are read unchanged and have the
    meaning that the reader gives them.
    """
    wrote, wants = writer.logical, reader.logical
    is_text = {type(each) is Plain and each.kind == "string" for each in (writer, reader)}
    if len(is_text) == 2:
        fits = {wrote and wrote.name, wants and wants.name} <= {None, "uuid"}
    elif wrote is None or wants is None or wrote.name == wants.name:
        fits = True
    else:
        fits = wrote.name in INSTANTS and wants.name in INSTANTS and wants.name != "timestamp-nanos"
    if not fits:
        raise BadSchema(
            place,
            f"the writer's type is {described(writer)}, which does not mean the same as {described(reader)}; to "
            f"keep the written value, declare {writer.kind if isinstance(writer, Plain) else 'fixed'} without a "
            "logical type",
        )


_KEY: Final = Leaf("bytes", pa.string())


def fields_type(reader: AvroType, place: str) -> pa.DataType:
    """Return the column type for a part of a reader's schema."""
    kept, _ = nullable(reader, place)
    if isinstance(kept, Record):
        return pa.struct(list(fields_of(kept)))
    return fields_of(kept).field(0).type


def _repeated(item: Node, place: str, *, is_map_column: bool = False) -> Repeated:
    least = least_size(item)
    if not least or item.type is None:
        raise BadSchema(
            place, "items that take no bytes cannot become a column: a few bytes could hold any number of them"
        )
    return Repeated(item, least, pa.list_(pa.field("element", item.type)), is_map_column)


def _wire(kind: PlainKind) -> Wire:
    if kind == "null" or kind == "string":
        raise AssertionError(f"{kind} has a different binary form")
    return kind


def _branch_name(of: AvroType) -> str:
    """Return a branch's name in the form that Avro's JSON encoding uses."""
    if isinstance(of, Plain):
        return of.kind
    if isinstance(of, Items):
        return "map" if of.is_map else "array"
    assert not isinstance(of, Union)
    return of.name


def _same_name(writer: Record | Enum | Fixed, reader: Record | Enum | Fixed) -> bool:
    """Compare unqualified names, as the specification requires. Return True if the writer's name equals the reader's
    name or one of the reader's aliases."""
    return _unqualified(writer.name) in map(_unqualified, (reader.name, *reader.aliases))


def _unqualified(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _other_record(writer: Record, reader: Record) -> str:
    return (
        f"the written record is {writer.name}, but the declared record is {reader.name}; if both mean the same, add "
        f"{_unqualified(writer.name)!r} to the aliases of the declared record"
    )
