"""Change events in Avro become the rows and dead letters that the same events become in JSON. `test_debezium_types.py`
compares rows of the real connector and converter with what PostgreSQL says."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platform_assets.decoding import debezium as by_json
from platform_assets.decoding.debezium.declaration import declared
from platform_assets.decoding.debezium.registered import EventDecoder, event_decoder
from platform_assets.decoding.decoder import Decoded
from platform_assets.decoding.formats import decoder_of
from platform_assets.decoding.registry.decoder import RegistryDecoder
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.support.avro_data import written
from platform_assets_tests.support.avro_events import (
    VARIABLE,
    Connect,
    avro_event,
    avro_schema,
    decimal_of,
    envelope,
    struct_of,
    typed,
)
from platform_assets_tests.support.change_events import SOURCE, event
from platform_assets_tests.support.decoding import UNTIMED, assert_same, decoded
from platform_assets_tests.support.fake_registry import FakeRegistry, fake_registry

UNSENT = "__debezium_unavailable_value"
LONG, TEXT = {"type": "int64", "optional": False}, typed("string")
ROW = {"id": LONG, "name": TEXT}
MICROS = typed("int64", "io.debezium.time.MicroTimestamp")
MILLIS = typed("int64", "io.debezium.time.Timestamp")


def number(value: int) -> str:
    """Return an unscaled number as the JSON converter writes it in the mode `precise`."""
    return base64.b64encode(value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)).decode()


def of(schema: str, row: Mapping[str, Connect], **options: Any) -> EventDecoder:
    """Return the decoder of events whose row has these fields."""
    spec = FormatSpec("debezium", {"schema": schema, **options})
    return event_decoder(declared(spec, by_registry=True), json.dumps(avro_schema(envelope(row))), [])


def is_fast(decoder: EventDecoder, *values: bytes | None) -> bool:
    """Return True if the fast path decides all of the values."""
    from platform_assets.decoding.avro.fast import read_block
    from platform_assets.decoding.pieces import pieces_of

    block = read_block(decoder._program, pieces_of(pa.array(values, pa.binary())), 1 << 20)
    return not block.rows.size and not decoder._converted(block.read)[2].any()


def in_both(schema: str, row: Mapping[str, Connect], *rows: Any, connector: Any = (), **options: Any) -> Decoded:
    """Decode updates with these rows in Avro and in JSON, and check that the results are the same. `connector` has the
    modes that JSON needs, and that Avro's schemas show."""
    modes = dict(connector)
    shown = {name: modes[name] for name in modes if name not in ("decimal.handling.mode", "time.precision.mode")}
    milliseconds = options.pop("milliseconds", [])
    old = dict.fromkeys(row)
    avro = decoded(
        of(schema, row, connector=shown, **options),
        [avro_event(row, "c" if at % 2 else "u", None, each) for at, each in enumerate(rows)],
    )
    values = [event("c" if at % 2 else "u", None, {**old, **each}) for at, each in enumerate(rows)]
    spec = FormatSpec("debezium", {"schema": schema, "connector": modes, "milliseconds": milliseconds, **options})
    expected = by_json.decoder(spec).decode(pa.array(values, pa.binary()))
    assert_same(avro, expected)
    return avro


def test_an_operation_becomes_the_row_after_it_and_a_delete_the_row_before_it() -> None:
    old, new = {"id": 1, "name": "ü"}, {"id": 1, "name": "b"}
    values = [
        avro_event(ROW, "c", None, new), avro_event(ROW, "r", None, new), avro_event(ROW, "u", old, new),
        avro_event(ROW, "d", old), None, avro_event(ROW, "t"),
    ]  # fmt: skip
    decoder = of("id BIGINT NOT NULL, name STRING", ROW)
    found = decoded(decoder, values)
    assert not found.dead.num_rows
    rows = found.columns.to_pylist()
    assert [(row["id"], row["name"], row["change_operation"]) for row in rows] == [
        (1, "b", "c"), (1, "b", "r"), (1, "b", "u"), (1, "ü", "d"), (None, None, None), (None, None, "t"),
    ]  # fmt: skip
    assert {name: value for name, value in rows[3].items() if name.startswith("change_")} == {
        "change_operation": "d", "change_lsn": 25, "change_sequence": '["24","25"]', "change_tx_id": 7,
        "change_timestamp": datetime(2023, 11, 14, 22, 13, 20, 123456, UTC), "change_snapshot": "false",
    }  # fmt: skip
    assert is_fast(decoder, *values)


@pytest.mark.parametrize(
    ("schema", "kind", "value", "modes"),
    [
        ("DECIMAL(12,2)", decimal_of(2), number(-123456789012), {}),
        ("DECIMAL(38,0)", decimal_of(0), number(10**38 - 1), {}),
        ("DECIMAL(38,10)", VARIABLE, {"scale": 2, "value": number(-12345)}, {}),
        ("DECIMAL(12,2)", TEXT, "1234567890.10", {"decimal.handling.mode": "string"}),
        ("DECIMAL(9,2)", typed("double"), 1.5, {"decimal.handling.mode": "double"}),
        ("DATE", typed("int32", "io.debezium.time.Date"), 19782, {}),
        ("DATE", typed("int32", "org.apache.kafka.connect.data.Date"), -1, {"time.precision.mode": "connect"}),
        ("DATE", typed("string", "io.debezium.time.IsoDate"), "2024-02-29Z", {"time.precision.mode": "isostring"}),
        ("TIMESTAMP", MICROS, 1709213823123456, {}),
        ("TIMESTAMP", typed("int64", "org.apache.kafka.connect.data.Timestamp"), -1, {"time.precision.mode": "connect"}),
        ("TIMESTAMP", typed("int64", "io.debezium.time.NanoTimestamp"), 17 * 10**17, {"time.precision.mode": "nanoseconds"}),
        ("TIMESTAMP", typed("string", "io.debezium.time.ZonedTimestamp"), "2024-02-29T13:37:03.123456Z", {}),
        ("BIGINT", typed("int64", "io.debezium.time.MicroTime"), 1, {}),
        ("SMALLINT", typed("int16"), -32768, {}),
        ("BIGINT", typed("int32"), -5, {}),
        ("INT", typed("int64"), 2**31 - 1, {}),
        ("DOUBLE", typed("int32"), 7, {}),
        ("DOUBLE", typed("float"), 0.25, {}),
        ("DECIMAL(9,2)", typed("float"), 0.25, {"decimal.handling.mode": "double"}),
        ("FLOAT", typed("float"), 0.25, {}),
        ("FLOAT", typed("double"), 0.1, {}),
        ("DOUBLE", typed("double"), "NaN", {}),
        ("FLOAT", typed("float"), "-Infinity", {}),
        ("BOOLEAN", typed("boolean"), True, {}),
        ("STRING", typed("string", "io.debezium.data.Json"), '{"a": 1.0}', {}),
        ("STRING", typed("string", "io.debezium.data.Enum", parameters={"allowed": "a,b"}), "a", {}),
        ("STRING", typed("bytes", "io.debezium.data.Bits", parameters={"length": "9"}), "AQE=", {}),
        ("BINARY", typed("bytes"), "3q2+7w==", {}),
        ("BINARY", TEXT, "3q2+7w==", {"binary.handling.mode": "base64"}),
        ("BINARY", TEXT, "3q2-7w==", {"binary.handling.mode": "base64-url-safe"}),
        ("BINARY", TEXT, "DEADbeef", {"binary.handling.mode": "hex"}),
        ("ARRAY<INT>", typed("array", items=typed("int32")), [1, None, 3], {}),
        ("ARRAY<DECIMAL(9,2)>", typed("array", items=decimal_of(2)), [number(1), None, number(-5)], {}),
        ("ARRAY<TIMESTAMP>", typed("array", items=MICROS), [0, None], {}),
        ("ARRAY<BINARY>", typed("array", items=typed("bytes")), ["3q0=", ""], {}),
        ("MAP<STRING, STRING>", typed("map", values=TEXT), {"k": "v", "n": None}, {}),
        ("STRUCT<x: DOUBLE, wkb: BINARY, z: INT>", struct_of("n.Point", {"x": typed("double"), "wkb": typed("bytes")}),
         {"x": 1.5, "wkb": "3q0="}, {}),
    ],
)  # fmt: skip
def test_each_type_is_as_in_json_by_the_fast_path(
    schema: str, kind: Connect, value: Any, modes: Mapping[str, str]
) -> None:
    row = {"id": LONG, "a": kind}
    found = in_both(
        f"id BIGINT, a {schema}", row, *({"id": 1, "a": each} for each in (value, None, value)), connector=modes
    )
    assert not found.dead.num_rows, found.dead.to_pylist()
    assert found.columns["a"].is_valid().to_pylist() == [True, False, True]
    shown = {name: mode for name, mode in modes.items() if name == "binary.handling.mode"}
    decoder = of(f"id BIGINT, a {schema}", row, connector=shown)
    assert is_fast(decoder, avro_event(row, "c", None, {"id": 1, "a": value}))


def test_a_32_bit_number_keeps_its_value() -> None:
    """In JSON, it is the number that Java's text says, such as 0.1 or 115724850."""
    row = {"f": typed("float"), "g": typed("float"), "h": typed("float")}
    values = [avro_event(row, "c", None, dict.fromkeys("fgh", each)) for each in (0.1, 115724848.0)]
    found = decoded(of("f DOUBLE, g FLOAT", row), values)
    assert found.columns["f"].to_pylist() == [0.10000000149011612, 115724848.0]
    assert found.columns["g"].to_pylist() == [0.10000000149011612, 115724848.0]
    assert found.rescued.to_pylist() == ['{"h":0.1}', '{"h":115724850.0}']


def test_milliseconds_need_no_declaration() -> None:
    row = {"a": MILLIS, "b": MICROS}
    found = in_both("a TIMESTAMP, b TIMESTAMP", row, {"a": 1, "b": 1}, milliseconds=["a"])
    assert [found.columns[each].to_pylist()[0].microsecond for each in ("a", "b")] == [1000, 1]


@pytest.mark.parametrize(
    ("schema", "kind", "value", "reason", "detail"),
    [
        ("DECIMAL(5,2)", decimal_of(2), number(100000), "out_of_range", "beyond DECIMAL(5,2)"),
        ("DECIMAL(38,2)", VARIABLE, {"scale": 3, "value": number(1)}, "out_of_range", "more precise"),
        ("TIMESTAMP", MICROS, 9223372036825200000, "out_of_range", "`infinity`"),
        ("DATE", typed("int32", "io.debezium.time.Date"), 2147483647, "out_of_range", "declare INT"),
        ("INT", typed("int64"), 2**31, "out_of_range", "INT"),
        ("FLOAT", typed("double"), 1e300, "out_of_range", "FLOAT"),
        ("STRING", typed("int32"), 1, "wrong_type", "declare BIGINT"),
        ("STRING", VARIABLE, {"scale": 0, "value": number(1)}, "wrong_type", "declare DECIMAL"),
        ("STRING", TEXT, UNSENT, "missing", "IDENTITY FULL"),
        ("BINARY", typed("bytes"), base64.b64encode(UNSENT.encode()).decode(), "missing", "IDENTITY FULL"),
        ("ARRAY<STRING>", typed("array", items=TEXT), [UNSENT], "missing", "IDENTITY FULL"),
        ("ARRAY<INT>", typed("array", items=typed("int32")), list(UNSENT.encode()), "missing", "IDENTITY FULL"),
        ("ARRAY<BOOLEAN>", typed("array", items=typed("boolean")), [True] * len(UNSENT), "missing", "IDENTITY FULL"),
        ("ARRAY<DOUBLE>", typed("array", items=typed("double")), None, "missing", "writes null"),
        ("MAP<STRING, STRING>", typed("map", values=TEXT), {UNSENT: UNSENT}, "missing", "IDENTITY FULL"),
        ("STRUCT<x: INT NOT NULL>", struct_of("n.P", {"x": typed("int32")}), {"x": None}, "missing", "is null"),
        ("BIGINT NOT NULL", typed("int64"), None, "missing", "is null"),
    ],
)  # fmt: skip
def test_what_a_column_cannot_hold_is_the_dead_letter_of_json(
    schema: str, kind: Connect, value: Any, reason: str, detail: str
) -> None:
    found = in_both(f"id BIGINT, a {schema}", {"id": LONG, "a": kind}, {"id": 1, "a": value}, {"id": 2, "a": None})
    dead = found.dead.to_pylist()
    assert dead[0]["reason"] == reason
    assert dead[0]["place"].startswith("$.after.a")
    assert detail in dead[0]["detail"]


@pytest.mark.parametrize(
    ("schema", "kind", "detail"),
    [
        ("DECIMAL(12,2)", decimal_of(4), "schema says scale 4, but the column is DECIMAL(12,2)"),
        ("ARRAY<DECIMAL(12,2)>", typed("array", items=decimal_of(4)), "schema says scale 4"),
        ("DECIMAL(12,2)", typed("bytes"), "bytes without a name, which has no scale"),
        ("DECIMAL(16,2)", typed("double"), "15 exact digits"),
        ("STRING", decimal_of(2), "declare DECIMAL"),
        ("TIMESTAMP", typed("int64"), "int64 without a name, which is not the unit of a TIMESTAMP"),
        ("TIMESTAMP", typed("int64", "io.debezium.time.MicroTime"), "declare BIGINT"),
        ("DATE", typed("int32"), "`connect.meta.data`"),
        ("DATE", MILLIS, "io.debezium.time.Timestamp, but the column is DATE"),
        ("STRUCT<t: TIMESTAMP>", struct_of("n.P", {"t": typed("int64")}), "int64 without a name"),
        ("MAP<STRING, DATE>", typed("map", values=typed("int32")), "int32 without a name"),
        ("STRUCT<t: TIMESTAMP>", typed("map", values=MILLIS), "which is a map, but the column is STRUCT"),
        ("MAP<STRING, TIMESTAMP>", struct_of("n.P", {"t": MILLIS}), "which is a struct, but the column is MAP"),
        ("BINARY", TEXT, "which is text, but the column is BINARY: declare the connector's `binary.handling.mode`"),
        ("ARRAY<BINARY>", typed("array", items=TEXT), "declare STRING"),
        (
            "STRUCT<t: TIMESTAMP, u: TIMESTAMP>", struct_of("n.P", {"t": MILLIS, "u": MICROS}),
            "another part of this column has another unit: declare BIGINT",
        ),
        (
            "STRUCT<m: DECIMAL(9,2), n: DECIMAL(9,2)>", struct_of("n.P", {"m": decimal_of(2), "n": TEXT}),
            "another part of this column shows another",
        ),
    ],
)  # fmt: skip
def test_a_schema_that_contradicts_the_declaration_is_a_dead_letter(schema: str, kind: Connect, detail: str) -> None:
    row = {"id": LONG, "a": kind}
    values = [avro_event(row, "c", None, {"id": 1}), avro_event(row, "d", {"id": 1}), avro_event(row, "t"), None]
    found = decoded(of(f"id BIGINT, a {schema}", row), values)
    assert [(each["reason"], each["place"]) for each in found.dead.to_pylist()] == [
        ("wrong_type", "$.after.a"),
        ("wrong_type", "$.before.a"),
    ]
    assert detail in found.dead["detail"][0].as_py()
    assert found.columns["change_operation"].to_pylist() == [None, None, "t", None]


@pytest.mark.parametrize(
    ("schema", "kind", "mode", "is_dead"),
    [
        ("BINARY", TEXT, "base64", True),
        ("BINARY", TEXT, "base64-url-safe", True),
        ("BINARY", TEXT, "hex", False),
        ("BINARY", typed("bytes"), "base64", False),
        ("STRUCT<wkb: BINARY>", struct_of("n.G", {"wkb": typed("bytes")}), "bytes", True),
    ],
)
def test_null_may_stand_for_an_unchanged_value(schema: str, kind: Connect, mode: str, is_dead: bool) -> None:
    row = {"id": LONG, "a": kind}
    null = {"id": 1, "a": None}
    decoder = of(f"id BIGINT, a {schema}", row, connector={"binary.handling.mode": mode})
    whole = [avro_event(row, "c", None, null), avro_event(row, "u", null, null)]
    found = decoded(decoder, [avro_event(row, "u", None, null), *whole])
    places = [(each["row"], each["reason"], each["place"]) for each in found.dead.to_pylist()]
    assert places == ([(0, "missing", "$.after.a")] if is_dead else [])
    assert is_fast(decoder, *whole)


def test_logical_types_count_without_names_of_connect() -> None:
    """The converters write no names with `connect.meta.data: false`."""
    schema = json.dumps(
        avro_schema(envelope({"n": decimal_of(2), "t": typed("int64", "org.apache.kafka.connect.data.Timestamp")}))
    )
    document = json.loads(
        schema, object_hook=lambda each: {n: v for n, v in each.items() if not n.startswith("connect.")}
    )
    spec = FormatSpec("debezium", {"schema": "n DECIMAL(9,2), t TIMESTAMP"})
    decoder = event_decoder(declared(spec, by_registry=True), json.dumps(document), [])
    row = {"n": decimal_of(2), "t": typed("int64")}
    found = decoded(decoder, [avro_event(row, "c", None, {"n": number(150), "t": 1})])
    assert found.columns["n"].to_pylist() == [Decimal("1.50")]
    assert found.columns["t"].to_pylist() == [datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)]


def test_undeclared_fields_are_rescued_as_in_json() -> None:
    inner = struct_of("n.P", {"x": typed("double"), "y": typed("bytes")})
    row = {
        "id": LONG, "g": inner, "l": typed("array", items=inner), "m": typed("map", values=inner), "d": MICROS,
        "f": typed("float"),
    }  # fmt: skip
    whole = {"x": 1.5, "y": "3q0="}
    rows: list[dict[str, Any]] = [
        {"id": 1, "g": whole, "l": [whole, None], "m": {"k": whole}, "d": 5, "f": "NaN"},
        {"id": 2, "g": None, "l": [], "m": {}, "d": None, "f": 0.1},
    ]
    schema = "id BIGINT, g STRUCT<x: DOUBLE>, l ARRAY<STRUCT<x: DOUBLE>>, m MAP<STRING, STRUCT<x: DOUBLE>>"
    found = in_both(schema, row, *rows)
    assert found.rescued.to_pylist() == [
        '{"$.g.y":"3q0=","$.l[0].y":"3q0=","$.m.k.y":"3q0=","d":5,"f":"NaN"}',
        '{"d":null,"f":0.1}',
    ]
    assert is_fast(of(schema, row), avro_event(row, "c", None, rows[0]))
    nested = {name: kind for name, kind in row.items() if name not in ("d", "f")}
    given = [{name: value for name, value in each.items() if name in nested} for each in rows]
    found = in_both(schema, nested, *given)
    assert found.rescued.to_pylist() == ['{"$.g.y":"3q0=","$.l[0].y":"3q0=","$.m.k.y":"3q0="}', None]


def test_numbers_with_far_scales_are_exact_or_dead_letters() -> None:
    row = {"a": VARIABLE}
    given = [(20_000, 0), (-20_000, 0), (20_000, 1), (-20_000, -1), (20_000, -(10**30)), (3, -1500), (-2, 3), (-16, 1)]
    found = in_both("a DECIMAL(20,2)", row, *({"a": {"scale": s, "value": number(n)}} for s, n in given))
    assert found.columns["a"].to_pylist() == [0, 0, None, None, None, Decimal("-1.50"), 300, 10**16]
    assert [each["reason"] for each in found.dead.to_pylist()] == ["out_of_range"] * 3


def test_a_decimal_without_a_scale_in_its_schema_has_the_scale_0() -> None:
    document = json.dumps(avro_schema(envelope({"a": decimal_of(2)}))).replace('{"scale": "2"}', '{"scale": null}')
    document = document.replace('"scale": 2, ', "")
    assert '"scale": null' in document
    assert '"scale": 2' not in document
    spec = FormatSpec("debezium", {"schema": "a DECIMAL(10,4)"})
    decoder = event_decoder(declared(spec, by_registry=True), document, [])
    found = decoded(decoder, [avro_event({"a": decimal_of(2)}, "c", None, {"a": number(123)})])
    assert "schema says scale 0" in found.dead["detail"][0].as_py()


def test_a_map_with_a_key_twice_loses_nothing() -> None:
    row = {"id": LONG, "m": typed("map", values=TEXT)}
    value = avro_event(row, "c", None, {"id": 1, "m": {"k": "v", "l": "w"}}).replace(
        b"\x02l\x02\x02w", b"\x02k\x02\x02w"
    )
    assert decoded(of("id BIGINT", row), [value]).rescued.to_pylist() == [
        '{"m":[{"key":"k","value":"v"},{"key":"k","value":"w"}]}'
    ]
    (dead,) = decoded(of("id BIGINT, m MAP<STRING, STRING>", row), [value]).dead.to_pylist()
    assert (dead["reason"], dead["place"]) == ("malformed", "$.after.m.k")


def test_records_that_are_no_change_are_named() -> None:
    def letter(schema: Any, value: Any) -> str:
        decoder = event_decoder(
            declared(FormatSpec("debezium", {"schema": "id INT"}), by_registry=True), json.dumps(schema), []
        )
        (dead,) = decoded(decoder, [written(schema, value)]).dead.to_pylist()
        assert dead["reason"] == "wrong_type"
        return str(dead["detail"])

    def record(**fields: str) -> Any:
        return {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields.items()]}

    assert "heartbeat" in letter(record(ts_ms="long"), {"ts_ms": 1})
    assert "transaction metadata" in letter(record(status="string", id="string"), {"status": "END", "id": "1"})
    assert "`format: json`" in letter(record(id="int"), {"id": 1})
    assert "one of c, r, u, d, t" in letter(record(op="int"), {"op": 1})


def test_facts_can_be_missing_and_malformed() -> None:
    broken = {**SOURCE, "ts_us": 2**62}
    far = [{**SOURCE, "ts_us": None, "ts_ms": each} for each in (-(2**63), 2**63 - 1, -(10**15), 10**15)]
    of_far = decoded(of("id BIGINT", ROW), [avro_event(ROW, "c", None, {"id": 1}, each) for each in far])
    assert of_far.dead["reason"].to_pylist() == ["out_of_range"] * len(far)
    late = {**SOURCE, "ts_us": None, "lsn": None}
    whole = avro_event(ROW, "c", None, {"id": 1, "name": "x"})
    values = [avro_event(ROW, "c", None, {"id": 1}, each) for each in (broken, late)]
    found = decoded(of("id BIGINT", ROW), [*values, whole[:-1], whole + b"\0", b""])
    assert found.columns["change_timestamp"].to_pylist()[1] == datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
    assert [(each["row"], each["reason"], each["place"]) for each in found.dead.to_pylist()] == [
        (0, "out_of_range", "$.source.ts_us"), (2, "malformed", "$.ts_ms"), (3, "malformed", None),
        (4, "malformed", "$.before"),
    ]  # fmt: skip


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    """Run a fake registry, to which the environment points."""
    with fake_registry() as made:
        monkeypatch.setenv("SCHEMA_REGISTRY_URL", made.url)
        yield made


def headed(number: int, datum: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + datum


def test_each_event_is_read_by_the_schema_that_it_names(registry: FakeRegistry) -> None:
    """Columns are added, removed and changed in the database between events of one window."""
    new = {"id": LONG, "amount": decimal_of(4), "at": MICROS, "size": typed("int32")}
    old = {"id": LONG, "name": TEXT, "amount": decimal_of(2), "at": MILLIS}
    schemas = {1: old, 2: new}
    for number_of, row in schemas.items():
        registry.has(f"/schemas/ids/{number_of}", {"schema": json.dumps(avro_schema(envelope(row)))})
    rows = {
        1: {"id": 1, "name": "x", "amount": number(150), "at": 1},
        2: {"id": 2, "amount": number(15000), "at": 1, "size": 5},
    }
    values = [headed(n, avro_event(schemas[n], "c", None, rows[n])) for n in (1, 2, 1)]
    options = {"schema": "id BIGINT NOT NULL, name STRING, at TIMESTAMP, size INT", "registry": True}
    found = decoded(decoder_of(FormatSpec("debezium", options)), [*values, None])
    assert not found.dead.num_rows
    assert found.columns["name"].to_pylist() == ["x", None, "x", None]
    assert found.columns["size"].to_pylist() == [None, 5, None, None]
    assert [each and each.microsecond for each in found.columns["at"].to_pylist()] == [1000, 1, 1000, None]
    assert found.rescued.to_pylist() == [
        f'{{"amount":"{number(150)}"}}',
        f'{{"amount":"{number(15000)}"}}',
        f'{{"amount":"{number(150)}"}}',
        None,
    ]
    # The declared scale fits only one of the two schemas, and a required column is missing in the other.
    options["schema"] = "id BIGINT, amount DECIMAL(12,2), size INT NOT NULL"
    dead = decoded(decoder_of(FormatSpec("debezium", options)), values).dead.to_pylist()
    assert [(each["row"], each["reason"], each["place"]) for each in dead] == [
        (0, "missing", "$.after.size"), (1, "wrong_type", "$.after.amount"), (2, "missing", "$.after.size"),
    ]  # fmt: skip
    assert "is absent, but required" in dead[0]["detail"]


def _nested(levels: int) -> Any:
    of: Any = "int"
    for _ in range(levels):
        of = {"type": "array", "items": of}
    return of


def _row_of(**fields: Any) -> Any:
    listed = [{"name": name, "type": each} for name, each in fields.items()]
    row = {"type": "record", "name": "Value", "fields": listed}
    parts = [{"name": "after", "type": ["null", row]}, {"name": "op", "type": "string"}]
    return {"type": "record", "name": "Envelope", "fields": parts}


def _wide(levels: int) -> Any:
    """Return a record of 2 ** levels parts, in a few lines."""
    of: Any = "int"
    for level in range(levels):
        others = "int" if level == 0 else f"R{level - 1}"
        fields = [{"name": "a", "type": of}, {"name": "b", "type": others}]
        of = {"type": "record", "name": f"R{level}", "fields": fields}
    return of


DECIMAL_2 = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
_OTHER = {"type": "record", "name": "Other", "fields": [{"name": "id", "type": "string"}]}


@pytest.mark.parametrize(
    ("schema", "detail"),
    [
        ("{broken", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('"string"', "not a record"),
        (["null", _row_of(id="int")], "not a record"),
        (_row_of(id=["int", "string"]), "$.after.id: a union of 2 types"),
        (_row_of(id=["null"]), "a union of 0 types"),
        (_row_of(id="null"), "take no bytes"),
        (_row_of(id={"type": "array", "items": "null"}), "take no bytes"),
        (_row_of(id={"type": "fixed", "name": "F", "size": 0}), "take no bytes"),
        (_row_of(), "take no bytes"),
        (_row_of(id="Value"), "contains itself"),
        (_row_of(id="Nothing"), "neither an Avro type"),
        (_row_of(id=_nested(200)), "more than 100 types"),
        (_row_of(id=_wide(40)), "more than 10000 parts"),
        ({**_row_of(id="int"), "fields": [*_row_of(id="int")["fields"], {"name": "before", "type": _OTHER}]}, "have different fields"),
        ({"type": "record", "name": "\x1b[31m", "fields": []}, "is not an Avro name: set"),
        ({**_row_of(id="int"), "namespace": "my-shop.public.t"}, "schema 1: $: 'my-shop.public.t.Envelope' is not an Avro name: set"),
        ({**_row_of(id="int"), "name": "my-shop.Envelope"}, "'my-shop.Envelope' is not an Avro name: set"),
        (_row_of(id={"type": "enum", "name": "E", "symbols": ["\ud800"]}), "half of a surrogate pair"),
        (_row_of(id={**DECIMAL_2, "connect.parameters": {"scale": "3"}}), "its scale is '3' in `connect.parameters`, but '2'"),
        (_row_of(id={**DECIMAL_2, "type": "fixed", "name": "F", "size": 4, "connect.parameters": {"scale": "3"}}), "its scale is '3'"),
        (_row_of(**{"unit-price": "int"}), "'unit-price' is not an Avro name: set the connector's `field.name.adjustment.mode`"),
    ],
    ids=range(22),
)  # fmt: skip
def test_a_hostile_schema_is_refused(registry: FakeRegistry, schema: Any, detail: str) -> None:
    registry.has("/schemas/ids/1", {"schema": schema if isinstance(schema, str) else json.dumps(schema)})
    decoder = decoder_of(FormatSpec("debezium", {"schema": "id INT", "registry": True}))
    (dead,) = decoded(decoder, [headed(1, b"\0")]).dead.to_pylist()
    assert dead["reason"] == "bad_schema"
    assert detail in dead["detail"]
    assert ("connector's `schema.name.adjustment.mode` to `avro`" in dead["detail"]) == (detail[-3:] == "set")
    assert dead["detail"].isprintable()


def test_schemas_of_other_kinds_and_values_without_an_id_are_dead_letters(registry: FakeRegistry) -> None:
    registry.has("/schemas/ids/1", {"schema": "{}", "schemaType": "JSON"})
    decoder = decoder_of(FormatSpec("debezium", {"schema": "id INT", "registry": True}))
    found = decoded(decoder, [headed(1, b""), headed(2, b""), b'{"op":"c"}', None])
    assert found.dead["reason"].to_pylist() == ["bad_schema", "unknown_schema", "malformed"]


@pytest.mark.parametrize("id_from", ["prefix", "header", "apicurio"])
@pytest.mark.parametrize("value", [b'{"op":"c"}', b' \n{"op":"c"}', b"{}"])
def test_json_is_named_where_avro_is_declared(registry: FakeRegistry, id_from: str, value: bytes) -> None:
    decoder = decoder_of(FormatSpec("debezium", {"schema": "id INT", "registry": True, "id": id_from}))
    (dead,) = decoded(decoder, [value]).dead.to_pylist()
    assert dead["reason"] == "malformed"
    assert "the value looks like JSON: leave out `registry`" in dead["detail"]
    assert isinstance(decoder, RegistryDecoder)
    without_headers = pa.array([[]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    (dead,) = decoder.decode_records(pa.array([value]), without_headers, "value").dead.to_pylist()
    assert dead["detail"].count("looks like JSON") == 1


def test_no_remedy_names_a_setting_that_a_registry_forbids() -> None:
    row = {"a": VARIABLE, "n": decimal_of(2)}
    event = avro_event(row, "c", None, {"a": {"scale": 0, "value": "AQ=="}, "n": "AQ=="})
    (dead,) = decoded(of("a STRING", row), [event]).dead.to_pylist()
    assert "in the connector and, without `registry`, here" in dead["detail"]
    empty = avro_event(row, "c", None, {"a": None, "n": ""})
    (dead,) = decoded(of("n DECIMAL(9,2)", row), [empty]).dead.to_pylist()
    assert (dead["reason"], dead["place"]) == ("wrong_type", "$.after.n")
    assert dead["detail"] == "found no bytes, where DECIMAL(9,2) as bytes in base64 was expected"


@pytest.mark.parametrize("value", [b"", b"{", b"{\xff\xff\xff\xff\xff", b"Obj\x01xxxxx"])
def test_other_bytes_are_not_called_json(registry: FakeRegistry, value: bytes) -> None:
    decoder = decoder_of(FormatSpec("debezium", {"schema": "id INT", "registry": True}))
    (dead,) = decoded(decoder, [value]).dead.to_pylist()
    assert "JSON" not in dead["detail"]


def test_references_can_have_the_rows_schema() -> None:
    whole = avro_schema(envelope(ROW))
    value = whole["fields"][0]["type"][1]
    whole["fields"][0]["type"][1] = "db.public.orders.Value"
    d = declared(FormatSpec("debezium", {"schema": "id BIGINT"}), by_registry=True)
    decoder = event_decoder(d, json.dumps(whole), [json.dumps(value)])
    assert decoded(decoder, [avro_event(ROW, "c", None, {"id": 3})]).columns["id"].to_pylist() == [3]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"connector": {"decimal.handling.mode": "string"}}, "connector: decimal.handling.mode: with `registry`"),
        ({"connector": {"time.precision.mode": "connect"}}, "leave it out"),
        ({"milliseconds": ["at"]}, "milliseconds: with `registry`, this is in the schema of each value"),
        ({"max_depth": 5}, "applies only to JSON"),
        ({"registry": "yes"}, "true, or left out"),
        ({"id": "somewhere"}, "prefix, header"),
        ({"maps": "map"}, "no option 'maps'"),
    ],
)
def test_a_wrong_option_is_named(options: Mapping[str, Any], said: str) -> None:
    spec = FormatSpec("debezium", {"schema": "id INT, at TIMESTAMP", "registry": True, **options})
    with pytest.raises(ConfigurationError, match=said):
        decoder_of(spec)


_NUMBERS = st.integers(-(10**21), 10**21) | st.integers(-200, 200)
_LONGS = st.integers(-(2**63), 2**63 - 1)
_TEXTS = st.text(max_size=5) | st.sampled_from([UNSENT, "NaN", "-1.50", "2024-02-29Z", "2024-02-29T00:00:00Z"])
_BYTES = st.binary(max_size=6).map(lambda content: base64.b64encode(content).decode())
_DECIMALS = st.builds(lambda scale, value: {"scale": scale, "value": number(value)}, st.integers(-3, 12), _NUMBERS)
_REALS = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from(["NaN", "Infinity", "-Infinity"])
_POINT = struct_of("n.Point", {"x": typed("double"), "b": typed("bytes"), "n": decimal_of(1)})
_COLUMNS: Mapping[str, tuple[str, Connect, st.SearchStrategy[Any]]] = {
    "n": ("DECIMAL(20,4)", decimal_of(4), _NUMBERS.map(number)),
    "v": ("DECIMAL(38,10)", VARIABLE, _DECIMALS),
    "t": ("TIMESTAMP", MICROS, _LONGS),
    "z": ("TIMESTAMP", typed("string", "io.debezium.time.ZonedTimestamp"), _TEXTS | st.datetimes().map(lambda t: t.isoformat() + "Z")),
    "d": ("DATE", typed("int32", "io.debezium.time.Date"), st.integers(-(10**7), 10**7)),
    "i": ("INT", typed("int64"), _LONGS | st.integers(-5, 5)),
    "b": ("BINARY", typed("bytes"), _BYTES),
    "f": ("DOUBLE", typed("float"), _REALS),
    "s": ("STRING NOT NULL", TEXT, _TEXTS),
    "l": ("ARRAY<TIMESTAMP>", typed("array", items=MICROS), st.lists(st.none() | _LONGS | st.integers(0, 9), max_size=3)),
    "a": ("ARRAY<BOOLEAN>", typed("array", items=typed("boolean")), st.lists(st.booleans(), max_size=2)),
    "m": ("MAP<STRING, BINARY>", typed("map", values=typed("bytes")), st.dictionaries(_TEXTS, st.none() | _BYTES, max_size=3)),
    "g": ("STRUCT<x: FLOAT, n: DECIMAL(5,1)>", _POINT,
          st.fixed_dictionaries({"x": _REALS | st.just(1e300), "b": _BYTES, "n": st.none() | _NUMBERS.map(number)})),
    "r": ("", typed("array", items=typed("double")), st.lists(_REALS, max_size=2)),
}  # fmt: skip


@settings(UNTIMED, max_examples=80)
@given(
    st.lists(
        st.fixed_dictionaries({name: st.none() | each | each | each for name, (_, _, each) in _COLUMNS.items()}),
        min_size=1,
        max_size=6,
    )
)
def test_avro_and_json_agree(rows: list[dict[str, Any]]) -> None:
    kinds = {name: kind for name, (_, kind, _) in _COLUMNS.items()}
    schema = ", ".join(f"{name} {ddl}" for name, (ddl, _, _) in _COLUMNS.items() if ddl)
    in_both(schema, kinds, *rows)
