"""A wrong value that every digest agrees on is found by a reader that shares no code with the decoder."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from platform_assets.checks.audit import Audit
from platform_assets.checks.decoded_audit import DecodedAudit
from platform_assets.checks.other_readers import difference, is_judged
from platform_assets.decoding.decoder import Decoded
from platform_assets.decoding.formats import decoder_of
from platform_assets.decoding.json.decoder import JsonDecoder
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec, Repair
from platform_assets_tests.support import near_powers
from platform_assets_tests.support.decoded_topic import DecodedTopic

DDL = (
    "a DOUBLE, b FLOAT, c BIGINT, d DECIMAL(38,10), e STRING, f BOOLEAN, g DATE, h TIMESTAMP, "
    "i STRUCT<x: INT, y: ARRAY<DOUBLE>>, j ARRAY<STRUCT<z: STRING>>, k MAP<STRING, BIGINT>"
)
JSON = FormatSpec("json", {"schema": DDL})
VALUE: dict[str, Any] = {
    "a": 0.1, "b": 0.1, "c": -5, "d": 1.5, "e": "é\n", "f": False, "g": "2024-02-29", "h": "2024-02-29T23:00:00.000001+05:30",
    "i": {"x": 1, "y": [None, -0.0]}, "j": [{"z": "q"}, None], "k": {"one": 1, "two": None},
}  # fmt: skip
CSV = FormatSpec(
    "csv", {"schema": "a DOUBLE, b FLOAT, c BIGINT, d DECIMAL(38,10), e STRING, f BOOLEAN, g DATE, h TIMESTAMP"}
)
ROW = b'0.1,0.1,-5,1.5,"a ""b"",\n",FALSE,2024-02-29,2024-02-29T23:00:00Z'
NOW = datetime(2026, 1, 3, tzinfo=UTC)


def row_of(spec: FormatSpec, value: bytes) -> tuple[pa.Schema, dict[str, Any]]:
    """What the decoder makes of one value."""
    of = decoder_of(spec)
    found = of.decode(pa.array([value], pa.binary()))
    assert found.dead.num_rows == 0
    return of.fields, found.columns.to_pylist()[0]


WRONG: dict[str, Any] = {
    "a": 0.2, "b": 0.1, "c": -6, "d": 2, "e": "e", "f": True, "g": datetime(2024, 3, 1).date(), "h": datetime(2024, 2, 29, tzinfo=UTC),
    "i": {"x": 1, "y": [None, 0.0]}, "j": [{"z": "q"}], "k": [("one", 1), ("two", 2)],
}  # fmt: skip


@pytest.mark.parametrize(("spec", "value"), [(JSON, json.dumps(VALUE).encode()), (CSV, ROW)], ids=["json", "csv"])
def test_each_column_that_differs_is_named(spec: FormatSpec, value: bytes) -> None:
    fields, row = row_of(spec, value)
    assert difference(spec, fields, value, row) is None
    for name in fields.names:
        for wrong in (WRONG[name], None):
            found = difference(spec, fields, value, {**row, name: wrong})
            assert found is not None
            assert found.startswith(f"column '{name}' holds ")
            assert found.isascii()
    assert difference(spec, fields, b"{", row) is not None


@pytest.mark.parametrize("column", ["DOUBLE", "FLOAT", "DECIMAL(38,18)", "BIGINT"])
def test_numbers_near_powers_are_judged_alike(column: str, rng: random.Random) -> None:
    spec = FormatSpec("json", {"schema": f"a {column}"})
    texts = [text for number in near_powers.wholes(rng, 50) for text in near_powers.texts(rng, number)]
    values = [b'{"a":%b}' % text.encode() for text in texts]
    of = decoder_of(spec)
    found = of.decode(pa.array(values, pa.binary()))
    dead = set(found.dead["row"].to_pylist())
    judged = [
        difference(spec, of.fields, value, row)
        for number, (value, row) in enumerate(zip(values, found.columns.to_pylist(), strict=True))
        if number not in dead
    ]
    assert len(judged) > 100
    assert set(judged) == {None}


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        (FormatSpec("json", {"schema": "a DOUBLE"}), b'{"a":1e-99999999999999999999999,"b":1e99999999999999999999999}'),
        (FormatSpec("csv", {"schema": "a STRING, b BIGINT", "quote": "", "escape": "\\", "null": "\\N"}), b"\\N,\\N"),
    ],
    ids=["an exponent beyond Decimal's", "a null with an escape"],
)
def test_what_the_other_reader_cannot_say_is_no_difference(spec: FormatSpec, value: bytes) -> None:
    of = decoder_of(spec)
    found = of.decode(pa.array([value], pa.binary()))
    assert found.dead.num_rows == 0
    assert difference(spec, of.fields, value, found.columns.to_pylist()[0]) is None


def test_declarations_that_no_other_reader_knows_are_not_judged() -> None:
    assert is_judged(JSON)
    assert not is_judged(FormatSpec("json", {**JSON.options, "columns": {"a": "b"}}))
    assert not is_judged(FormatSpec("avro", {"schema": "long"}))


def audited(topic: DecodedTopic) -> Audit:
    """A deep audit."""
    return DecodedAudit(topic.declaration, topic.ledger, lambda: topic.decoder).run(NOW, deep=True)


def test_the_deep_audit_finds_a_value_that_decoding_again_gives_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect that digests and audits once agreed on: doubles of 2^64 became 0.0."""
    decode = JsonDecoder.decode

    def wrong(self: JsonDecoder, values: pa.BinaryArray) -> Decoded:
        found = decode(self, values)
        column = [0.0 if number == 2.0**64 else number for number in found.columns["a"].to_pylist()]
        return Decoded(
            pa.RecordBatch.from_pydict({"a": pa.array(column)}, schema=found.columns.schema), found.rescued, found.dead
        )

    topic = DecodedTopic(tmp_path, "orders", DecodeDeclaration(FormatSpec("json", {"schema": "a DOUBLE"})))
    [first] = topic.load([b'{"a": 1}', b'{"a": 18446744073709551616}', b"broken", None, b'{"a": 3}'])
    repaired = DecodeDeclaration(topic.declared.value, repairs=(Repair(first, 0, 4, '{"a": 4}'),))
    for patched in (True, False):
        if patched:
            monkeypatch.setattr(JsonDecoder, "decode", wrong)
        else:
            monkeypatch.setattr(JsonDecoder, "decode", decode)
            topic = DecodedTopic(tmp_path / "again", "orders", repaired)
            topic.load([b'{"a": 1}', b'{"a": 18446744073709551616}', b"broken", None, b'{"a": 3}'])
        topic.decode()
        found = audited(topic)
        findings = [finding for check in found.checks for finding in check.findings]
        where = [(f.kind, f.window, f.partition, [(r.start, r.end) for r in f.ranges]) for f in findings]
        assert where == ([("decoded otherwise", first, 0, [(1, 2)])] if patched else [])
        assert found.exit_code == (1 if patched else 0)
        if patched:
            assert "column 'a' holds 0.0, and Python's json reads 18446744073709551616" in findings[0].detail
        else:
            assert "2 rows of them by another reader too" in found.checks[-1].headline
