"""Which queries of derived tables are accepted, and which are refused because groups could not be computed separately."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from platform_assets.model.derived import DerivedDeclaration, DerivedRef
from platform_assets.model.tables import TableRef
from platform_assets.windows.derive import query
from platform_assets.windows.derive.query import Query, QueryError

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
    ],
)  # fmt: skip
def test_a_query_that_may_mix_groups_is_refused_with_its_line(
    sql: str, by: Mapping[str, str], line: int, message: str
) -> None:
    with pytest.raises(QueryError, match=message) as refused:
        parsed(sql, by)
    assert refused.value.line == line


@pytest.mark.parametrize(
    "text", ["rand()", "count(*)", "f.a", "(SELECT 1)", "a b c +", "*", "lag(a) OVER (ORDER BY b)"]
)
def test_by_must_be_an_expression_over_one_row(text: str) -> None:
    with pytest.raises(QueryError, match="`by: day`"):
        parsed("SELECT date(time_hour) AS day FROM decoded.flights", {"day": text})


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
