"""Conversion of strings to values: vectorized conversion and conversion of single strings agree with each other and
with the documentation."""

from __future__ import annotations

import math
import pickle
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from platform_assets.decoding.conversion import Conversion, conversion
from platform_assets.decoding.decoder import DecodeFault
from platform_assets.decoding.pieces import pieces_of
from platform_assets.decoding.times import ISO_TIME_OR_UTC, TimeFormat, time_format
from platform_assets.errors import ConfigurationError
from platform_assets_tests.support.decoding import UNTIMED

TIMESTAMP = pa.timestamp("us", "UTC")
TYPES = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(5, 2),
    pa.decimal128(38, 0), pa.decimal128(38, 38), pa.string(), pa.date32(), TIMESTAMP,
]  # fmt: skip


def of(kind: pa.DataType, times: TimeFormat | None = None) -> Conversion:
    return conversion(pa.field("x", kind), times)


def outcome(one: Conversion, text: str) -> Any:
    """Return the converted value in Arrow's form, or the reason why there is no value."""
    try:
        return pa.array([one.value(text)], one.type)
    except DecodeFault as fault:
        return fault.reason


def assert_agreed(one: Conversion, texts: list[str | None]) -> None:
    """Check that converting the column gives the same result for each string as converting that string alone. Nulls are
    never left undecided."""
    column, undecided = one.column(pieces_of(pa.array(texts, pa.string())))
    column.validate(full=True)
    assert column.type == one.type
    for index, text in enumerate(texts):
        if text is None:
            assert not undecided[index]
            assert not column[index].is_valid
        elif not undecided[index]:
            assert repr(outcome(one, text).to_pylist()) == repr(column.slice(index, 1).to_pylist())
            assert column[index].is_valid


numbers = st.from_regex(r"[+-]?[0-9]{0,20}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,5})?", fullmatch=True)
edges = (
    st.sampled_from([7, 15, 31, 63])
    .flatmap(lambda bits: st.integers(2**bits - 2, 2**bits + 1))
    .flatmap(lambda value: st.sampled_from([str(value), str(-value), f"00{value}", f"+{value}"]))
)
moments = st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)).map(lambda time: time.isoformat())
near_moments = st.from_regex(
    r"[0-9]{4}-[01][0-9]-[0-3][0-9]([T ][0-2][0-9]:[0-6][0-9]:[0-6][0-9]([.,][0-9]{1,9})?(Z|[+-][0-2][0-9](:?[0-6][0-9])?)?)?",
    fullmatch=True,
)
others = st.sampled_from(
    [
        "",
        " 1",
        "1 ",
        "NaN",
        "nan",
        "Infinity",
        "-Inf",
        "true",
        "TRUE",
        "False",
        "tru",
        "1_0",
        "0x1f",
        "٣",
        "1\n",
        "-",
        ".",
    ]
)
texts = numbers | edges | moments | near_moments | others | st.text(max_size=5) | st.floats().map(repr) | st.none()


@UNTIMED
@given(st.sampled_from(TYPES), st.lists(texts, max_size=20))
@example(pa.float32(), ["3.4028235e38", "3.4028236e38", "1e39", "-1e-50", "16777217"])
@example(
    pa.int64(), ["9223372036854775807", "9223372036854775808", "-9223372036854775808", "0" * 5000 + "7", "9" * 5000]
)
@example(
    pa.decimal128(38, 0), ["9" * 38, "9" * 39, "0" * 50 + "1", "1e37", "1e38", "0e999999999999", "1e-999999999999"]
)
@example(
    TIMESTAMP,
    ["0001-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59.999999Z", "0000-01-01T00:00:00Z"],
)
def test_a_column_converts_each_text_as_it_is_alone(kind: pa.DataType, texts: list[str | None]) -> None:
    assert_agreed(of(kind), texts)
    if kind == TIMESTAMP:
        assert_agreed(of(kind, ISO_TIME_OR_UTC), texts)


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        (pa.bool_(), "True", True),
        (pa.bool_(), "1", "wrong_type"),
        (pa.int32(), "007", 7),
        (pa.int32(), "+7", 7),
        (pa.int32(), "1.0", "wrong_type"),
        (pa.int32(), " 1", "wrong_type"),
        (pa.int32(), "1e3", "wrong_type"),
        (pa.int32(), "0x1f", "wrong_type"),
        (pa.int32(), "٣", "wrong_type"),
        (pa.int32(), "", "wrong_type"),
        (pa.int8(), "-128", -128),
        (pa.int8(), "128", "out_of_range"),
        (pa.int64(), "9223372036854775808", "out_of_range"),
        (pa.int64(), "9" * 5000, "out_of_range"),
        (pa.float64(), "0.1", 0.1),
        (pa.float64(), "1e400", "out_of_range"),
        (pa.float64(), "1e-400", 0.0),
        (pa.float64(), "-Infinity", -math.inf),
        (pa.float64(), "inf", "wrong_type"),
        (pa.float64(), "1_0", "wrong_type"),
        (pa.float32(), "1e39", "out_of_range"),
        (pa.float32(), "16777217", 16777216.0),
        (pa.decimal128(5, 2), "-1.5", Decimal("-1.50")),
        (pa.decimal128(5, 2), "1.500", Decimal("1.50")),
        (pa.decimal128(5, 2), "1.505", "out_of_range"),
        (pa.decimal128(5, 2), "1000", "out_of_range"),
        (pa.decimal128(5, 2), "99.9e1", Decimal("999.00")),
        (pa.decimal128(5, 2), "0e999999999999", Decimal("0.00")),
        (pa.decimal128(5, 2), "NaN", "wrong_type"),
        (pa.date32(), "2024-02-29", date(2024, 2, 29)),
        (pa.date32(), "1900-02-29", "out_of_range"),
        (pa.date32(), "2024-2-9", "wrong_type"),
        (TIMESTAMP, "2026-11-22T21:05:01.5+01:00", datetime(2026, 11, 22, 20, 5, 1, 500_000, UTC)),
        (TIMESTAMP, "2026-11-22 21:05:01Z", datetime(2026, 11, 22, 21, 5, 1, tzinfo=UTC)),
        (TIMESTAMP, "2026-11-22T21:05:01.123456000-01:30", datetime(2026, 11, 22, 22, 35, 1, 123_456, UTC)),
        (TIMESTAMP, "2026-11-22T21:05:01.1234567Z", "out_of_range"),
        (TIMESTAMP, "2026-11-22T21:05:01", "wrong_type"),
        (TIMESTAMP, "2026-11-22T21:05:01.Z", "wrong_type"),
        (TIMESTAMP, "2026-11-22T21:05:01+0100", "wrong_type"),
        (TIMESTAMP, "2026-11-22T21:05Z", "wrong_type"),
        (TIMESTAMP, "2026-11-22", "wrong_type"),
        (TIMESTAMP, "2026-11-22T24:00:00Z", "out_of_range"),
        (TIMESTAMP, "2026-11-22T23:59:60Z", "out_of_range"),
        (TIMESTAMP, "2026-11-22T21:05:00+24:00", "out_of_range"),
        (TIMESTAMP, "9999-12-31T23:59:00-01:00", "out_of_range"),
    ],
)
def test_the_rules_are_the_documented_ones(kind: pa.DataType, text: str, wanted: object) -> None:
    found = outcome(of(kind), text)
    assert (found[0].as_py() if isinstance(found, pa.Array) else found) == wanted
    assert_agreed(of(kind), [None, text, text])


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        (pa.bool_(), ["true", "false"]),
        (pa.int16(), ["-7", "+8", "09"]),
        (pa.float64(), ["0.1", "-12.5e-3", "1E5", "7."]),
        (pa.decimal128(5, 2), ["1", "-0.25", "007.1"]),
        (pa.date32(), ["2024-02-29"]),
        (TIMESTAMP, ["2026-11-22T21:05:01.5+01:00", "2026-11-22 21:05:00Z"]),
    ],
)
def test_plainly_good_values_are_converted_without_the_exact_path(kind: pa.DataType, plain: list[str]) -> None:
    _, undecided = of(kind).column(pieces_of(pa.array(plain)))
    assert not undecided.any()


def test_a_time_without_an_offset_is_utc_where_that_is_declared() -> None:
    one = of(TIMESTAMP, ISO_TIME_OR_UTC)
    assert outcome(one, "2026-11-22T21:05:01")[0].as_py() == datetime(2026, 11, 22, 21, 5, 1, tzinfo=UTC)
    assert_agreed(one, ["2026-11-22T21:05:01", "2026-11-22T21:05:01+01:00"])


def test_the_nearest_double_is_the_one_that_python_has(rng: Any) -> None:
    values = [repr(rng.uniform(-1, 1) * 10 ** rng.randint(-300, 300)) for _ in range(5_000)]
    column, undecided = of(pa.float64()).column(pieces_of(pa.array(values)))
    assert not undecided.any()
    assert np.array_equal(column.to_numpy(), np.array([float(value) for value in values]))


FORMATS = [
    "%Y-%m-%d %H:%M:%S,%f",
    "%d/%b/%Y:%H:%M:%S %z",
    "%y/%m/%d %H:%M:%S",
    "[%e %b %Y %H:%M:%S.%f%%] %z",
    "%Y%m%d%H%M%S",
]


@UNTIMED
@given(
    st.sampled_from(FORMATS),
    st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(2068, 12, 30)),
    st.integers(-23 * 60, 23 * 60),
)
def test_a_format_reads_what_strftime_wrote(words: str, moment: datetime, east: int) -> None:
    local = moment.replace(tzinfo=timezone(timedelta(minutes=east)) if "%z" in words else UTC)
    text = local.strftime(words)
    wanted = local if "%f" in words else local.replace(microsecond=0)
    one = of(TIMESTAMP, time_format(words))
    column, undecided = one.column(pieces_of(pa.array([text])))
    assert not undecided.any()
    assert column[0].as_py() == wanted
    assert outcome(pickle.loads(pickle.dumps(one)), text)[0].as_py() == wanted


@UNTIMED
@given(st.sampled_from(FORMATS), st.lists(st.text("0123456789 JanFeb:/-,.[]%Z+", max_size=26), max_size=5), st.data())
def test_both_paths_agree_on_texts_near_a_format(words: str, noise: list[str], data: st.DataObject) -> None:
    good = datetime(2024, 2, 9, 3, 4, 5, 678, UTC).strftime(words)
    at = data.draw(st.integers(0, len(good)))
    near = good[:at] + data.draw(st.text("0123456789 :-Z", max_size=2)) + good[at + data.draw(st.integers(0, 2)) :]
    assert_agreed(of(TIMESTAMP, time_format(words)), [*noise, near, good])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("%Y-%m-%d %Q", "'%Q' is unknown; use, each at most once: %Y %y"),
        ("%Y-%m-%d %d", "'%d' comes twice"),
        ("%Y-%m-%d %", "'%' is unknown"),
        (
            "%b %e %H:%M:%S",
            "must contain exactly one of %Y and %y; declare a column with values that are not complete times as STRING",
        ),
    ],
)
def test_a_format_that_is_no_whole_time_is_refused(words: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        time_format(words)


def test_types_that_no_text_stands_for_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"column 'x': text cannot be converted to ARRAY<INT>; declare the column as STRING"
    ):
        conversion(pa.field("x", pa.list_(pa.int32())))
    with pytest.raises(ConfigurationError, match="a time format applies only to DATE and TIMESTAMP"):
        conversion(pa.field("x", pa.int32()), time_format("%Y-%m-%d"))
