"""Values of rows as JSON, held against Python's own encoder and decimal and time types."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from platform_assets.errors import ConfigurationError, UnpublishableRowError
from platform_assets.model.publishing import Part, PublishDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.windows.publish.encoding import Encoder
from platform_assets_tests.support.typed_rows import typed_rows

TABLE = TableRef("decoded", "orders")
ROWS = pa.table(
    {
        "n": pa.array([2**63 - 1, -(2**63), None], pa.int64()),
        "price": pa.array([Decimal("0.0000000001"), Decimal("-12.5"), None], pa.decimal128(38, 10)),
        "at": pa.array([datetime(1, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, 3, 4, 5, 6, UTC), None], pa.timestamp("us", "UTC")),
        "day": pa.array([date(2026, 1, 2), None, date(9999, 12, 31)], pa.date32()),
        "text": pa.array(['a "quoted" \\ line\n', "\x00é\u2028\U0001f600", None]),
        "raw": pa.array([b"\xff\x00", b"", None], pa.binary()),
        "x": pa.array([0.1, 1e300, -0.0], pa.float64()),
        "deep": pa.array([{"m": [1, None]}, None, {"m": []}], pa.struct([("m", pa.list_(pa.int16()))])),
    }
)  # fmt: skip


def encoder(rows: pa.Table, **given: object) -> Encoder:
    return Encoder(PublishDeclaration("target", TABLE, **given), rows.schema)  # type: ignore[arg-type]


def test_each_value_is_exact() -> None:
    first, second, third = map(json.loads, encoder(ROWS).encode(ROWS).values)  # type: ignore[arg-type]
    assert (first["n"], second["n"], third["n"]) == (2**63 - 1, -(2**63), None)
    assert (first["price"], second["price"]) == ("0.0000000001", "-12.5000000000")
    assert (first["at"], second["at"]) == ("0001-01-01T00:00:00.000000Z", "2026-01-02T03:04:05.000006Z")
    assert (first["day"], third["day"]) == ("2026-01-02", "9999-12-31")
    assert [first["text"], second["text"], third["text"]] == ROWS["text"].to_pylist()
    assert (first["raw"], second["raw"], third["raw"]) == ("/wA=", "", None)
    assert (first["x"], second["x"], third["x"]) == (0.1, 1e300, 0.0)
    assert (first["deep"], second["deep"], third["deep"]) == ({"m": [1, None]}, None, {"m": []})


def test_decimals_may_be_numbers_and_keys_may_be_text() -> None:
    found = encoder(ROWS, decimals="number", key=Part("text", ("price",)), value=Part("json", ("price",))).encode(ROWS)
    assert found.values == [b'{"price":0.0000000001}', b'{"price":-12.5000000000}', b'{"price":null}']
    assert found.keys == [b"0.0000000001", b"-12.5000000000", None]


def test_numbers_that_json_lacks_are_refused_or_null() -> None:
    rows = pa.table({"x": pa.array([1.5, float("nan"), float("-inf")])})
    with pytest.raises(UnpublishableRowError, match="column 'x' of decoded/orders has a number that is not finite"):
        encoder(rows).encode(rows)
    assert encoder(rows, non_finite="null").encode(rows).values == [b'{"x":1.5}', b'{"x":null}', b'{"x":null}']


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(ConfigurationError, match="has no column 'nn'; its columns are: n, price"):
        encoder(ROWS, key=Part("text", ("nn",)))


def test_random_rows_of_every_type_are_json_with_the_same_values() -> None:
    rng = random.Random(7)
    rows = pa.Table.from_batches([typed_rows(rng, 200)])
    found = encoder(rows, non_finite="null").encode(rows).values
    names = [n for n in rows.schema.names if n.startswith("c")]
    for text, row in zip(found, rows.to_pylist(), strict=True):
        assert text is not None
        parsed = json.loads(text, parse_float=Decimal)
        for name in names:
            value, kind = row[name], rows.schema.field(name).type
            if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind):
                assert parsed[name] == value
            if pa.types.is_decimal(kind) and value is not None:
                assert Decimal(parsed[name]) == value
