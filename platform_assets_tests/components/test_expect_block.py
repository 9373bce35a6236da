"""The `expect:` list: its effect on the declaration, and the error for each mistake in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from platform_assets.components import yaml_check
from platform_assets.components.decode_block import decode_declaration
from platform_assets.errors import ConfigurationError
from platform_assets.model.expectations import Expectation

VALUE = {
    "format": "json",
    "schema": "month INT, origin STRING, day DATE, price DECIMAL(9, 2), tags ARRAY<STRING>, `a-month` INT",
}
BLOCK = """
- {column: month, not_null: true, severity: error}
- {column: month, range: {min: 1, max: 12}}
- {column: month, range: {max: 6}, severity: error, name: first_half}
- {column: origin, in: [EWR, JFK, LGA]}
- {column: origin, pattern: "[A-Z]{3}"}
- {column: day, range: {min: 2013-01-01}}
- {column: price, range: {min: 0.01}}
- {column: origin, unique: true}
- {unique: [origin, month]}
- {unique: key}
- {column: a-month, not_null: true}
"""
FILE = """type: platform_assets.components.TopicTable
attributes:
  topic: orders
  window: "0 * * * *"
  start: "2026-01-01T00:00Z"
  decode:
    value: {format: string}
    expect:
      - {column: valeu, not_null: true}
"""


def declared(*entries: Any, **more: Any) -> tuple[Expectation, ...]:
    return decode_declaration({"value": VALUE, "expect": list(entries), **more}).expect


def test_what_it_declares() -> None:
    assert declared(*yaml.safe_load(BLOCK), key={"format": "string"}) == (
        Expectation("month_not_null", "not_null", ("month",), "error"),
        Expectation("month_range", "range", ("month",), least=1, most=12),
        Expectation("first_half", "range", ("month",), "error", most=6),
        Expectation("origin_in", "in", ("origin",), values=("EWR", "JFK", "LGA")),
        Expectation("origin_pattern", "pattern", ("origin",), pattern="[A-Z]{3}"),
        Expectation("day_range", "range", ("day",), least="2013-01-01"),
        Expectation("price_range", "range", ("price",), least=0.01),
        Expectation("origin_unique", "unique", ("origin",)),
        Expectation("origin_month_unique", "unique", ("origin", "month")),
        Expectation("key_unique", "unique", ("key",)),
        Expectation("a_month_not_null", "not_null", ("a-month",)),
    )


def test_expectations_have_nothing_decoded_again() -> None:
    plain, judged = ({"value": VALUE}, {"value": VALUE, "expect": [{"column": "month", "not_null": True}]})
    assert decode_declaration(plain).digest == decode_declaration(judged).digest
    assert decode_declaration(plain) != decode_declaration(judged)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("month not null", "entry 2: must be a mapping such as {column: month, range: {min: 1, max: 12}, severity: error}, not"),
        ({"colum": "month"}, "entry 2: unknown field 'colum': did you mean 'column'?"),
        ({"column": "month"}, "entry 2: must have exactly one of not_null, in, range, pattern, unique, such as"),
        ({"column": "month", "in": [1], "not_null": True}, "it has not_null and in"),
        ({"not_null": True}, "entry 2: column: missing: name the column to which 'not_null' applies"),
        ({"column": "mont", "not_null": True}, "entry 2: there is no column 'mont': did you mean 'month'?"),
        ({"unique": ["key"]}, "entry 2: there is no column 'key'"),
        ({"unique": ["key"]}, "for the Kafka key, declare `key:` under `decode:` first"),
        ({"column": "window", "not_null": True}, "entry 2: there is no column 'window': use one of month, origin,"),
        ({"column": "month", "not_null": False}, "entry 2: not_null: must be true; got False"),
        ({"column": "month", "unique": "origin"}, "entry 2: unique: must be true, or a list of columns if there "
         "is no `column` field; got 'origin'"),
        ({"unique": []}, "entry 2: unique: must list columns, such as [carrier, flight], or be `key` for the Kafka key, not []"),
        ({"unique": True}, "entry 2: unique: must list columns"),
        ({"unique": ["month", "month"]}, "entry 2: unique: ['month', 'month'] lists a column twice: keep one of them"),
        ({"unique": "tags"}, "entry 2: unique: column 'tags' is ARRAY<STRING>, but keys with arrays cannot be compared"),
        ({"column": "month", "in": 5}, "entry 2: in: must be a list of values such as [EWR, JFK, LGA], not 5"),
        ({"column": "month", "in": []}, "entry 2: in: must be a list of values"),
        ({"column": "month", "in": [1, 2, 1]}, "entry 2: in: 1 is given twice: keep one of them"),
        ({"column": "month", "in": [None]}, "entry 2: in: None is not a single value: give text, a number, a date"),
        ({"column": "month", "in": ["1"]}, "entry 2: '1' is not a valid value, because column 'month' is INT: give a whole number"),
        ({"column": "month", "range": {}}, "entry 2: range: must be a mapping with min, max or both, which are inclusive"),
        ({"column": "month", "range": {"least": 1}}, "entry 2: range: must be a mapping with min, max or both"),
        ({"column": "month", "range": {"min": 2, "max": 1}}, "entry 2: range: min 2 of column 'month' is above its max 1"),
        ({"column": "origin", "range": {"min": "A"}}, "entry 2: range: column 'origin' is STRING, but 'range' needs numbers"),
        ({"column": "origin", "pattern": 7}, "entry 2: pattern: must be a string with a regular expression, not 7"),
        ({"column": "origin", "pattern": "[A-Z"}, "entry 2: pattern: '[A-Z' of column 'origin' is not a valid RE2 regular expression"),
        ({"column": "month", "not_null": True, "severity": "fatal"}, "entry 2: severity: must be one of warn, error, not 'fatal'"),
        ({"column": "month", "not_null": True, "name": "a b"}, "entry 2: name: must consist of letters, digits and "
        "underscores only, not"),
        ({"column": "day", "not_null": True}, "entry 2: this expectation is declared twice (day is not null): keep one of them"),
        ({"column": "month", "not_null": True, "name": "day_not_null"}, "entry 2: another check is already named 'day_not_null': "
        "give"),
        ({"column": "month", "in": [1], "name": "share_of_dead_letters"}, "another check is already named 'share_of_dead_letters'"),
    ],
)  # fmt: skip
def test_mistakes(entry: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(text)) as refused:
        declared({"column": "day", "not_null": True}, entry)
    assert str(refused.value).startswith("expect: entry 2: ")


def test_it_is_a_list() -> None:
    with pytest.raises(
        ConfigurationError, match=r"expect: must be a list of expectations such as .*, not \{'month': 1\}"
    ):
        decode_declaration({"value": VALUE, "expect": {"month": 1}})


def test_mistake_is_named_with_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "orders" / "defs.yaml"
    file.parent.mkdir()
    file.write_text(FILE)
    (mistake,) = yaml_check.judge(tmp_path).mistakes
    text = "decode: expect: entry 1: there is no column 'valeu': did you mean 'value'?"
    assert str(mistake) == f"{file}:6: {text}"
