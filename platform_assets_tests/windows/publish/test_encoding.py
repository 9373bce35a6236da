"""Values of rows as JSON, held against Python's own encoder and decimal and time types."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from platform_assets.checks.published_values import disagreements
from platform_assets.errors import ConfigurationError, UnpublishableRowError, UnpublishableTombstoneError
from platform_assets.kernels.published import MOST, NUMBER, TIME, join_columns
from platform_assets.model.publishing import Part, PublishDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.windows.publish import encoding
from platform_assets.windows.publish.encoding import Encoder, fitting, partitions
from platform_assets_tests.support.typed_rows import typed_rows

TABLE = TableRef("decoded", "orders")
WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
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


@pytest.mark.parametrize("decimals", ["string", "number"])
def test_a_judge_without_the_encoder_agrees(decimals: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    found = pa.table(typed_rows(random.Random(seed), 300))
    for rows in (ROWS, found.select([n for n in found.schema.names if not n.startswith("kafka_")])):
        names = tuple(rows.schema.names)
        each = encoder(rows, value=Part("json", names), key=Part("json", names[:2]), decimals=decimals,
                       headers=tuple((name, name) for name in names), non_finite="null")  # fmt: skip
        placed = with_places(rows)
        encoded = each.encode(rows)
        assert encoded.headers is not None
        records = dict(enumerate(zip(encoded.keys, encoded.values, encoded.headers, strict=True)))
        sampled: Any = {(0, n): record for n, record in records.items()}
        assert list(disagreements(each.declaration, placed, sampled, frozenset())) == []


def test_times_after_the_year_9999_are_judged_where_they_are_published_and_where_not() -> None:
    far = pa.array([253_402_300_800_000_000, 0], pa.timestamp("us", "UTC"))
    rows = pa.table({"n": pa.array([1, 2], pa.int64()), "at": far, "kafka_timestamp": far})
    each = encoder(rows, value=Part("json", ("n", "at")), headers=(("at", "at"),), non_finite="null")
    encoded = each.encode(rows)
    assert encoded.values == [b'{"n":1,"at":null}', b'{"n":2,"at":"1970-01-01T00:00:00.000000Z"}']
    assert encoded.headers is not None
    records: Any = {(0, n): (None, encoded.values[n], encoded.headers[n]) for n in range(2)}
    assert list(disagreements(each.declaration, with_places(rows), records, frozenset())) == []
    wrong: Any = records | {(0, 0): records[0, 1], (0, 1): (None, b'{"n":2,"at":null}', encoded.headers[1])}
    assert len(list(disagreements(each.declaration, with_places(rows), wrong, frozenset()))) == 3


def with_places(rows: pa.Table) -> pa.Table:
    numbers = range(rows.num_rows)
    placed = rows.append_column("kafka_partition", pa.array([0] * rows.num_rows, pa.int32()))
    return placed.append_column("kafka_offset", pa.array(numbers, pa.int64()))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("9223372036854775807", "9223372036854775806"),
        ("9223372036854775807", "9223372036854775807.0"),
        ('"0.0000000001"', '"1E-10"'),
        ('"0.0000000001"', "0.0000000001"),
        ("05.000006Z", "05.000007Z"),
        ("05.000006Z", "05.000006"),
        ("0001-01-01T", "0001-01-02T"),
        ("line\\n", "line"),
        ('"/wA="', '"/wE="'),
        ('"raw":""', '"raw":null'),
        ('"x":0.1', '"x":0.10000000000000002'),
        ('"x":-0', '"x":0'),
        ('"m":[1,null]', '"m":[1]'),
        ('"deep":null', '"deep":{}'),
        ('{"n"', '{"m":1,"n"'),
        ('{"n":null', '{"n":1,"n":null'),
        ("}", "}}"),
    ],
)
def test_a_judge_without_the_encoder_sees_each_defect(old: str, new: str) -> None:
    each = encoder(ROWS)
    values = each.encode(ROWS).values
    wrong = [None if v is None else v.decode().replace(old, new, 1).encode() for v in values]
    assert wrong != values
    records: Any = {(0, n): (None, value, []) for n, value in enumerate(wrong)}
    found = list(disagreements(each.declaration, with_places(ROWS), records, frozenset()))
    assert len(found) == sum(a != b for a, b in zip(wrong, values, strict=True))


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


def test_times_of_any_year_are_iso_8601_in_utc(rng: random.Random) -> None:
    limits = (-62_135_596_800_000_000, -1, 0, 253_402_300_799_999_999)
    instants = [*limits, *(rng.randint(limits[0], limits[-1]) for _ in range(200)), None]
    rows = pa.table({"at": pa.array(instants, pa.timestamp("us", "UTC"))})
    times = [
        "null" if t is None else f'"{t.replace(tzinfo=None).isoformat(timespec="microseconds")}Z"'
        for t in rows["at"].to_pylist()
    ]
    assert encoder(rows).encode(rows).values == [f'{{"at":{text}}}'.encode() for text in times]


def test_rows_are_encoded_in_parts_as_they_are_in_one(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [rng.choice([None, *range(1000)]) for _ in range(50)]
    # A tombstone without its key cannot be published.
    dies = [number is not None and rng.random() < 0.2 for number in numbers]
    rows = with_places(pa.table({"n": pa.array(numbers, pa.int64()), "tombstone": dies}))
    each = encoder(rows, key=Part("text", ("n",)), headers=(("number", "n"),), tombstones=True)
    monkeypatch.setattr(encoding, "_IN_CACHE", 50)
    whole = each.encode(rows)
    assert [key is None for key in whole.keys] == [number is None for number in numbers]
    for size in (1, 7, 49):
        monkeypatch.setattr(encoding, "_IN_CACHE", size)
        found = each.encode(rows)
        assert (found.keys, found.values, found.headers) == (whole.keys, whole.values, whole.headers)
        assert found.sizes.tolist() == whole.sizes.tolist()
        assert partitions(found.key_column, rows, 3).tolist() == partitions(whole.key_column, rows, 3).tolist()


def test_whole_numbers_of_each_width_keep_all_digits() -> None:
    limits = {kind: range(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1)) for kind in WHOLE}
    edges = [0, *(sign * (10**n + near) for n in range(19) for near in (-1, 0, 1) for sign in (-1, 1))]
    given = {kind: [inside[0], inside[-1], None, *(n for n in edges if n in inside)] for kind, inside in limits.items()}
    longest = max(map(len, given.values()))
    columns = [pa.array(values + [None] * (longest - len(values)), kind) for kind, values in given.items()]
    rows = pa.table(columns, names=[str(kind) for kind in given])
    for part in (rows, rows.slice(2, 5)):
        expected = [json.dumps(row, separators=(",", ":")).encode() for row in part.to_pylist()]
        assert encoder(rows).encode(part).values == expected


@pytest.mark.parametrize("form", range(len(MOST)))
def test_the_longest_value_of_each_form_fits_into_its_room(form: int) -> None:
    longest = {NUMBER: -(2**63), TIME: 253_402_300_799_999_999}.get(form, 0)
    for valid in (0, 1):
        into, ends = np.full(64, 0xAA, np.uint8), np.zeros(2, np.int64)
        none, bounds = np.zeros(1, np.uint8), np.zeros(2, np.int64)
        join_columns(np.array([form]), np.array([valid], np.uint8), np.array([longest]), none, bounds, 1, none,
                     np.zeros(3, np.int64), into, ends)  # fmt: skip
        assert ends[1] <= MOST[form]
        assert (into[MOST[form] :] == 0xAA).all()


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_each_character_that_json_escapes_is_found_in_any_slice_and_chunk(kind: pa.DataType) -> None:
    needing = [*map(chr, range(0x20)), '"', "\\", "\x7f"]
    texts = [text for each in needing for text in ("plain", f"\U0001f600{each}z", None, "")]
    column = pa.chunked_array([pa.array(texts[:3], kind), pa.array(texts[3:], kind), pa.array([], kind)])
    for start in range(len(texts)):
        rows = pa.table({"text": column}).slice(start, 3)
        found = encoder(rows).encode(rows)
        assert [json.loads(value or b"") for value in found.values] == rows.to_pylist()
        assert found.sizes.tolist() == [len(value or b"") for value in found.values]


@pytest.mark.parametrize(("room", "number"), [(0, 1), (3, 1), (4, 2), (7, 2), (8, 3), (100, 3)])
def test_a_transaction_ends_with_the_record_that_fills_it(room: int, number: int) -> None:
    assert fitting(np.array([3, 4, 1]), room) == number


def test_decimals_may_be_numbers_and_keys_may_be_text() -> None:
    found = encoder(ROWS, decimals="number", key=Part("text", ("price",)), value=Part("json", ("price",))).encode(ROWS)
    assert found.values == [b'{"price":0.0000000001}', b'{"price":-12.5000000000}', b'{"price":null}']
    assert found.keys == [b"0.0000000001", b"-12.5000000000", None]


def test_numbers_that_json_lacks_are_refused_or_null() -> None:
    rows = pa.table({"x": pa.array([1.5, float("nan"), float("-inf")])})
    with pytest.raises(UnpublishableRowError, match="column 'x' of decoded/orders has a number that is not finite"):
        encoder(rows).encode(rows)
    assert encoder(rows, non_finite="null").encode(rows).values == [b'{"x":1.5}', b'{"x":null}', b'{"x":null}']


@pytest.mark.parametrize("kind", ["column of the key", "key of a single value"])
def test_a_tombstone_keeps_the_key_of_its_record(kind: str) -> None:
    whole = kind == "column of the key"
    rows = tombstones(pa.array([{"id": 1}, {"id": 2}, None]) if whole else pa.array([1, 2, None]))
    for part, expected in (
        (Part("text", ("id",)), [b"1", b"2", None]),
        (Part("json", ("id",)), [b'{"id":1}', b'{"id":2}', b'{"id":null}']),
    ):
        each = encoder(rows, key=part, value=Part("json", ("id", "n")), tombstones=True)
        encoded = each.encode(rows.select([*each.columns]))
        assert encoded.keys == expected
        assert encoded.values == [b'{"id":1,"n":5}', None, None]
        records: Any = {(0, n): (encoded.keys[n], encoded.values[n], []) for n in range(3)}
        assert list(disagreements(each.declaration, with_places(rows), records, frozenset())) == []
        lost: Any = records | {(0, 1): (None, None, [])}
        assert len(list(disagreements(each.declaration, with_places(rows), lost, frozenset()))) == 1


def test_a_tombstone_whose_key_lacks_the_column_is_refused() -> None:
    for keys in (pa.array([{"other": 1}] * 3), pa.array([{"id": "1"}] * 3), pa.array(["1"] * 3), None):
        rows = tombstones(keys)
        with pytest.raises(UnpublishableTombstoneError, match=r"no column 'id' of the same type.*`decode: key`"):
            encoder(rows, key=Part("text", ("id",))).encode(rows)
        assert encoder(rows, key=Part("text", ("n",)), value=Part("json", ("id",))).encode(rows.slice(0, 1)).keys == [
            b"5"
        ]
    rows = tombstones(pa.array(["a", "b", "c"]))
    assert encoder(rows, key=Part("text", ("key",))).encode(rows).keys == [b"a", b"b", b"c"]


def tombstones(keys: pa.Array | None) -> pa.Table:
    """Return a row with a value and two without one; the last of them has no key."""
    rows = pa.table(
        {
            "id": pa.array([1, None, None], pa.int64()),
            "n": pa.array([5, None, None], pa.int64()),
            "tombstone": [False, True, True],
        }
    )
    return rows if keys is None else rows.append_column("key", keys)


def test_times_that_readers_of_json_lack_are_refused_or_null() -> None:
    edges = [-62_135_596_800_000_000, 253_402_300_799_999_999, None]
    times = pa.array([*edges, -62_135_596_800_000_001, 253_402_300_800_000_000, 2**63 - 1], pa.timestamp("us", "UTC"))
    rows = pa.table({"at": times})
    found = encoder(rows, value=Part("json", ("at",)), non_finite="null").encode(rows).values
    assert found == [
        b'{"at":"0001-01-01T00:00:00.000000Z"}',
        b'{"at":"9999-12-31T23:59:59.999999Z"}',
        *[b'{"at":null}'] * 4,
    ]
    each = encoder(rows, value=Part("json", ("at",)))
    each.check(rows.slice(0, 3))
    for fails in (each.check, each.encode):
        with pytest.raises(UnpublishableRowError, match="column 'at' of decoded/orders has a time outside the years"):
            fails(rows)


INSTANT = pa.timestamp("us", "UTC")
FAR_TIME, FAR_DAYS = 253_402_300_800_000_000, (2_932_897, -719_163)


def nested(kind: pa.DataType, near: int, far: int) -> list[pa.Array]:
    """Return columns of two rows with values in structs, lists and maps, of which only the second row has the far one."""
    found = []
    for deep, make in (
        (lambda each: pa.struct([("m", each)]), lambda value: {"m": value}),
        (pa.list_, lambda value: [value]),
        (pa.large_list, lambda value: [value]),
        (lambda each: pa.map_(pa.string(), each), lambda value: [("m", value)]),
        (lambda each: pa.list_(pa.struct([("m", each)])), lambda value: [{"m": value}]),
    ):
        number = pa.int32() if kind == pa.date32() else pa.int64()
        found.append(pa.array([make(near), make(far)], deep(number)).cast(deep(kind)))
    return found


@pytest.mark.parametrize(
    ("kind", "far", "text", "what"),
    [(INSTANT, FAR_TIME, '"1970-01-01T00:00:00.000000Z"', "time")]
    + [(pa.date32(), far, '"1970-01-01"', "date") for far in FAR_DAYS],
)
def test_nested_times_and_dates_do_not_depend_on_their_neighbours(
    kind: pa.DataType, far: int, text: str, what: str
) -> None:
    for column in nested(kind, 0, far):
        rows = pa.table({"c": column})
        each = encoder(rows, value=Part("json", ("c",)))
        alone = each.encode(rows.slice(0, 1)).values
        each.check(rows.slice(0, 1))
        for fails in (each.check, each.encode):
            with pytest.raises(
                UnpublishableRowError, match=rf"column 'c.*' of decoded/orders has a {what} outside the"
            ):
                fails(rows)
        each = encoder(rows, value=Part("json", ("c",)), non_finite="null")
        each.check(rows)
        found = each.encode(rows).values
        assert found == [*alone, (alone[0] or b"").replace(text.encode(), b"null")]
        assert text.encode() in (found[0] or b"")
        records: Any = {(0, n): (None, value, []) for n, value in enumerate(found)}
        assert list(disagreements(each.declaration, with_places(rows), records, frozenset())) == []
        bare: Any = {(0, 0): (None, (found[0] or b"").replace(text.encode(), b"0"), [])}
        bare[0, 1] = (None, (found[1] or b"").replace(b"null", b"%d" % far), [])
        assert len(list(disagreements(each.declaration, with_places(rows), bare, frozenset()))) == 2


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.struct([("m", pa.float64())]), {"m": float("nan")}),
        (pa.list_(pa.float64()), [1.5, float("inf")]),
        (pa.map_(pa.string(), pa.float64()), [("m", float("nan"))]),
    ],
)
def test_numbers_that_json_lacks_are_found_at_any_depth_before_rows_are_sent(kind: pa.DataType, value: Any) -> None:
    rows = pa.table({"c": pa.array([None, value], kind)})
    encoder(rows).check(rows.slice(0, 1))
    encoder(rows, non_finite="null").check(rows)
    with pytest.raises(UnpublishableRowError, match=r"column 'c.*' of decoded/orders has a number that is not finite"):
        encoder(rows).check(rows)


def test_dates_that_readers_lack_are_refused_or_null_and_earlier_ones_are_judged() -> None:
    days = [-719_162, 2_932_896, None, *FAR_DAYS]
    rows = pa.table({"day": pa.array(days, pa.int32()).cast(pa.date32())})
    given: Any = {"value": Part("json", ("day",)), "headers": (("day", "day"),)}
    nulls = encoder(rows, **given, non_finite="null")
    found = nulls.encode(rows)
    near = ["0001-01-01", "9999-12-31"]
    assert found.values == [*(b'{"day":"%s"}' % each.encode() for each in near), *[b'{"day":null}'] * 3]
    assert replace(nulls, past=True).encode(rows).values == found.values
    each = encoder(rows, **given)
    each.check(rows.slice(0, 3))
    for fails in (each.check, each.encode):
        with pytest.raises(UnpublishableRowError, match="column 'day' of decoded/orders has a date outside the years"):
            fails(rows)
    # Earlier versions published them, so checks have to read them.
    past = replace(each, past=True).encode(rows)
    assert past.values[3:] == [b'{"day":"10000-01-01"}', b'{"day":"0000-12-31"}']
    for of, encoded in ((nulls, found), (each, past)):
        assert encoded.headers is not None
        content = zip(encoded.keys, encoded.values, encoded.headers, strict=True)
        records: Any = {(0, n): record for n, record in enumerate(content)}
        assert list(disagreements(of.declaration, with_places(rows), records, frozenset())) == []
    wrong: Any = {(0, 3): (None, b'{"day":"10000-01-02"}', [("day", b"10000-01-02")])}
    assert len(list(disagreements(each.declaration, with_places(rows), wrong, frozenset()))) == 2


def test_no_rows_are_no_records() -> None:
    for rows in (ROWS.slice(0, 0), ROWS.schema.empty_table(), pa.Table.from_batches([], ROWS.schema)):
        found = encoder(rows, key=Part("text", ("n",))).encode(rows)
        assert (found.keys, found.values, found.sizes.tolist()) == ([], [], [])
        assert partitions(found.key_column, rows, 3).tolist() == []


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
