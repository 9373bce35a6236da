"""Which queries of derived tables are accepted, and which are refused because groups could not be computed separately."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from platform_assets.model.derived import DerivedDeclaration, DerivedRef
from platform_assets.model.tables import StateRef, TableRef
from platform_assets.windows.derive import expressions, joins, query
from platform_assets.windows.derive.expressions import QueryError
from platform_assets.windows.derive.query import Query

FLIGHTS = TableRef("decoded", "flights")
DAY = {"day": "date(time_hour)"}
WINDOW = {"window": "window"}


def parsed(sql: str, by: Mapping[str, str] = DAY) -> Query:
    return query.parsed(DerivedDeclaration(DerivedRef("x"), by, sql))


@pytest.mark.parametrize(
    ("sql", "by"),
    [
        ("SELECT date(f.time_hour) AS day, f.carrier, count(*) AS n FROM decoded.flights f GROUP BY ALL", DAY),
        ("SELECT DATE(time_hour) AS day, count(*) AS n FROM decoded.flights GROUP BY date(flights.time_hour)", DAY),
        ("SELECT date(time_hour) AS day, count(*) AS n FROM decoded.flights GROUP BY day", DAY),
        ("SELECT date(time_hour) AS day, count(*) AS n FROM decoded.flights GROUP BY 1", DAY),
        ("SELECT CAST(time_hour AS DATE) AS day, a FROM decoded.flights WHERE a > 1", DAY),
        ("SELECT DISTINCT date(time_hour) AS day FROM decoded.flights LEFT ANTI JOIN raw.x USING (a)", DAY),
        ("SELECT date(time_hour) AS day, rank() OVER (PARTITION BY date(time_hour), a ORDER BY b) AS r FROM decoded.flights", DAY),
        ("SELECT * FROM decoded.flights", WINDOW),
        ("SELECT f.* FROM decoded.flights f JOIN raw.planes p ON f.a = p.a", WINDOW),
        ("SELECT window, max(l) AS m FROM (SELECT window, lag(a) OVER (PARTITION BY window ORDER BY b) AS l FROM decoded.flights) "
         "GROUP BY window", WINDOW),
        ("WITH a AS (SELECT *, date(time_hour) AS d FROM decoded.flights) SELECT d AS day, max(x) AS m FROM a GROUP BY d", DAY),
        ("SELECT date(time_hour) AS day, (SELECT max(a) FROM raw.o) AS m FROM decoded.flights", DAY),
        ("SELECT date(time_hour) AS day, part FROM decoded.flights LATERAL VIEW explode(parts) p AS part", DAY),
        ("SELECT date(time_hour) AS day, 'rand()' AS a, `now` FROM decoded.flights -- rand()", DAY),
        ("SELECT window, unix_timestamp(time_hour) AS u, f.user FROM decoded.flights f WHERE CAST(a AS STRING) = 'today'", WINDOW),
        ("SELECT window, 'now' AS text, DATE 'epoch' AS d, DATE '2026-01-01' AS e FROM decoded.flights", WINDOW),
        ("SELECT f.window FROM decoded.flights f JOIN (SELECT * FROM raw.x ORDER BY a LIMIT 3) x USING (b)", WINDOW),
        ("SELECT x.window FROM ((SELECT * FROM decoded.flights)) x CROSS JOIN raw.o o", WINDOW),
        ("WITH a AS (WITH a AS (SELECT * FROM decoded.flights) SELECT * FROM a) SELECT window FROM a", WINDOW),
        ("WITH o AS (SELECT 1 AS n), a AS (SELECT * FROM decoded.flights CROSS JOIN o) SELECT window FROM a JOIN o ON a.n = n",
         WINDOW),
        ("SELECT customer['id'] AS k, a FROM decoded.flights", {"k": "customer['id']"}),
        ("SELECT pmod(hash(a), 8) AS k, a FROM decoded.flights", {"k": "pmod(hash(a), 8)"}),
    ],
)  # fmt: skip
def test_a_query_that_keeps_groups_apart_is_accepted(sql: str, by: Mapping[str, str]) -> None:
    assert parsed(sql, by).driving == FLIGHTS


@pytest.mark.parametrize(
    ("sql", "by", "line", "message"),
    [
        ("SELECT a a a FROM x", DAY, 1, "not valid SQL"),
        ("DROP TABLE x", DAY, 1, "must be one SELECT"),
        ("SELECT 1; SELECT 2", DAY, 1, "must be one SELECT"),
        ("SELECT a\nFROM x", DAY, 2, "x is not a table of the lake"),
        ("SELECT a FROM parquet.`/etc`", DAY, 1, "is not a table of the lake"),
        ("SELECT date(time_hour) AS day,\n rand() AS n FROM decoded.flights", DAY, 2, "rand"),
        ("SELECT date(time_hour) AS day,\n\n CURRENT_DATE AS n FROM decoded.flights", DAY, 3, "current_date"),
        ("SELECT date(time_hour) AS day, count(*) AS n FROM decoded.flights GROUP BY a", DAY, 1, "GROUP BY must contain"),
        ("SELECT date(time_hour) AS day, sum(a) AS n FROM decoded.flights", DAY, 1, "without GROUP BY"),
        ("SELECT date(time_hour) AS day, a FROM decoded.flights LIMIT 3", DAY, 1, "LIMIT"),
        ("SELECT date(time_hour) AS day, sum(a) OVER () AS s FROM decoded.flights", DAY, 1, "PARTITION BY"),
        ("SELECT date(time_hour) AS day, sum(a) OVER w AS s FROM decoded.flights WINDOW w AS (ORDER BY a)", DAY, 1, "not valid SQL"),
        ("SELECT date(time_hour) AS day, a FROM decoded.flights FULL JOIN raw.x USING (a)", DAY, 1, "FULL JOIN"),
        ("SELECT date(p.time_hour) AS day FROM decoded.flights f JOIN raw.x p USING (a)", DAY, 1, "no column day"),
        ("SELECT date(time_hour) AS d FROM decoded.flights", DAY, 1, "no column day"),
        ("SELECT a AS day FROM decoded.flights", DAY, 1, "no column day"),
        ("SELECT date(time_hour) AS day FROM decoded.flights UNION SELECT date(a) FROM raw.b", DAY, 1, "UNION"),
        ("SELECT window\nFROM decoded.flights WHERE a >\n(SELECT max(a) FROM decoded.flights)", WINDOW, 3, "more than once"),
        ("WITH a AS (SELECT * FROM decoded.flights) SELECT a.window FROM a JOIN a b USING (c)", WINDOW, 1, "only once"),
        ("WITH a AS (SELECT * FROM decoded.flights LIMIT 3) SELECT window FROM a", WINDOW, 1, "LIMIT"),
        ("SELECT date(time_hour) AS day, count(*) AS n FROM decoded.flights GROUP BY CUBE(1)", DAY, 1, "CUBE"),
        ("SELECT date(time_hour) AS day FROM decoded.flights TABLESAMPLE (10 ROWS)", DAY, 1, "sample"),
        ("SELECT date(time_hour) AS day FROM decoded.flights VERSION AS OF 3", DAY, 1, "version"),
        ("SELECT day FROM derived.x", DAY, 1, "reads derived/x itself"),
        ("(SELECT window, a FROM decoded.flights) ORDER BY a LIMIT 3", WINDOW, 1, "LIMIT|ORDER"),
        ("(SELECT window, a FROM decoded.flights) LIMIT 3", WINDOW, 1, "LIMIT"),
        ("SELECT x.window FROM ((SELECT * FROM decoded.flights) ORDER BY a LIMIT 3) x", WINDOW, 1, "LIMIT|ORDER"),
        ("WITH a AS ((SELECT * FROM decoded.flights) ORDER BY b LIMIT 3) SELECT window FROM a", WINDOW, 1, "LIMIT|ORDER"),
        ("SELECT f.window FROM ((SELECT * FROM decoded.flights) f RIGHT JOIN raw.x x ON f.a = x.a) f", WINDOW, 1, "JOINS"),
        ("SELECT f.window FROM (decoded.flights f RIGHT JOIN raw.x x ON f.a = x.a) f", WINDOW, 1, "TABLE of"),
        ("SELECT window FROM ((SELECT * FROM decoded.flights) PIVOT (sum(a) FOR b IN (1, 2))) x", WINDOW, 1, "pivot"),
        ("SELECT window FROM ((SELECT * FROM decoded.flights) TABLESAMPLE (10 PERCENT)) x", WINDOW, 1, "sample"),
        ("SELECT f.window FROM decoded.flights f JOIN (SELECT * FROM raw.x) x PIVOT (sum(a) FOR b IN (1))", WINDOW, 1, "pivot"),
        ("SELECT window FROM ((SELECT window, a FROM decoded.flights) y(b, window)) x", WINDOW, 1, "new names"),
        ("SELECT window FROM decoded.flights\n|> LIMIT 3", WINDOW, 2, "not supported"),
        ("SELECT window FROM decoded.flights JOIN (SELECT a FROM raw.x LIMIT 3) USING (a)", WINDOW, 1, "without ORDER BY"),
        ("SELECT window,\n date 'today' AS d FROM decoded.flights", WINDOW, 2, "present time"),
        ("SELECT window, CAST('Now UTC' AS TIMESTAMP) AS d FROM decoded.flights", WINDOW, 1, "present time"),
        ("SELECT window FROM decoded.flights WHERE time_hour > 'yesterday'", WINDOW, 1, "present time"),
        ("SELECT window,\n `rand`() AS r FROM decoded.flights", WINDOW, 2, "rand"),
        ("SELECT window, system.builtin.`uuid`() AS r FROM decoded.flights", WINDOW, 1, "uuid"),
        ("SELECT window, aes_encrypt(a, b) AS r FROM decoded.flights", WINDOW, 1, "aes_encrypt"),
        ("SELECT window, unix_timestamp() AS r FROM decoded.flights", WINDOW, 1, "current_timestamp"),
        ("SELECT window, session_user AS r FROM decoded.flights", WINDOW, 1, "session_user"),
        ("SELECT x.f.window AS window FROM decoded.flights f JOIN raw.x x USING (a)", WINDOW, 1, "no column window"),
        ("SELECT x.f.* FROM decoded.flights f JOIN raw.x x USING (a)", WINDOW, 1, "no column window"),
        ("SELECT window FROM x JOIN (WITH x AS (SELECT 1) SELECT * FROM x)", WINDOW, 1, "x is not a table of the lake"),
        ("SELECT window FROM decoded.flights JOIN x JOIN (WITH x AS (SELECT 1) SELECT * FROM x)", WINDOW, 1, "x is not a table"),
        ("WITH a AS (SELECT * FROM b), b AS (SELECT * FROM decoded.flights) SELECT window FROM a", WINDOW, 1, "b is not a table"),
    ],
)  # fmt: skip
def test_a_query_that_may_mix_groups_is_refused_with_its_line(
    sql: str, by: Mapping[str, str], line: int, message: str
) -> None:
    with pytest.raises(QueryError, match=message) as refused:
        parsed(sql, by)
    assert refused.value.line == line


@pytest.mark.parametrize(
    "text",
    ["rand()", "count(*)", "f.a", "(SELECT 1)", "a b c +", "*", "lag(a) OVER (ORDER BY b)", "window(a, '1 hour')", "explode(a)",
     "session_window(a, '1 hour')", "stack(2, a, b)", "inline(a)", "json_tuple(a, 'b')", "`rand`()", "a COLLATE UTF8_LCASE",
     "my_udf(a)", "a IN (SELECT 1)", "date 'now'", "a AS b", "", "transform(a, x -> x)"],
)  # fmt: skip
def test_by_must_be_an_expression_over_one_row(text: str) -> None:
    with pytest.raises(QueryError, match="`by: day`"):
        parsed("SELECT date(time_hour) AS day FROM decoded.flights", {"day": text})


PLANES = StateRef("state", "planes")
TAIL = (("tailnum", "tailnum"),)


@pytest.mark.parametrize(
    ("joined", "keyed"),
    [
        ("LEFT JOIN state.planes p USING (tailnum)", [TAIL]),
        ("LEFT JOIN state.planes USING (tailnum, year)", [(*TAIL, ("year", "year"))]),
        ("JOIN state.planes p ON p.code = f.tailnum", [(("tailnum", "code"),)]),
        ("LEFT ANTI JOIN state.planes p ON (f.a <=> p.b AND f.n > p.n) AND f.c = p.d", [(("a", "b"), ("c", "d"))]),
        ("JOIN decoded.other o ON o.x = f.x JOIN state.planes p ON F.Tailnum = P.Tailnum", [(("Tailnum", "Tailnum"),)]),
        ("JOIN state.planes p ON f.a = p.k LEFT JOIN state.planes q ON f.b = q.k", [(("a", "k"),), (("b", "k"),)]),
        # The text does not show which rows of the driving table see a row of the state.
        ("JOIN state.planes p ON tailnum = code", None),
        ("JOIN state.planes p ON f.tailnum = lower(p.tailnum)", None),
        ("JOIN state.planes p ON f.tailnum = p.tailnum OR f.a = p.a", None),
        ("JOIN state.planes p ON NOT (f.tailnum = p.tailnum)", None),
        ("JOIN state.planes p ON f.tailnum.x = p.tailnum", None),
        ("JOIN decoded.other o ON o.x = f.x JOIN state.planes p ON o.tailnum = p.tailnum", None),
        ("JOIN decoded.other o JOIN state.planes p ON o.x = p.x ON f.tailnum = p.tailnum", None),
        ("JOIN state.planes AS p (tailnum, maker) ON f.tailnum = p.tailnum", None),
        ("JOIN state.planes AS p (tailnum, maker) USING (tailnum)", None),
        (", decoded.other o JOIN state.planes p USING (tailnum)", None),
        ("NATURAL JOIN state.planes p", None),
        ("CROSS JOIN state.planes p", None),
        ("JOIN (SELECT * FROM state.planes) p ON f.tailnum = p.tailnum", None),
        ("JOIN state.planes p ON f.tailnum = p.tailnum WHERE f.a > (SELECT max(a) FROM state.planes)", None),
        ("JOIN state.planes p ON f.tailnum = p.tailnum JOIN state.planes q ON p.owner = q.owner", None),
    ],
)  # fmt: skip
def test_joins_with_a_state_by_equal_columns_are_known(joined: str, keyed: list[object] | None) -> None:
    found = parsed(f"SELECT f.window FROM decoded.flights f {joined}", WINDOW)
    assert PLANES in found.inputs
    assert found.keyed == ({} if keyed is None else {PLANES: tuple(keyed)})


def test_only_joins_next_to_the_driving_table_are_known() -> None:
    inner = "SELECT window, tailnum FROM decoded.flights GROUP BY ALL"
    assert parsed(f"SELECT x.window FROM ({inner}) x JOIN state.planes p ON x.tailnum = p.tailnum", WINDOW).keyed == {}
    inner = "SELECT f.window, p.maker FROM decoded.flights f JOIN state.planes p USING (tailnum)"
    assert parsed(f"SELECT window, max(maker) AS m FROM ({inner}) GROUP BY 1", WINDOW).keyed == {PLANES: (TAIL,)}
    # Only states are compared row by row.
    assert parsed("SELECT f.window FROM decoded.flights f JOIN raw.planes p USING (tailnum)", WINDOW).keyed == {}


@pytest.mark.parametrize(
    ("select", "reads_all"),
    [("window, count(*) AS n", False), ("window, f.*", True), ("window, count(p.*) AS n", True), ("*", True)],
)
def test_a_query_with_a_star_reads_all_columns(select: str, reads_all: bool) -> None:
    sql = f"SELECT {select} FROM decoded.flights f JOIN state.planes p USING (tailnum)"
    assert parsed(sql + (" GROUP BY window" if "count" in select else ""), WINDOW).reads_all == reads_all


@pytest.mark.parametrize(
    ("column", "is_named"),
    [("MAKER", True), ("maker", True), ("a`b", True), ("ö", True), ("model", False)],
)
def test_names_in_the_text_are_found(column: str, is_named: bool) -> None:
    assert joins.is_named(column, "SELECT p.Maker, `a``b` FROM x", "date(t)") == is_named


def test_columns_in_by_differ_not_only_in_case() -> None:
    with pytest.raises(QueryError, match="`by` has the column 'Day' twice"):
        parsed("SELECT b AS day, count(*) AS n FROM decoded.flights GROUP BY b", {"Day": "a", "day": "b"})


def test_a_query_with_too_many_levels_is_refused() -> None:
    with pytest.raises(QueryError, match="too deeply"):
        parsed(f"SELECT window, {'(' * 500}a{')' * 500} AS x FROM decoded.flights", WINDOW)


def test_a_field_of_a_struct_is_named_in_the_form_that_by_accepts() -> None:
    with pytest.raises(QueryError, match=r"customer\['address'\]\['zip'\]"):
        parsed("SELECT 1 AS k FROM decoded.flights", {"k": "customer.address.zip"})


def test_names_of_tables_become_views_and_lines_stay() -> None:
    found = parsed(
        "SELECT window,\n 'decoded.flights' AS text -- decoded.flights\nFROM decoded . `my-topic` JOIN raw.o p ON `my-topic`.a = p.a",
        WINDOW,
    )
    assert found.inputs == (TableRef("decoded", "my-topic"), TableRef("raw", "o"))
    assert found.with_views(dict(zip(found.inputs, ("v`1", "v2"), strict=True))) == (
        "SELECT window,\n 'decoded.flights' AS text -- decoded.flights\nFROM `v``1` AS `my-topic` JOIN `v2` p ON `my-topic`.a = p.a"
    )


def test_aggregates_that_depend_on_the_order_are_named() -> None:
    (warning,) = parsed("SELECT window, first(a) AS a FROM decoded.flights GROUP BY 1", WINDOW).warnings
    assert warning.startswith("first depends on the order")


def test_lineage_names_the_columns_of_each_result_column() -> None:
    found = parsed(
        "SELECT date(f.time_hour) AS day, p.maker, sum(f.a - f.b) AS s FROM decoded.flights f JOIN raw.planes p USING (t) GROUP BY ALL"
    )
    planes = TableRef("raw", "planes")
    assert query.lineage(found) == {
        "day": [(FLIGHTS, "time_hour")],
        "maker": [(planes, "maker")],
        "s": [(FLIGHTS, "a"), (FLIGHTS, "b")],
    }
    assert query.lineage(parsed("SELECT * FROM decoded.flights", WINDOW)) == {}


@pytest.mark.parametrize(
    ("select", "warned"),
    [
        ("sum(CAST(dep_delay AS DOUBLE))", True),
        ("avg(dep_delay / 60)", True),
        ("stddev(dep_delay)", True),
        ("corr(dep_delay, arr_delay)", True),
        ("percentile_approx(dep_delay, 0.5)", True),
        ("sum(dep_delay)", False),
        ("avg(CAST(dep_delay AS DECIMAL(20, 6)))", False),
        ("max(dep_delay / 60)", False),
    ],
)
def test_aggregates_of_floating_point_numbers_are_warned_about(select: str, warned: bool) -> None:
    sql = f"SELECT date(time_hour) AS day, {select} AS x FROM decoded.flights GROUP BY 1"
    found = parsed(sql).warnings
    assert any("floating-point" in text for text in found) == warned, found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("carrier", ("carrier", "same")),
        ("(`my column`)", ("my column", "same")),
        ("date(time_hour)", ("time_hour", "date")),
        ("CAST((time_hour) AS DATE)", ("time_hour", "date")),
        ("to_date(time_hour)", ("time_hour", "date")),
        ("time_hour::date", ("time_hour", "date")),
        ("date_trunc('hour', time_hour)", ("time_hour", "hour")),
        ("date_trunc('DAY', time_hour)", ("time_hour", "day")),
        ("to_date(text, 'dd.MM.yyyy')", None),
        ("date_trunc('month', time_hour)", None),
        ("trunc(time_hour, 'MM')", None),
        ("hour(time_hour)", None),
        ("CAST(n AS STRING)", None),
        ("customer['id']", None),
        ("date(customer['at'])", None),
        ("lower(carrier)", None),
        ("-n", None),
        ("date(date_trunc('hour', time_hour))", None),
        ("1", None),
    ],
)
def test_functions_that_never_decrease_are_recognized(expression: str, expected: tuple[str, str] | None) -> None:
    assert expressions.never_decreasing(expressions.by_expression("x", expression)) == expected
