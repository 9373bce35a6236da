"""The `decode:` block: its effect on the declaration, and the error for each mistake in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from platform_assets.components import yaml_check
from platform_assets.components.decode_block import decode_declaration
from platform_assets.decoding.formats import decoder_of
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec

VALUE = {"format": "json", "schema": "id BIGINT NOT NULL"}
REPAIR = {"window": "2026-01-31-14:00", "partition": 0, "offset": 17, "value": "{}"}
FILE = """type: platform_assets.components.TopicTable
attributes:
  topic: orders
  window: "0 * * * *"
  start: "2026-01-01T00:00Z"
  decode:
    value: {{format: {format}}}
    key: {{format: string}}
"""


def test_what_it_declares() -> None:
    block = {"value": VALUE, "key": {"format": "string"}, "dead_letters": {"warn": 0.001, "fail": 1}, "revision": 3}
    assert decode_declaration(block) == DecodeDeclaration(
        FormatSpec("json", {"schema": "id BIGINT NOT NULL"}), FormatSpec("string"), 0.001, 1.0, revision=3
    )
    assert decode_declaration({"value": VALUE}).digest != decode_declaration(block).digest


def test_thresholds_of_checks_have_nothing_decoded_again() -> None:
    strict = {"value": VALUE, "dead_letters": {"fail": 0.01}}
    assert decode_declaration({"value": VALUE}).digest == decode_declaration(strict).digest


def test_repair_is_of_its_window_alone() -> None:
    plain, repaired = decode_declaration({"value": VALUE}), decode_declaration({"value": VALUE, "repairs": [REPAIR]})
    assert repaired.digest == plain.digest
    assert repaired.digest_of("2026-01-31-15:00") == plain.digest
    assert repaired.digest_of("2026-01-31-14:00") != plain.digest
    assert [r.value for r in repaired.repairs_of("2026-01-31-14:00")] == ["{}"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"value": None}, "value: missing: add the format of values, such as `value: {format: string}`"),
        ({"value": "json"}, "value: must be a mapping with a format, such as {format: string}, not 'json'"),
        ({"value": {"format": "xml"}}, "value: 'xml' is not a format; use one of:"),
        ({"value": {"format": "json"}}, "value: "),
        ({"value": {"format": "json", "schema": "id MAP<INT, INT>"}}, "value: "),
        ({"value": {"format": "json", "schema": "window STRING"}}, "window"),
        ({"key": {"format": "string", "colour": 1}}, "key: format 'string' has no option 'colour'"),
        ({"keys": {"format": "string"}}, "decode: unknown field 'keys': did you mean 'key'?"),
        ({"dead_letters": {"fail": 2}}, "dead_letters: fail must be a share from 0 to 1, not 2"),
        ({"dead_letters": {"warn": 0.5, "fail": 0.1}}, "0 ≤ warn ≤ fail ≤ 1"),
        ({"dead_letters": {"Fail": 0.1}}, "dead_letters: unknown field 'Fail': did you mean 'fail'?"),
        ({"dead_letters": 5}, "dead_letters: must be a mapping"),
        ({"revision": True}, "revision: must be a whole number of 1 or more, not True"),
        ({"repairs": 5}, "repairs: must be a list of records, not 5"),
        ({"repairs": [{"offset": 1}]}, "repairs: each entry must have the form {window: "),
        ({"repairs": [{**REPAIR, "window": "today"}]}, "repairs: 'today' is not a window key"),
        (
            {"repairs": [{**REPAIR, "value": 1}]},
            "repairs: partition and offset must be whole numbers, and the value a quoted string",
        ),
        ({"repairs": [REPAIR, REPAIR]}, "repairs: window 2026-01-31-14:00 partition 0 offset 17 is given twice"),
        (
            {"replaces": {"columns": "0" * 12}},
            "replaces: a mapping must have the form {columns: …, lost_rows: accepted}",
        ),
        ({"replaces": {"columns": 7, "lost_rows": "accepted"}}, "replaces: must be the text shown in the error"),
        ({"replaces": 7}, "replaces: must be the text shown in the error about the changed columns"),
    ],
)
def test_mistakes(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        decode_declaration({"value": VALUE, **changes})


@pytest.mark.parametrize(
    ("column", "connector", "text"),
    [
        ("DATE", {}, "days or, with `isostring`, as text ending with Z"),
        ("DATE", {"time.precision.mode": "isostring"}, "as INT or, with `time.precision.mode: isostring`, STRING"),
        ("DECIMAL(12, 2)", {}, "as STRING, and set `decimal.handling.mode` to `string`"),
        ("DECIMAL(12, 2)", {"decimal.handling.mode": "string"}, "a decimal as text or bytes"),
        ("BINARY", {"binary.handling.mode": "hex"}, "writes bytes as hex in the record's key"),
        ("BINARY", {"binary.handling.mode": "base64-url-safe"}, "as STRING; or let the connector write keys in Avro"),
    ],
)
def test_a_key_that_json_cannot_read_as_the_connector_writes_it_is_refused(
    column: str, connector: dict[str, str], text: str
) -> None:
    schema = f"id INT NOT NULL, k {column} NOT NULL"
    value = {"format": "debezium", "schema": schema, "connector": connector}
    with pytest.raises(ConfigurationError, match=f"key: column 'k' is .*{re.escape(text)}"):
        decode_declaration({"value": value, "key": {"format": "json", "schema": schema}})
    decode_declaration({"value": value, "key": {"format": "json", "schema": "id INT NOT NULL"}})
    decode_declaration({"value": {"format": "json", "schema": schema}, "key": {"format": "json", "schema": schema}})


def test_a_key_that_json_reads_as_the_connector_writes_it_is_declared() -> None:
    key = {"format": "json", "schema": "k BINARY, n DECIMAL(9, 2), s STRING"}
    value = {**key, "format": "debezium"}
    modes = {"decimal.handling.mode": "double", "binary.handling.mode": "base64"}
    decode_declaration({"value": {**value, "connector": modes}, "key": key})
    decode_declaration({"value": {**value, "registry": True}, "key": key})


def test_mistake_is_named_with_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "orders" / "defs.yaml"
    file.parent.mkdir()
    file.write_text(FILE.format(format="strin"))
    (mistake,) = yaml_check.judge(tmp_path).mistakes
    assert str(mistake).startswith(f"{file}:6: decode: value: 'strin' is not a format; use one of: ")
    file.write_text(FILE.format(format="string"))
    judged = yaml_check.judge(tmp_path)
    assert judged.mistakes == ()
    (declared,) = judged.declared
    assert declared.declaration.decode == DecodeDeclaration(FormatSpec("string"), FormatSpec("string"))


AVRO = {"format": "avro", "schema": {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}}
BYTES = {"window": "2026-01-31-14:00", "partition": 0, "offset": 17, "base64": "Dg=="}


@pytest.mark.parametrize(
    "value",
    [
        AVRO,
        {**AVRO, "registry": True},
        {"format": "json", "schema": "id BIGINT", "registry": True},
    ],
)
def test_a_repair_of_a_binary_value_is_given_in_base64(value: dict[str, Any]) -> None:
    text = {**BYTES, "value": '{"id": 7}'}
    del text["base64"]
    with pytest.raises(ConfigurationError, match=r"are bytes.*: give the bytes as `base64: …`, as") as refused:
        decode_declaration({"value": value, "repairs": [text]})
    assert "window 2026-01-31-14:00 partition 0 offset 17 gives `value`, which is text" in str(refused.value)
    made = decode_declaration({"value": value, "repairs": [BYTES]})
    assert [r.content for r in made.repairs] == [b"\x0e"]
    assert made.digest_of("2026-01-31-14:00") != decode_declaration({"value": value}).digest


def test_a_repair_in_base64_is_decoded_as_those_bytes() -> None:
    (repair,) = decode_declaration({"value": AVRO, "repairs": [BYTES]}).repairs
    found = decoder_of(FormatSpec("avro", {"schema": AVRO["schema"]})).decode(pa.array([repair.content], pa.binary()))
    assert found.columns.to_pylist() == [{"id": 7}]


@pytest.mark.parametrize(
    ("given", "says"), [("Dg", "is not valid base64"), ("§", "is not valid base64"), (7, "the value a quoted string")]
)
def test_what_is_no_base64_is_refused(given: object, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        decode_declaration({"value": AVRO, "repairs": [{**BYTES, "base64": given}]})


def test_a_text_repair_has_the_digest_that_it_always_had() -> None:
    repaired = decode_declaration({"value": VALUE, "repairs": [REPAIR]})
    assert repaired.repairs[0].to_fields() == [0, 17, "{}"]
