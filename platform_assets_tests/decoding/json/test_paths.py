"""Both paths agree on every value. The values that they decode equal the results of Python's own parser."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from platform_assets.decoding.decoder import Decoded
from platform_assets.decoding.formats import decoder_of
from platform_assets.decoding.json.decoder import JsonDecoder
from platform_assets.decoding.json.fast import find
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.decoding.json.page import rules
from platform_assets_tests.support.decoding import BROKEN, UNTIMED, any_bytes, assert_same, decoded
from platform_assets_tests.support.variants import long_after

WIDE: Final = (
    "a INT, b STRING, c DOUBLE, d BOOLEAN NOT NULL, e TIMESTAMP, f DATE, g DECIMAL(6,2), h BINARY, i FLOAT, j BIGINT, "
    "k ARRAY<INT>, l STRUCT<m: STRING, n: ARRAY<STRUCT<o: DOUBLE NOT NULL, p: ARRAY<STRING>>>>, `é` TINYINT"
)
MAPS: Final = (
    "a MAP<STRING, INT>, b MAP<STRING, STRING> NOT NULL, c MAP<STRING, STRUCT<l: ARRAY<MAP<STRING, DOUBLE>>, m: BINARY>>, "
    "l ARRAY<MAP<STRING, TIMESTAMP>>, k STRUCT<a: MAP<STRING, MAP<STRING, BOOLEAN>>>"
)
NAMES: Final = [*"abcdefghijklmnop", "é", "A", "aa", "", "$", 'x"y', "x" * 40]
DECODERS: Final = {
    name: decoder_of(FormatSpec("json", options))
    for name, options in dict[str, dict[str, Any]](
        {
        "wide": {"schema": WIDE},
        "maps": {"schema": MAPS},
        "one": {"schema": "a BIGINT"},
        "required": {"schema": "a BIGINT NOT NULL, b STRING NOT NULL"},
        "seconds": {"schema": WIDE, "timestamps": "seconds", "max_depth": 4, "max_bytes": 400},
        "utc": {"schema": WIDE, "timestamps": "iso8601_or_utc"},
        "lenient": {"schema": WIDE, "timestamps": "iso8601_lenient"},
        "renamed": {"schema": WIDE.replace("a INT", "z INT"), "columns": {"z": "a"}},
    }).items()
}  # fmt: skip
RULES: Final = [rule.value for rule in rules()]

digits = st.text("0123456789", min_size=1, max_size=24)
numbers = (
    st.integers(-(10**20), 10**20).map(str)
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.builds(lambda *parts: "".join(parts), st.sampled_from(["", "-"]), digits, st.sampled_from(["", "."]), digits,
                st.sampled_from(["", "e", "E-", "e+"]), digits)
    | st.sampled_from(["0", "-0", "-0.0", "1.0", "1e2", "-128", "1e400", "1e-400", "0.1", "3.4028235677973366e38",
                       "1.5", "9223372036854775807", "-9223372036854775808", "NaN", "-Infinity", "18446744073709551616.0",
                       "0.00000000000000000001844674407370955161600000000000000000000000", "9007199254740993"])
)  # fmt: skip
texts = (
    st.text(max_size=20).map(json.dumps)
    | st.text(max_size=20).map(lambda text: json.dumps(text, ensure_ascii=False))
    | st.dates().map(lambda day: f'"{day.isoformat()}"')
    | st.datetimes().map(lambda time: f'"{time.isoformat()}Z"')
    | st.binary(max_size=9).map(lambda content: json.dumps(base64.b64encode(content).decode()))
    | st.sampled_from([
        r'"\ud83d\ude00"', r'"\ud83d"', r'"\ude00x"', r'"\ud83d\u0041"', r'"\u00e9\n\/"', r'"\x"', '"\t"', '"1"',
        '"2013-01-01t10:00"', '"2013-01-01T10:00:00,5+01"', '"2013-01-01T10:00-0130z"', '"2013-01-01T10:00:00.z"',
        '"2013-01-01T10:00:00+05:30"', '"2013-01-01 10:00:00.123456789Z"', '"2013-02-29"', '"2013-01-01T10:00:00"',
        '"2013-01-01T23:59:60Z"', '"0001-01-01T00:00:00+00:01"', '"9999-12-31T23:59:59-00:01"', '"aGk="', '"aGk"',
    ])
)  # fmt: skip
names = st.sampled_from(NAMES).map(json.dumps) | st.sampled_from([r'"\u0061"', r'"b\u0000"', '"é"', r'"\ud800"'])
spaces = st.sampled_from(["", "", "", " ", "\n\t", "\r "])


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return JSON texts of objects, some of them with duplicate names."""
    pair = st.builds("{}{}:{}{}{}".format, names, spaces, spaces, values, spaces)
    return st.lists(pair, max_size=9).map(lambda pairs: "{" + ",".join(pairs) + "}")


values = st.recursive(
    numbers | texts | st.sampled_from(["true", "false", "null", "True", "nul", ""]),
    lambda inner: objects(inner) | st.lists(inner, max_size=4).map(lambda each: "[" + ",".join(each) + "]"),
    max_leaves=12,
)
documents = objects(values).map(lambda text: text.encode(errors="replace"))
fitting = st.fixed_dictionaries(
    {"d": st.booleans()},
    optional={
        "a": st.none() | st.integers(-(2**31), 2**31 - 1),
        "b": st.none() | st.text(),
        "c": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "i": st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False),
        "j": st.none() | st.integers(-(2**63), 2**63 - 1),
        "k": st.none() | st.lists(st.none() | st.integers(-(2**31), 2**31 - 1)),
        "l": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "m": st.none() | st.text(),
                "n": st.lists(
                    st.none()
                    | st.fixed_dictionaries(
                        {"o": st.floats(allow_nan=False, allow_infinity=False)},
                        optional={"p": st.lists(st.none() | st.text(), max_size=3)},
                    ),
                    max_size=3,
                ),
            },
        ),
        "é": st.none() | st.integers(-128, 127),
        "x": st.none() | st.text() | st.lists(st.integers()),
        "y": st.none() | st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)),
    },
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a document in which a piece is missing, duplicated, or replaced by other bytes."""
    whole = draw(documents | st.sampled_from(RULES))
    start = draw(st.integers(0, len(whole)))
    end = draw(st.integers(start, len(whole)))
    return (
        whole[:start]
        + draw(st.sampled_from([b"", whole[start:end] * 2, *BROKEN, b"\x00", b'"', b"{", b"]", b","]))
        + whole[end:]
    )


@pytest.mark.parametrize("name", list(DECODERS))
@UNTIMED
@given(st.lists(st.none() | any_bytes | documents | damaged() | st.sampled_from(RULES), max_size=8))
@example([b'{"a":1', b"2}", b'{"a":"x', b'"}'])
@example([b'{"d":true,"k":[1,"x"],"l":{"m":1}}', b'{"d":true,"k":[1],"l":{"n":[{"o":1,"p":["x"]}]}}', b'{"d":1}'])
@example([b'{"x":1,"x":2}', b'{"x":1,"y":[{}],"x":2}', b'{"$x":1}', b'{"d":false,"x":[{"a":1}] }'])
def test_paths_agree_on_every_value(name: str, values: list[bytes | None]) -> None:
    decoded(DECODERS[name], values)


def plain(value: Any) -> Any:
    """Convert a value to the form that `json.loads` returns. In nested structs, null fields count as absent."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if each is not None}
    return [plain(each) for each in value] if isinstance(value, list) else value


@UNTIMED
@given(st.lists(fitting, max_size=6), st.booleans(), st.sampled_from([None, 1]))
def test_what_fits_is_what_python_reads(rows: list[dict[str, Any]], ascii_alone: bool, indent: int | None) -> None:
    values = [json.dumps(row, ensure_ascii=ascii_alone, indent=indent).encode(errors="surrogatepass") for row in rows]
    found = decoded(DECODERS["wide"], values)
    assert len(found.dead) == 0
    for value, row, rescued in zip(values, found.columns.to_pylist(), found.rescued.to_pylist(), strict=True):
        document = json.loads(value)
        extra = {name: document.pop(name) for name in ("x", "y") if name in document}
        assert plain(row) == plain(document)
        assert (json.loads(rescued) if rescued else {}) == extra


def python_says(text: str) -> bool:
    """Return True if the text is accepted by Python's parser, made as strict as RFC 8259."""
    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


def refuse(name: str) -> None:
    """Refuse NaN and the infinities."""
    raise ValueError(name)


@UNTIMED
@given(documents | damaged() | any_bytes)
def test_what_is_malformed_is_what_python_refuses(value: bytes) -> None:
    found = decoder_of(FormatSpec("json", {"schema": "nobody INT"})).decode(pa.array([value], pa.binary()))
    reasons = found.dead["reason"].to_pylist()
    try:
        is_json = python_says(value.decode())
    except UnicodeDecodeError:
        is_json = False
    if reasons == ["malformed"]:  # a duplicate name is malformed too, though Python uses its last value
        assert not is_json or found.dead["detail"].to_pylist() == ["the field occurs twice"]
    else:
        assert is_json


def both(options: dict[str, Any], values: Sequence[bytes | None]) -> Decoded:
    """Decode with the fast path, and check that the exact path agrees."""
    decoder = decoder_of(FormatSpec("json", options))
    block = pa.array(values, pa.binary())
    fast = decoder.decode(block)
    assert_same(fast, decoder.decode_exactly(block))
    return fast


@pytest.mark.parametrize(
    ("opening", "depth"),
    long_after(
        6,
        [
            (b"[", 1_000_000),
            *((o, d) for o in (b"[", b'{"a":', b'[{"a":', b" [ ", b'{"b":[1,') for d in (99, 100, 101, 10_000)),
            (b'{"a":', 1_000_000),
        ],
    ),
)
def test_nesting_of_any_depth_is_a_dead_letter_and_no_crash(opening: bytes, depth: int) -> None:
    found = both({"schema": "a STRING"}, [b'{"b":' + opening * depth, b'{"a":"x"}', None])
    reason = "too_deep" if depth * (opening.count(b"[") + opening.count(b"{")) > 99 else "malformed"
    assert found.dead["reason"].to_pylist() == [reason]
    assert found.columns["a"].to_pylist() == [None, "x", None]


def test_the_deepest_that_may_be_declared_is_decoded() -> None:
    inside = b"[" * 499 + b"]" * 499
    found = both({"schema": "a STRING", "max_depth": 500}, [b'{"b":%b}' % inside, b'{"b":[%b]}' % inside])
    assert found.rescued.to_pylist() == [(b'{"b":%b}' % inside).decode(), None]
    assert found.dead["reason"].to_pylist() == ["too_deep"]


@pytest.mark.parametrize(
    ("inside", "size"),
    long_after(
        3, [(r"\u00e9", 10_000_000), *((text, 1_000_000) for text in ("x", "é", r"\n", r"\ud83d\ude00", "[", r"\""))]
    ),
)
def test_texts_of_megabytes_are_decoded(inside: str, size: int) -> None:
    text = inside * (size // len(inside.encode()))
    found = both({"schema": "a STRING"}, [f'{{"a":"{text}"}}'.encode(), f'{{"b":"{text}"}}'.encode()])
    assert found.columns["a"].to_pylist() == [json.loads(f'"{text}"'), None]
    assert found.rescued.to_pylist() == [None, f'{{"b":"{text}"}}']


@pytest.mark.parametrize(
    ("number", "reason"),
    long_after(3, [("9" * 1_000_000, "out_of_range"), ("1." + "0" * 1_000_000, None), ("0." + "0" * 1_000_000 + "1", "out_of_range"),
     ("1e" + "9" * 1_000_000, "out_of_range"), ("0e-" + "9" * 1_000_000, None), ("-" * 1_000_000, "malformed")]),
    ids=["nines", "zeros", "small", "exponent", "negative exponent", "signs"],
)  # fmt: skip
def test_numbers_of_a_million_digits_are_judged(number: str, reason: str | None) -> None:
    found = both({"schema": "a INT"}, [f'{{"a":{number}}}'.encode()])
    assert found.dead["reason"].to_pylist() == ([reason] if reason else [])
    assert both({"schema": "b INT"}, [f'{{"a":{number}}}'.encode()]).rescued.null_count == (reason == "malformed")
    if reason != "malformed" and number.startswith(("1.", "0")):
        assert both({"schema": "a DOUBLE"}, [f'{{"a":{number}}}'.encode()]).columns["a"].to_pylist() == [float(number)]


def test_a_detail_holds_a_piece_of_the_value_alone() -> None:
    long = "x" * 100_000
    found = both({"schema": "a INT"}, [f'{{"a":"{long}"}}'.encode(), f'{{"{long}":{{}},"a":[]}}'.encode()])
    assert max(len(detail) for detail in found.dead["detail"].to_pylist()) <= 300
    assert found.dead["place"].to_pylist() == ["$.a", "$.a"]


def test_plain_values_are_decoded_without_python() -> None:
    """If this test failed, the fast path would still be correct, but no longer fast."""
    row = {
        "a": 1, "b": "x\n", "c": 0.1234567890123456, "d": True, "e": "2013-01-01T10:00:00.5+01:00", "f": "2013-01-01",
        "g": 12.5, "h": "aGk=", "i": 0.5, "j": 2**63 - 1, "k": [1, None], "l": {"m": "é", "n": [{"o": 1e300, "p": ["y"]}, None]},
        "é": 1, "x": [{"y": None}], "z": "more",
    }  # fmt: skip
    absent: dict[str, Any] = {"d": False, "a": None, "l": None, "k": []}
    values = [json.dumps(each, ensure_ascii=False).encode() for each in (row, absent, {**row, "d": 1}, row)]
    decoder = DECODERS["wide"]
    assert isinstance(decoder, JsonDecoder)
    found = find(pa.array([*values, None], pa.binary()), decoder.dialect)
    assert found.undecided.tolist() == [False, False, True, False, False]


def test_empty_and_sliced_blocks_and_tombstones() -> None:
    decoder = DECODERS["wide"]
    for block in (pa.array([], pa.binary()), pa.array([None, None], pa.binary()), pa.array([b'{"d":true}'] * 3)[1:1]):
        assert_same(decoder.decode(block), decoder.decode_exactly(block))


def test_one_dead_value_in_a_block_leaves_the_others_as_they_are() -> None:
    good = [b'{"a":%d,"b":"text %d","x":%d}' % (row, row, row) for row in range(5_000)]
    block = [*good[:777], b'{"a":1', *good[777:]]
    found = both({"schema": "a INT, b STRING"}, block)
    assert found.dead["row"].to_pylist() == [777]
    alone = both({"schema": "a INT, b STRING"}, good)
    rest = [row for row in range(len(block)) if row != 777]
    assert found.columns.take(pa.array(rest)).equals(alone.columns)
    assert found.rescued.take(pa.array(rest)).equals(alone.rescued)


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_lenient_times_are_those_of_python_with_the_rest_cut_off(kind: str, rng: random.Random) -> None:
    """Python's own parser reads all of these forms and also truncates fractions to microseconds."""
    texts = []
    for _ in range(2_000):
        time = datetime(1, 1, 3) + timedelta(microseconds=rng.randrange(315_537_000_000_000_000))
        clock = time.strftime("%H:%M") + rng.choice(["", f":{time.second:02d}"])
        if len(clock) == 8:
            clock += rng.choice(["", f"{rng.choice('.,')}{rng.randrange(10 ** (size := rng.randint(1, 9))):0{size}d}"])
        hours, minutes = rng.randrange(24), rng.randrange(60)
        zone = rng.choice(["", "Z", "z", f"{hours:+03d}", f"{hours:+03d}{minutes:02d}", f"-{hours:02d}:{minutes:02d}"])
        texts.append(f"{time.year:04d}-{time.month:02d}-{time.day:02d}{rng.choice('Tt ')}{clock}{zone}")
    spec = FormatSpec(kind, {"schema": "a TIMESTAMP", "timestamps": "iso8601_lenient"})
    found = decoded(decoder_of(spec), [(f'{{"a":"{t}"}}' if kind == "json" else f'"{t}"').encode() for t in texts])
    for text, time in zip(texts, found.columns["a"].to_pylist(), strict=True):
        expected = datetime.fromisoformat(text.replace("z", "Z").replace("t", "T"))
        assert time == (expected if expected.tzinfo else expected.replace(tzinfo=UTC)), text
    assert found.dead.num_rows == 0


def test_lenient_times_stay_on_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_of(FormatSpec("json", {"schema": "a TIMESTAMP", "timestamps": "iso8601_lenient"}))
    values = [b'{"a":"2013-01-01T10:00:00.123456789Z"}', b'{"a":"2013-01-01 10:00+01"}'] * 500
    monkeypatch.setattr(type(decoder), "decode_exactly", None)
    assert decoder.decode(pa.array(values, pa.binary())).columns["a"].null_count == 0


def test_columns_may_have_another_name_than_their_field() -> None:
    """Some column names are reserved in decoded tables. A fault still shows the name that the field has in the value."""
    options = {"schema": "order_key BIGINT NOT NULL, `window` STRING", "columns": {"order_key": "key", "window": "w"}}
    with pytest.raises(ConfigurationError, match=r"such as \{my_window: window\}"):
        decoder_of(FormatSpec("json", options))
    options = {"schema": "order_key BIGINT NOT NULL, at STRING", "columns": {"order_key": "key", "at": "window"}}
    values = [b'{"key":1,"window":"w","order_key":2}', b'{"window":"w"}', b'{"key":7}']
    found = both(options, values)
    assert found.columns.to_pylist() == [
        {"order_key": 1, "at": "w"}, {"order_key": None, "at": None}, {"order_key": 7, "at": None}
    ]  # fmt: skip
    assert found.rescued.to_pylist() == ['{"order_key":2}', None, None]
    assert found.dead.to_pylist()[0]["place"] == "$.key"
    node = {
        "type": "object",
        "required": ["key"],
        "properties": {"key": {"type": "integer"}, "window": {"type": "string"}},
    }
    assert_same(found, both({"json_schema": node, "columns": options["columns"]}, values))


@pytest.mark.parametrize(
    ("value", "options", "remedy"),
    [
        (b'{"a":"2013-01-01T10:00:00"}', {}, {"timestamps": "iso8601_or_utc"}),
        (b'{"a":"2013-01-01T10:00:00.1234567Z"}', {}, {"timestamps": "iso8601_lenient"}),
        (b'{"a":"2013-01-01T10:00:00+0100"}', {}, {"timestamps": "iso8601_lenient"}),
        (b'{"a":"2013-01-01T10:00Z"}', {"timestamps": "iso8601_or_utc"}, {"timestamps": "iso8601_lenient"}),
        (b'{"a":1357034400}', {}, {"timestamps": "seconds"}),
    ],
)
def test_a_dead_letter_names_the_option_that_reads_the_time(
    value: bytes, options: dict[str, Any], remedy: dict[str, Any]
) -> None:
    schema = {"schema": "a TIMESTAMP"}
    [detail] = both({**schema, **options}, [value]).dead["detail"].to_pylist()
    [(name, choice)] = remedy.items()
    assert f"; `{name}: {choice}`" in detail
    assert both({**schema, **remedy}, [value]).dead.num_rows == 0


@pytest.mark.parametrize("text", ["2013-02-30T10:00:00", "2013-01-01T24:00:00", "2013-01-01T10:00:00+24:00", "noon"])
def test_a_time_that_no_option_reads_gets_no_hint(text: str) -> None:
    for option in ("iso8601", "iso8601_or_utc", "iso8601_lenient"):
        found = both({"schema": "a TIMESTAMP", "timestamps": option}, [f'{{"a":"{text}"}}'.encode()])
        assert "`timestamps:" not in found.dead["detail"][0].as_py()


def test_json_of_a_registry_or_of_connect_is_recognised() -> None:
    [dead] = both({"schema": "a INT"}, [b'\0\0\0\1\2{"a":1}']).dead.to_pylist()
    assert dead["reason"] == "malformed"
    assert dead["detail"].endswith("begins with a registry's prefix for schema 258: declare `registry: true`")
    wrapped = b'{"schema":{"type":"struct"},"payload":{"a":1}}'
    [dead] = both({"schema": "a INT NOT NULL"}, [wrapped]).dead.to_pylist()
    assert "set `schemas.enable=false` in its converter, or declare payload STRUCT<…>" in dead["detail"]
    assert both({"schema": "payload STRUCT<a: INT NOT NULL> NOT NULL"}, [wrapped]).dead.num_rows == 0


def test_a_map_has_the_keys_of_its_object() -> None:
    schema = {"schema": "a MAP<STRING, INT>, b MAP<STRING, STRUCT<c: DOUBLE NOT NULL>>"}
    found = both(
        schema,
        [
            b'{"a":{"x":1,"y":null,"":3},"b":{"\\u00e9\\n":{"c":0.5,"d":[{}]}}}',
            b'{"a":{},"b":null}',
            None,
            b'{"a":{"x":1,"x":1}}',
            '{"a":{"é":1,"\\u00e9":2}}'.encode(),
            b'{"a":[]}',
            b'{"a":{"x":"1"}}',
            b'{"b":{"x":{}}}',
            b'{"a":{"x":5}}',
        ],
    )
    assert found.columns["a"].to_pylist() == [[("x", 1), ("y", None), ("", 3)], [], *[None] * 6, [("x", 5)]]
    assert found.columns["b"].to_pylist() == [[("é\n", {"c": 0.5})], *[None] * 8]
    assert found.rescued.to_pylist()[0] == json.dumps({'$.b["\\u00e9\\n"].d': [{}]}, separators=(",", ":"))
    dead = [(d["row"], d["reason"], d["place"]) for d in found.dead.to_pylist()]
    assert dead == [
        (3, "malformed", "$.a.x"),
        (4, "malformed", '$.a["\\u00e9"]'),
        (5, "wrong_type", "$.a"),
        (6, "wrong_type", "$.a.x"),
        (7, "missing", "$.b.x.c"),
    ]


def test_maps_stay_on_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_of(FormatSpec("json", {"schema": "a MAP<STRING, ARRAY<INT>>"}))
    values = [json.dumps({"a": {f"k{n % 7}": [n], "other": []}}).encode() for n in range(1_000)]
    monkeypatch.setattr(type(decoder), "decode_exactly", None)
    found = decoder.decode(pa.array(values, pa.binary())).columns["a"]
    assert found.to_pylist() == [[(f"k{n % 7}", [n]), ("other", [])] for n in range(1_000)]
