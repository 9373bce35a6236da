"""Format `csv`: one value is one row. The results are compared with those of Python's own CSV reader."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from platform_assets.decoding.formats import decoder_of
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.support.decoding import BROKEN, UNTIMED, decoded

SCHEMA = "id BIGINT NOT NULL, name STRING, share DOUBLE, seen TIMESTAMP"
DIALECTS: list[dict[str, Any]] = [
    {},
    {"delimiter": "\t", "quote": ""},
    {"delimiter": ";", "quote": "'", "escape": "\\"},
    {"quote": "", "escape": "\\", "null": "\\N"},
]


def of(schema: str = SCHEMA, **options: Any) -> Any:
    return decoder_of(FormatSpec("csv", {"schema": schema, **options}))


def texts(width: int) -> str:
    return ", ".join(f"c{place} STRING" for place in range(width))


def pythons_own(text: str, options: dict[str, Any]) -> list[str] | None:
    """Return the fields that Python finds, or None if Python does not find exactly one row or if that row is empty."""
    quote = options.get("quote", '"')
    reader = csv.reader(
        [text],
        delimiter=options.get("delimiter", ","),
        quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
        quotechar=quote or None,
        escapechar=options.get("escape"),
        strict=True,
    )
    try:
        rows = list(reader)
    except csv.Error:
        return None
    return rows[0] if len(rows) == 1 and rows[0] else None


@UNTIMED
@given(st.sampled_from(DIALECTS), st.lists(st.text("ab,;'\"\\\t\n\r é", max_size=12), max_size=8))
@example(
    {}, ["", "\n", ",", '""', '"a""b"', '"a"b', 'a"b', '"a', "a\nb", "a\n\r\n", '"a\nb"\n', "\na", '"a"\r\n', "a\0b"]
)
@example(
    DIALECTS[2],
    ["a\\;b", "\\'a'", "'a\\'b'", "a\\", "a\\\n", "a\\\nb", "a\\\r\n", "'a\\", "'a\\'", "'a\\\n'", "'a'\\;"],
)
def test_the_fields_are_those_of_pythons_reader(options: dict[str, Any], values: list[str]) -> None:
    wanted = [pythons_own(value, options) for value in values]
    for width in range(1, 4):
        found = decoded(of(texts(width), **{**options, "null": "no such text"}), [value.encode() for value in values])
        dead = found.dead["row"].to_pylist()
        for row, fields in enumerate(wanted):
            if fields is None or len(fields) != width:
                assert row in dead
            elif row in dead:
                # Python's reader accepts a line end in any field but the last, where it expects another line.
                assert "outside of quotes" in found.dead["detail"][dead.index(row)].as_py()
            else:
                assert [column[row].as_py() for column in found.columns.columns] == fields


@UNTIMED
@given(
    st.sampled_from(DIALECTS[:3:2]),
    st.lists(st.tuples(*[st.text(st.characters(codec="utf-8"), max_size=6)] * 3), max_size=8),
)
def test_what_pythons_writer_wrote_is_read_again(options: dict[str, Any], rows: list[tuple[str, ...]]) -> None:
    values = []
    for row in rows:
        text = io.StringIO()
        csv.writer(
            text, delimiter=options.get("delimiter", ","), quotechar=options.get("quote", '"'), quoting=csv.QUOTE_ALL
        ).writerow([each.replace("\\", "") for each in row])
        values.append(text.getvalue().encode())
    found = decoded(of(texts(3), **options), values)
    assert found.dead.num_rows == 0
    assert [tuple(row.values()) for row in found.columns.to_pylist()] == [
        tuple(each.replace("\\", "") for each in row) for row in rows
    ]


typed = st.sampled_from(
    ["1", "-7", "x", "", "1.5", "99999999999999999999", "NaN", "2024-02-29T01:02:03Z", '""', '"2"', " 3 ", "\\N"]
)


@UNTIMED
@given(
    st.sampled_from([*DIALECTS, {"trim": True}, {"trim": True, "escape": "\\", "null": "\\N"}]),
    st.lists(
        st.lists(typed, min_size=3, max_size=5).map(",".join).map(str.encode) | st.binary(max_size=9) | st.none(),
        max_size=12,
    ),
)
def test_both_paths_agree_on_typed_columns(options: dict[str, Any], values: list[bytes | None]) -> None:
    decoded(of(**options), values)


@pytest.mark.parametrize(
    ("value", "reason", "place", "detail"),
    [
        (b"", "malformed", None, "there is no field"),
        (b"\r\n", "malformed", None, "there is no field"),
        (b"1,a,0.5", "missing", "seen", "3 fields, but the schema has 4 columns"),
        (b"1,a,0.5,,", "malformed", None, "5 fields, but the schema has 4 columns"),
        (b"1,a,0.5,\n2,b,0.5,", "malformed", None, "a second row begins after the line that ends at character 8"),
        (b'1,"a,0.5,', "malformed", None, "the quote at character 2 is never closed"),
        (b'1,"a"b,0.5,', "malformed", None, "'b' follows the closing quote, at character 5"),
        (b",a,0.5,", "missing", "id", "null, but the column is BIGINT NOT NULL"),
        (b"1.0,a,0.5,", "wrong_type", "id", "'1.0' is not a valid BIGINT: digits were expected"),
        (b'"",a,0.5,', "wrong_type", "id", "'' is not a valid BIGINT"),
        (b" 1,a,0.5,", "wrong_type", "id", "' 1' is not a valid BIGINT"),
        (
            b"9223372036854775808,a,0.5,",
            "out_of_range",
            "id",
            "'9223372036854775808' is not a valid BIGINT: a number from -9223372036854775808 to",
        ),
        (b"1,a,1e999,", "out_of_range", "share", "at most 1.79769e+308"),
        (
            b"1,a,0.5,yesterday",
            "wrong_type",
            "seen",
            "'yesterday' is not a valid TIMESTAMP: not of the form YYYY-MM-DDThh:mm:ss",
        ),
        (b"1,\xff,0.5,", "malformed", None, "not UTF-8: invalid start byte at byte 2, which is 0xff"),
        (b"x" * 101, "too_large", None, "101 bytes, but max_bytes is 100"),
    ],
)
def test_a_dead_letter_names_the_reason_and_the_column(
    value: bytes, reason: str, place: str | None, detail: str
) -> None:
    found = decoded(of(max_bytes=100), [b"1,a,0.5,2024-02-29T01:02:03Z", value, b'2,"x\n""y""",,\r\n'])
    (dead,) = found.dead.to_pylist()
    assert (dead["row"], dead["reason"], dead["place"]) == (1, reason, place)
    assert detail in dead["detail"]
    assert found.columns["id"].to_pylist() == [1, None, 2]
    assert found.columns["name"].to_pylist() == ["a", None, 'x\n"y"']
    assert found.columns["share"].to_pylist() == [0.5, None, None]


def test_a_field_without_quotes_may_be_null_and_one_with_quotes_never_is() -> None:
    assert decoded(of("a STRING, b STRING"), [b',""']).columns.to_pylist() == [{"a": None, "b": ""}]
    options = {"null": "\\N", "escape": "\\", "trim": True}
    rows = decoded(of("a STRING, b STRING, c STRING", **options), [b' \\N ,"\\\\N",\\\\N']).columns.to_pylist()
    assert rows == [{"a": None, "b": "\\N", "c": "\\N"}]


def test_trim_leaves_out_spaces_and_tabs_around_fields_without_quotes() -> None:
    rows = decoded(of("a INT, b STRING, c STRING", trim=True), [b' 1\t, x y ," z "']).columns.to_pylist()
    assert rows == [{"a": 1, "b": "x y", "c": " z "}]


@pytest.mark.parametrize("value", BROKEN)
def test_bytes_that_are_no_text_are_dead_letters(value: bytes) -> None:
    assert decoded(of("a STRING"), [b"a", value]).dead["row"].to_pylist() == [1]


def test_what_is_plainly_good_never_reaches_the_exact_path(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    one = of()
    values = pa.array([b'%d,"a ""b"" %d",-0.5e3,2024-02-29T01:02:03.5+01:00\n' % (row, row) for row in range(1_000)])
    monkeypatch.setattr(type(one), "decode_exactly", None)
    found = one.decode(values)
    assert found.columns["id"].to_pylist() == [*range(1_000)]
    assert found.columns["name"][999].as_py() == 'a "b" 999'


@pytest.mark.parametrize(
    ("value", "options", "remedy", "effect"),
    [
        (b"1,2013-01-01T10:00:00", {}, {"timestamps": "iso8601_or_utc"}, "accepts it"),
        (b"1,2013-01-01T10:00:00.1234567Z", {}, {"timestamps": "iso8601_lenient"}, "drops the extra digits"),
        (b"1,2013-01-01T10:00:00,1234567", {"delimiter": ";"}, None, ""),
        (b"1,2013-01-01T10:00:00+0100", {}, {"timestamps": "iso8601_lenient"}, "accepts it"),
        (b"1,2013-01-01T10:00Z", {"timestamps": "iso8601_or_utc"}, {"timestamps": "iso8601_lenient"}, "accepts it"),
        (b"1,2013-02-30T10:00:00", {}, None, ""),
        (b"1,noon", {"timestamps": "iso8601_lenient"}, None, ""),
        (b" 1 ,", {}, {"trim": "true"}, "accepts it"),
        (b"1,\t2013-01-01T10:00:00Z", {}, {"trim": "true"}, "accepts it"),
        (b"1,  ", {}, {"trim": "true"}, "accepts it"),
        (b'" 1 ",', {}, None, ""),
        (b"  ,", {}, None, ""),
        (b" 1\t", {"delimiter": "\t"}, None, ""),
    ],
)
def test_a_dead_letter_names_the_option_that_reads_the_field(
    value: bytes, options: dict[str, Any], remedy: dict[str, str] | None, effect: str
) -> None:
    schema = "id BIGINT NOT NULL, seen TIMESTAMP"
    detail = decoded(of(schema, **options), [value]).dead["detail"][0].as_py()
    if remedy is None:
        assert "`" not in detail
        return
    [(name, choice)] = remedy.items()
    assert detail.endswith(f"; `{name}: {choice}` {effect}")
    declared = {name: True if choice == "true" else choice}
    assert decoded(of(schema, **{**options, **declared}), [value]).dead.num_rows == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schema": None}, "option 'schema' .* is None; it must be a non-empty string"),
        (
            {"schema": "a ARRAY<INT>"},
            "column 'a': text cannot be converted to ARRAY<INT>; declare the column as STRING",
        ),
        ({"delimiter": ""}, "option 'delimiter' .* one ASCII character that is not a line end$"),
        ({"delimiter": "||"}, "option 'delimiter' .* is '||'"),
        ({"quote": "“"}, "option 'quote' .* one ASCII character that is not a line end, or empty for none"),
        ({"escape": '"'}, "delimiter, quote and escape must differ"),
        ({"trim": "yes"}, "option 'trim' .* is 'yes'; it must be true or false"),
        ({"trim": True, "delimiter": "\t"}, "trim cannot be used with the delimiter"),
        ({"null": None}, "option 'null' .* is None; it must be a string; put it in quotes"),
        ({"timestamps": "seconds"}, "option 'timestamps' .* one of: iso8601, iso8601_or_utc"),
        ({"header": True}, "has no option 'header'; its options are: delimiter, escape"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("||", r"\|\|")):
        of(**{"schema": "a STRING", **options})
