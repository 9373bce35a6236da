"""Each record becomes a row in exactly one of two tables. The rows are in order, and contain the results for the key
and for the value of the record."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from platform_assets.decoding.formats import decoder_of
from platform_assets.engines.decoding.rows import RowMaker, aligned, by_partition, in_order
from platform_assets.engines.decoding.work import BYTES_APART, Piece, shares_of
from platform_assets.lake import dead_letter_table, decoded_table, raw_table
from platform_assets.model.decoding import FormatSpec, Repair
from platform_assets_tests.support.raw_records import raw

JSON = FormatSpec("json", {"schema": "id BIGINT NOT NULL, tags ARRAY<STRUCT<a: INT, b: STRING>>"})


def maker(value: FormatSpec, key: FormatSpec | None = None, repairs: tuple[Repair, ...] = ()) -> RowMaker:
    decoders = decoder_of(value), None if key is None else decoder_of(key)
    layout = decoded_table.columns(None if decoders[1] is None else decoders[1].fields, decoders[0].fields)
    files = [pa.schema([f for f in s if f.name != "window"]) for s in (layout, dead_letter_table.columns())]
    return RowMaker(decoders[0], decoders[1], files[0], files[1], "digest", repairs)


def test_each_record_is_in_one_table() -> None:
    records = raw(
        (0, 1, b"k", b'{"id": 1, "tags": [{"b": "x", "a": 2}], "more": true}'),
        (0, 2, b"\xff", b'{"id": 2}'),
        (0, 3, b"\xff", b"{"),
        (0, 4, None, None),
        (0, 5, b"k", b'{"id": null}'),
    )
    rows, dead = maker(JSON, FormatSpec("string")).rows(records)
    found: list[dict[str, Any]] = rows.to_pylist()
    assert [(r["kafka_offset"], r["id"], r["key"], r["tombstone"]) for r in found] == [
        (1, 1, "k", False), (4, None, None, True)
    ]  # fmt: skip
    assert found[0]["tags"] == [{"a": 2, "b": "x"}]
    assert found[0]["rescued"] == '{"more":true}'
    letters = [(d["kafka_offset"], d["side"], d["reason"], d["place"]) for d in dead.to_pylist()]
    assert letters == [
        (2, "key", "malformed", None),
        (3, "value", "malformed", letters[1][3]),
        (5, "value", "missing", "$.id"),
    ]
    assert dead["value"].to_pylist() == [b'{"id": 2}', b"{", b'{"id": null}']
    assert set(dead["declaration"].to_pylist()) == {"digest"}
    assert [list(h) for h in dead["headers"].to_pylist()] == [[{"key": "h", "value": None}]] * 3


def test_repairs_are_decoded_instead_of_values() -> None:
    """A value that is still invalid after a repair becomes a dead letter, which contains the value as it was sent."""
    records = raw(
        (0, 1, None, b"{"), (0, 2, None, b"{"), (1, 1, None, b"{"), (1, 2, None, None), (1, 3, None, b'{"id": 9}')
    )
    repairs = (Repair("w", 0, 1, '{"id": 5}'), Repair("w", 1, 1, "[]"), Repair("w", 1, 2, '{"id": 7}'))
    rows, dead = maker(JSON, repairs=repairs).rows(records)
    assert [(r["kafka_partition"], r["kafka_offset"], r["id"]) for r in rows.to_pylist()] == [
        (0, 1, 5),
        (1, 2, 7),
        (1, 3, 9),
    ]
    assert not any(rows["tombstone"].to_pylist())
    assert [(d["kafka_offset"], d["value"]) for d in dead.to_pylist()] == [(2, b"{"), (1, b"{")]


def test_records_without_order_are_put_into_it() -> None:
    records = raw((1, 5, None, b"a"), (0, 9, None, b"b"), (1, 4, None, b"c"), (0, 2, None, b"d"))
    parts = [part["value"].to_pylist() for part in by_partition(in_order(records))]
    assert parts == [[b"d", b"b"], [b"c", b"a"]]
    assert in_order(in_order(records)).equals(in_order(records))
    assert list(by_partition(records.slice(0, 0))) == []


@pytest.mark.parametrize("start", [0, 1, 3])
def test_slices_are_aligned_too(start: int) -> None:
    values = [[{"b": "x", "a": 1}], None, [], [{"b": None, "a": None}, None]]
    kind = pa.list_(pa.field("item", pa.struct([pa.field("b", pa.string()), pa.field("a", pa.int32(), nullable=True)])))
    wanted = pa.list_(pa.field("element", pa.struct([("a", pa.int32()), ("b", pa.string())])))
    found = aligned(pa.array(values, kind).slice(start), wanted)
    found.validate(full=True)
    assert found.type == wanted
    assert found.to_pylist() == values[start:]


def test_columns_of_dead_letters_are_those_of_the_raw_table_and_why() -> None:
    names = dead_letter_table.columns().names
    assert names[: len(raw_table.COLUMN_NAMES) - 1] == list(raw_table.COLUMN_NAMES[:-1])
    assert names[-6:] == ["side", "reason", "place", "detail", "declaration", "window"]


@pytest.mark.parametrize(
    ("sizes", "most", "shares"),
    [
        ([], 4, []),
        ([1], 4, [1]),
        ([BYTES_APART // 2] * 2, 4, [2]),
        ([BYTES_APART] * 8, 4, [2, 2, 2, 2]),
        ([BYTES_APART] * 5, 2, [3, 2]),
        ([9 * BYTES_APART, 1, 1], 3, [1, 1, 1]),
        ([BYTES_APART, BYTES_APART, BYTES_APART // 4, 2 * BYTES_APART], 2, [3, 1]),
        ([BYTES_APART, BYTES_APART, BYTES_APART, BYTES_APART // 4, BYTES_APART, BYTES_APART], 2, [3, 3]),
    ],
)
def test_row_groups_are_shared_among_tasks(sizes: list[int], most: int, shares: list[int]) -> None:
    pieces = [Piece("f", n, 1, size) for n, size in enumerate(sizes)]
    found = shares_of(pieces, most)
    assert [piece for share in found for piece in share] == pieces
    assert [len(share) for share in found] == shares


def test_decoders_that_read_headers_get_those_of_their_records() -> None:
    by_registry = FormatSpec("json", {"schema": "id BIGINT", "registry": True, "id": "header"})
    made = maker(by_registry, FormatSpec("string"))
    assert made.needed[-1] == "headers"
    assert "headers" not in maker(JSON).needed
    rows, dead = made.rows(raw((0, 1, b"k", b'{"id": 1}'), (0, 2, b"k", None)))
    assert [r["tombstone"] for r in rows.to_pylist()] == [True]
    (letter,) = dead.to_pylist()
    assert letter["detail"] == "the record has no header __value_schema_id, where `id: header` looks for the schema id"
    assert letter["value"] == b'{"id": 1}'
