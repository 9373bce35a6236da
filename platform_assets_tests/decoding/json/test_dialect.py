"""For each kind of value, both paths return the result that the page docs/json-dialect.md states."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pytest

from platform_assets.decoding.decoder import Decoded
from platform_assets.decoding.formats import decoder_of
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec
from platform_assets.services.home import CHECKOUT
from platform_assets_tests.decoding.json.page import Rule, rules

Path = Literal["exact", "fast"]


def decoded(rule: Rule, path: Path) -> Decoded:
    decoder = decoder_of(FormatSpec("json", rule.options))
    values = pa.array([rule.value], pa.binary())
    return decoder.decode(values) if path == "fast" else decoder.decode_exactly(values)


def shown(value: Any) -> Any:
    """Return a value as the page shows it."""
    if isinstance(value, bytes):
        return value.hex(" ")
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, dict):
        return {name: shown(each) for name, each in value.items()}
    return [shown(each) for each in value] if isinstance(value, list) else value


def same(found: Any, expected: Any) -> bool:
    """Return True if the values are equal and have the same type. -0.0 differs from 0.0."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[name], expected[name]) for name in expected)
    return repr(found) == repr(expected) or (isinstance(found, Decimal) and found == Decimal(str(expected)))


@pytest.mark.parametrize("path", ["exact", "fast"])
@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.text[2:60])
def test_page_is_right(rule: Rule, path: Path) -> None:
    result = decoded(rule, path)
    [dead] = result.dead.to_pylist() or [{"reason": None, "place": None}]
    assert (dead["reason"], dead["place"]) == (rule.reason, rule.place), dead
    [row], [rescued] = result.columns.to_pylist(), result.rescued.to_pylist()
    assert rescued == rule.rescued
    if rule.row is None:
        assert set(row.values()) == {None}
        return
    exactly = Decimal if "DECIMAL" in rule.text else float
    assert same(shown(row), json.loads(rule.row, parse_float=exactly)), row


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "needs the option `schema`"),
        ({"schema": "a INT", "json_schema": {}}, "needs the option `schema`"),
        (
            {"schema": "a INT", "shema": 1},
            "has no option 'shema'; its options are: columns, json_schema, max_bytes, max_depth",
        ),
        ({"schema": 1}, "schema: 1 is not text; write Spark DDL"),
        ({"schema": "a FOO"}, "'FOO' at character 3"),
        ({"json_schema": {"type": "array"}}, "#/items"),
        ({"schema": "a INT", "timestamps": "epoch"}, "'timestamps' .* is 'epoch'; it must be one of: iso8601, iso"),
        ({"schema": "a INT", "columns": ["a"]}, "'columns' .* mapping of columns to fields of the value"),
        ({"schema": "a INT", "columns": {"b": "key"}}, "columns: 'b': `schema` declares no such column; available: a"),
        (
            {"schema": "a INT, b INT", "columns": {"a": "k", "b": "k"}},
            "'columns' .* each field of the value to only one column",
        ),
        (
            {"schema": "a INT, b INT", "columns": {"a": "b"}},
            "'columns' .* no field has the name of another column of `schema`",
        ),
        (
            {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}, "columns": {"x": "key"}},
            "columns: 'key': `json_schema` has no such property; available: a",
        ),
        ({"schema": "a INT", "max_depth": 501}, "'max_depth' .* is 501; it must be a number of levels from 1 to 500"),
        ({"schema": "a INT", "max_depth": True}, "'max_depth' .* is True"),
        ({"schema": "a INT", "max_bytes": 0}, "'max_bytes' .* is 0"),
    ],
)
def test_an_option_that_is_wrong_is_refused_by_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        decoder_of(FormatSpec("json", options))


def test_a_json_schema_declares_the_same_columns_as_ddl() -> None:
    node = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    by_json_schema = decoder_of(FormatSpec("json", {"json_schema": node}))
    assert by_json_schema == decoder_of(FormatSpec("json", {"schema": "a BIGINT NOT NULL, b STRING"}))


def test_reading_a_declaration_loads_no_kernels() -> None:
    code = (
        "import sys; from platform_assets.decoding.formats import decoder_of; "
        "from platform_assets.model.decoding import FormatSpec; "
        "decoder_of(FormatSpec('json', {'schema': 'a INT'})); assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=CHECKOUT)


def test_page_has_rules_of_every_reason_that_json_gives() -> None:
    assert {rule.reason for rule in rules()} == {
        None, "malformed", "wrong_type", "out_of_range", "missing", "too_deep", "too_large",
    }  # fmt: skip
    assert len(rules()) > 150
