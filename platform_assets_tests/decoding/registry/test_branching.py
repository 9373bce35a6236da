"""JSON Schemas whose references expand to more rules than a validator can apply."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from platform_assets.decoding.avro.types import BadSchema
from platform_assets.decoding.formats import decoder_of
from platform_assets.decoding.registry.readers import AdmittedDecoder
from platform_assets.model.decoding import FormatSpec


def admitted(schema: Any, **references: Any) -> AdmittedDecoder:
    texts = {name: json.dumps(each) for name, each in references.items()}
    return AdmittedDecoder(decoder_of(FormatSpec("json", {"schema": "a BIGINT"})), json.dumps(schema), texts)


def doubling(keyword: str, levels: int = 40) -> dict[str, Any]:
    """Return a schema in which each definition refers to the next definition twice."""
    found: dict[str, Any] = {f"d{n}": {keyword: [{"$ref": f"#/definitions/d{n + 1}"}] * 2} for n in range(levels)}
    return {"definitions": {**found, f"d{levels}": {"type": "string"}}, "$ref": "#/definitions/d0"}


DOUBLING: dict[str, Any] = {
    "anyOf": doubling("anyOf"),
    "allOf": doubling("allOf"),
    "under an id": {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "http://x/y", **doubling("oneOf")},
    "anchors": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {f"d{n}": {"$anchor": f"d{n}", "anyOf": [{"$ref": f"#d{n + 1}"}] * 2} for n in range(40)}
        | {"d40": {"$anchor": "d40", "type": "string"}},
        "$ref": "#d0",
    },
    "fields": {
        "definitions": {
            f"d{n}": {"properties": {"a": {"anyOf": [{"$ref": f"#/definitions/d{n + 1}"}] * 2}}} for n in range(40)
        }
        | {"d40": {}},
        "$ref": "#/definitions/d0",
    },
}  # fmt: skip


@pytest.mark.parametrize("schema", DOUBLING.values(), ids=DOUBLING)
def test_a_schema_that_doubles_with_each_reference_is_refused_before_a_value_is_judged(schema: Any) -> None:
    with pytest.raises(BadSchema, match="make it apply more than 10,000 rules to one part of a value"):
        _ = admitted(schema).validator


def test_doubling_in_another_document_is_refused_too() -> None:
    with pytest.raises(BadSchema, match="more than 10,000 rules"):
        _ = admitted({"$ref": "other"}, other=doubling("anyOf")).validator


def test_a_large_schema_without_branches_is_used() -> None:
    fields = {f"f{n}": {"$ref": "#/definitions/text"} for n in range(20_000)}
    kinds = [{"properties": {"a": {"const": n}, **{f"f{m}": {"type": "string"} for m in range(50)}}} for n in range(50)]
    schema = {"definitions": {"text": {"type": "string"}}, "properties": fields, "anyOf": kinds}
    of = admitted(schema)
    found = of.decode(pa.array([b'{"a":1,"f1":"x"}', b'{"a":1,"f1":2}'], pa.binary()))
    assert [letter["row"] for letter in found.dead.to_pylist()] == [1]


def test_a_schema_that_contains_itself_is_used() -> None:
    of = admitted({"properties": {"a": {"type": "integer"}, "left": {"$ref": "#"}, "right": {"$ref": "#"}}})
    found = of.decode(
        pa.array([b'{"a":1,"left":{"right":{"a":2}}}', b'{"a":1,"left":{"right":{"a":"x"}}}'], pa.binary())
    )
    assert [letter["row"] for letter in found.dead.to_pylist()] == [1]
