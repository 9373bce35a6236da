"""The values that fail an expectation are the same as in plain Python. If a column cannot have an expectation, the
expectation is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform_assets.decoding.expectations import check, failing
from platform_assets.errors import ConfigurationError
from platform_assets.model.expectations import Expectation
from platform_assets_tests.support.decoding import UNTIMED

ZONED = pa.timestamp("us", tz="UTC")
PRICE = pa.decimal128(9, 2)
TEXTS = st.text("aAb1\n\\é", max_size=4)
PRICES = st.decimals(-100, 100, places=2)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): TEXTS,
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    PRICE: PRICES,
    pa.date32(): st.dates(date(1960, 1, 1), date(2100, 1, 1)),
    ZONED: st.datetimes(datetime(1960, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
}


def as_yaml(value: Any) -> Any:
    """Return the expectation in the form that declarations use."""
    return value.isoformat() if isinstance(value, date) else str(value) if isinstance(value, Decimal) else value


@st.composite
def cases(draw: st.DrawFn) -> tuple[Expectation, pa.DataType, list[Any], Callable[[Any], bool]]:
    """Return an expectation for a column, the type of the column, values, and the result of plain Python for each
    value."""
    kind = draw(st.sampled_from(list(VALUES)))
    finite = VALUES[kind].filter(lambda value: not isinstance(value, float) or math.isfinite(value))
    values = draw(st.lists(st.none() | VALUES[kind], max_size=20))
    what = draw(st.sampled_from(["not_null", *(() if pa.types.is_floating(kind) else ("in",)),
                                 *(() if kind in (pa.string(), pa.bool_()) else ("range",))]))  # fmt: skip
    if what == "not_null":
        return Expectation("e", "not_null", ("c",)), kind, values, lambda value: value is None
    if what == "in":
        known = draw(st.lists(finite | st.sampled_from([v for v in values if v is not None] or [None]), min_size=1))
        known = [value for value in known if value is not None] or [draw(finite)]
        e = Expectation("e", "in", ("c",), values=tuple(map(as_yaml, known)))
        return e, kind, values, lambda value: value is not None and value not in known
    seen = [v for v in values if v is not None and (not isinstance(v, float) or math.isfinite(v))]
    bound = st.sampled_from(seen) | finite if seen else finite
    bounds = sorted([draw(bound), draw(bound)])
    least, most = (each if draw(st.booleans()) else None for each in bounds)
    e = Expectation("e", "range", ("c",), least=as_yaml(least), most=as_yaml(most))
    return e, kind, values, lambda value: value is not None and not (
        (least is None or value >= least) and (most is None or value <= most) and value == value
    )  # fmt: skip


@UNTIMED
@given(cases(), st.integers(0, 3))
def test_single_values(case: tuple[Expectation, pa.DataType, list[Any], Callable[[Any], bool]], skipped: int) -> None:
    e, kind, values, fails = case
    if e.kind == "range" and e.least is e.most is None:
        return
    check(e, pa.schema([("c", kind)]))
    found = failing(e, kind)(pa.array([None] * skipped + values, kind).slice(skipped))
    assert found.null_count == 0
    assert found.to_pylist() == [fails(value) for value in values]


@UNTIMED
@given(
    st.lists(st.none() | TEXTS),
    st.sampled_from(["a*", "a|b", "(?i)a.?", "", r"\\+", "[^a]", "é{2}", r"a\n", "(a)(b)?"]),
)
def test_patterns_are_of_whole_values(values: list[str | None], pattern: str) -> None:
    found = failing(Expectation("e", "pattern", ("c",), pattern=pattern), pa.string())(pa.array(values, pa.string()))
    assert found.to_pylist() == [value is not None and re.fullmatch(pattern, value) is None for value in values]


def test_not_a_number_is_in_no_range() -> None:
    found = failing(Expectation("e", "range", ("c",), least=-1e300), pa.float64())(pa.array([math.nan, math.inf, None]))
    assert found.to_pylist() == [True, False, False]


COLUMNS = pa.schema([
    ("n", pa.int8()), ("big", pa.int64()), ("x", pa.float64()), ("price", PRICE), ("day", pa.date32()), ("at", ZONED),
    ("text", pa.string()), ("raw", pa.binary()), ("flag", pa.bool_()), ("tags", pa.list_(pa.string())),
    ("deep", pa.struct([("a", pa.list_(pa.int32()))])), ("flat", pa.struct([("a", pa.int32())])),
])  # fmt: skip


@pytest.mark.parametrize(
    ("expectation", "text"),
    [
        (Expectation("e", "range", ("text",), least=1), "range: column 'text' is STRING, but 'range' needs numbers, dates or"),
        (Expectation("e", "range", ("flag",), least=0), "range: column 'flag' is BOOLEAN"),
        (Expectation("e", "range", ("n",), least=-1000), "-1000 is not a valid value, because column 'n' is TINYINT: give a whole"),
        (Expectation("e", "range", ("n",), least=1.5), "1.5 is not a valid value, because column 'n' is TINYINT"),
        (Expectation("e", "range", ("n",), least=True), "True is not a valid value, because column 'n' is TINYINT"),
        (Expectation("e", "range", ("x",), most=math.inf), "inf is not a valid value, because column 'x' is DOUBLE: give a finite"),
        (Expectation("e", "range", ("price",), most="0.001"), "'0.001' is not a valid value, because column 'price' is DECIMAL(9,2)"),
        (Expectation("e", "range", ("price",), most="much"), "'much' is not a valid value, because column 'price' is DECIMAL(9,2)"),
        (Expectation("e", "range", ("day",), most="today"), "'today' is not a valid value, because column 'day' is DATE: give a date"),
        (Expectation("e", "range", ("at",), least=7), "7 is not a valid value, because column 'at' is TIMESTAMP: give a time such"),
        (Expectation("e", "range", ("big",), least=3, most=2), "range: min 3 of column 'big' is above its max 2"),
        (Expectation("e", "in", ("x",), values=(1.0,)), "in: column 'x' is DOUBLE, but 'in' needs text, whole numbers"),
        (Expectation("e", "in", ("tags",), values=("a",)), "in: column 'tags' is ARRAY<STRING>"),
        (Expectation("e", "in", ("text",), values=("a", 7)), "7 is not a valid value, because column 'text' is STRING: give text, in"),
        (Expectation("e", "pattern", ("n",), pattern="a"), "pattern: column 'n' is TINYINT, but 'pattern' needs text"),
        (Expectation("e", "pattern", ("raw",), pattern="a"), "pattern: column 'raw' is BINARY, but 'pattern' needs text"),
        (Expectation("e", "pattern", ("text",), pattern="a(?=b)"),
         "pattern: 'a(?=b)' of column 'text' "
         "is not a valid RE2 regular expression"),
        (Expectation("e", "pattern", ("text",), pattern="a)(b"),
         "pattern: 'a)(b' of column 'text' "
         "is not a valid RE2 regular expression"),
        (Expectation("e", "pattern", ("text",), pattern=r"\Qa"),
         r"pattern: '\\Qa' of column 'text' "
         "is not a valid RE2 regular expression"),
        (Expectation("e", "unique", ("n", "tags")), "unique: column 'tags' is ARRAY<STRING>, but keys with arrays"),
        (Expectation("e", "unique", ("deep",)), "unique: column 'deep' is STRUCT<a: ARRAY<INT>>, but keys with arrays"),
    ],
)  # fmt: skip
def test_what_a_column_cannot_have(expectation: Expectation, text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        check(expectation, COLUMNS)


def test_what_a_column_can_have() -> None:
    for name in COLUMNS.names:
        check(Expectation("e", "not_null", (name,)), COLUMNS)
    check(Expectation("e", "unique", ("n", "flat", "raw", "x")), COLUMNS)
    check(Expectation("e", "range", ("at",), least="2026-01-31T14:00", most="2026-01-31T15:00+01:00"), COLUMNS)
    check(Expectation("e", "range", ("price",), least=0.1, most=10), COLUMNS)


def test_digest_is_of_what_fails_alone() -> None:
    e = Expectation("e", "in", ("c",), values=("a", "b"))
    assert e.digest == Expectation("other", "in", ("c",), "error", ("b", "a")).digest
    others = [
        Expectation("e", "in", ("c",), values=("a",)),
        Expectation("e", "in", ("d",), values=("a", "b")),
        Expectation("e", "not_null", ("c",)),
        Expectation("e", "range", ("c",), least=1),
        Expectation("e", "range", ("c",), most=1),
        Expectation("e", "pattern", ("c",), pattern="1"),
        Expectation("e", "in", ("c",), values=("1",)),
        Expectation("e", "in", ("c",), values=(1,)),
    ]
    assert len({e.digest, *(other.digest for other in others)}) == 9
