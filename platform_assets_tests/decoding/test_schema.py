"""Conversion of Spark DDL and JSON Schema to Arrow, and the elements that are not allowed in DDL or JSON Schema."""

from typing import Any

import pyarrow as pa
import pytest

from platform_assets.decoding.schema import RESERVED, ddl_of_schema, schema_of_ddl, schema_of_json_schema
from platform_assets.errors import ConfigurationError

TIMESTAMP = pa.timestamp("us", tz="UTC")


def list_of(kind: Any, *, nullable: bool = True) -> Any:
    return pa.list_(pa.field("element", kind, nullable=nullable))


@pytest.mark.parametrize(
    ("ddl", "fields"),
    [
        ("a BOOLEAN", [("a", pa.bool_(), True)]),
        (
            "a TINYINT, b SMALLINT, c INT, d BIGINT",
            [("a", pa.int8(), True), ("b", pa.int16(), True), ("c", pa.int32(), True), ("d", pa.int64(), True)],
        ),
        (
            "a byte, b short, c integer, d long, e real, f dec(3, 1), g numeric",
            [
                ("a", pa.int8(), True),
                ("b", pa.int16(), True),
                ("c", pa.int32(), True),
                ("d", pa.int64(), True),
                ("e", pa.float32(), True),
                ("f", pa.decimal128(3, 1), True),
                ("g", pa.decimal128(10, 0), True),
            ],
        ),
        ("a FLOAT NOT NULL, b: DOUBLE", [("a", pa.float32(), False), ("b", pa.float64(), True)]),
        ("a DECIMAL(38,38), b DECIMAL(5)", [("a", pa.decimal128(38, 38), True), ("b", pa.decimal128(5, 0), True)]),
        ("a STRING\n,b BINARY ", [("a", pa.string(), True), ("b", pa.binary(), True)]),
        ("a DATE, b TIMESTAMP", [("a", pa.date32(), True), ("b", TIMESTAMP, True)]),
        ("`a.b` INT, `c``d` INT, `é` INT", [("a.b", pa.int32(), True), ("c`d", pa.int32(), True), ("é", pa.int32(), True)]),
        (
            "a ARRAY<STRUCT<x: INT NOT NULL, y ARRAY<STRING>>> NOT NULL, `date` DATE",
            [
                (
                    "a",
                    list_of(pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", list_of(pa.string()))])),
                    False,
                ),
                ("date", pa.date32(), True),
            ],
        ),
    ],
)  # fmt: skip
def test_ddl_becomes_columns_and_back(ddl: str, fields: list[tuple[str, Any, bool]]) -> None:
    schema = schema_of_ddl(ddl)
    assert schema == pa.schema([pa.field(name, kind, nullable=nullable) for name, kind, nullable in fields])
    assert schema_of_ddl(ddl_of_schema(schema)) == schema


@pytest.mark.parametrize(
    ("ddl", "says"),
    [
        ("", "the end at character 1, where a name was expected"),
        ("a", "the end at character 2, where a type"),
        ("a INT,", "the end at character 7, where a name"),
        ("a INT b INT", "'b' at character 7, where ',' or the end, or NOT NULL"),
        ("a INT NOT", "'NOT' at character 7"),
        ("a FOO", "'FOO' at character 3, where a type"),
        ("a INT; DROP TABLE b", "';' at character 6"),
        ("a ARRAY<INT", "the end at character 12, where '>'"),
        ("a STRUCT<>", "'>' at character 10, where a name"),
        ("a MAP<INT, INT>", "MAP at character 3 has keys of type INT: declare MAP<STRING, …>"),
        ("a TIMESTAMP_NTZ", "declare TIMESTAMP, or STRING"),
        ("a VARCHAR(3)", "declare STRING"),
        ("a INT COMMENT 'x'", '"\'" at character 15'),
        ("a DECIMAL(39,1)", "precision ≤ 38"),
        ("a DECIMAL(3,4)", "scale ≤ precision"),
        ("a DECIMAL(x)", "'x' at character 11, where a number of digits"),
        ("a INT, A STRING", "'A' occurs twice"),
        ("a STRUCT<b: INT, B: INT>", "'a.B' occurs twice"),
        ("a ARRAY<ARRAY<STRUCT<b: INT, B: INT>>>", "'a.B' occurs twice"),
        ("`a b` INT", "'a b' cannot be the name of a column"),
        ("`a=b` INT", "'a=b' cannot be the name of a column"),
        ("a STRUCT<`b,c`: INT>", "'a.b,c' cannot be the name"),
        ("a " + "ARRAY<" * 60 + "INT" + ">" * 60, "more than 50 nested types"),
        ("Rescued STRING", "'Rescued' is a reserved column of decoded tables"),
    ],
)
def test_ddl_that_cannot_be_a_table_is_refused_with_its_place(ddl: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        schema_of_ddl(ddl)


@pytest.mark.parametrize("name", RESERVED)
def test_columns_of_decoded_tables_are_refused_at_the_top_alone(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}' is a reserved column"):
        schema_of_ddl(f"{name} STRING")
    assert schema_of_ddl(f"a STRUCT<{name}: STRING>")


def test_json_schema_becomes_the_same_columns_as_ddl() -> None:
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": False,
        "required": ["id", "legs", "maybe"],
        "properties": {
            "id": {"type": "integer", "minimum": 1},
            "price": {"type": ["number", "null"]},
            "name": {"type": "string", "format": "email"},
            "ok": {"type": ["boolean"]},
            "born": {"type": "string", "format": "date"},
            "seen": {"anyOf": [{"type": "null"}, {"type": "string", "format": "date-time"}]},
            "maybe": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
            "legs": {"type": "array", "items": {"$ref": "#/$defs/a~1leg"}},
        },
        "$defs": {"a/leg": {"type": "object", "required": ["from"], "properties": {"from": {"type": "string"}}}},
    }
    leg = pa.struct([pa.field("from", pa.string(), nullable=False)])
    assert schema_of_json_schema(document) == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("price", pa.float64()),
            pa.field("name", pa.string()),
            pa.field("ok", pa.bool_()),
            pa.field("born", pa.date32()),
            pa.field("seen", TIMESTAMP),
            pa.field("maybe", pa.int64()),
            pa.field("legs", list_of(leg, nullable=False), nullable=False),
        ]
    )


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}


@pytest.mark.parametrize(
    ("a", "says"),
    [
        ({}, "#/properties/a/type is None"),
        (True, "#/properties/a is True"),
        ({"type": "int"}, "#/properties/a/type is 'int'"),
        ({"type": "null"}, "#/properties/a/type is 'null'"),
        ({"type": ["integer", "string"]}, "it must be one type"),
        ({"type": "object"}, "#/properties/a/properties must name"),
        ({"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["c"]}, "#/properties/a/required"),
        ({"type": "object", "properties": {"b": {"type": "x"}}}, "#/properties/a/properties/b/type"),
        ({"type": "object", "properties": {"b": {"type": "integer"}}, "additionalProperties": {}}, "a/additionalProp"),
        ({"type": "array"}, "#/properties/a/items"),
        ({"type": "array", "items": [{"type": "integer"}]}, "#/properties/a/items"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "#/properties/a/anyOf must be"),
        ({"oneOf": [{"type": "null"}, {"type": "null"}]}, "#/properties/a/oneOf must be"),
        ({"allOf": [{"type": "integer"}]}, "#/properties/a/allOf is not supported"),
        ({"type": "integer", "not": {}}, "#/properties/a/not is not supported"),
        ({"$ref": "https://example.com/a.json"}, "nothing is fetched"),
        ({"$ref": "other.json#/a"}, "nothing is fetched"),
        ({"$ref": "#/$defs/gone"}, "which does not exist"),
        ({"$ref": "#/$defs/node"}, "contains itself"),
        ({"$ref": "#"}, "contains itself"),
    ],
)
def test_json_schema_that_declares_no_one_type_is_refused_with_its_path(a: Any, says: str) -> None:
    document = {"type": "object", "properties": {"a": a}, "$defs": {"node": NODE}}
    with pytest.raises(ConfigurationError, match=says.replace("$", r"\$")):
        schema_of_json_schema(document)


@pytest.mark.parametrize(
    "document", [{"type": "integer"}, {"type": ["object", "null"], "properties": {"a": {"type": "integer"}}}]
)
def test_a_value_that_is_no_object_is_no_row(document: Any) -> None:
    with pytest.raises(ConfigurationError, match="# must be an object"):
        schema_of_json_schema(document)


def test_a_json_schema_without_end_is_refused() -> None:
    document: Any = {"type": "integer"}
    for _ in range(1_000):
        document = {"type": "array", "items": document}
    with pytest.raises(ConfigurationError, match="more than 50 nested types"):
        schema_of_json_schema({"type": "object", "properties": {"a": document}})
