"""Columns of derived tables' queries: wrong ones are found from declared columns, and no query that Spark accepts is refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from platform_assets.model.derived import DerivedDeclaration, DerivedRef
from platform_assets.model.tables import TableRef
from platform_assets.windows.derive import query
from platform_assets.windows.derive.columns import Analysis, Columns, analysed
from platform_assets.windows.derive.query import Input

WINDOW = {"window": "window"}
FLIGHTS: Columns = {
    "time_hour": "TIMESTAMP", "carrier": "STRING", "dep_delay": "DOUBLE", "a": "INT", "parts": "ARRAY<STRING>", "n": "BIGINT",
    "customer": "STRUCT<id: INT, zip: STRING>", "m": "MAP<STRING, INT>", "window": "STRING", "tailnum": "STRING",
    "odd name": "STRING", "price": "DECIMAL(10, 2)", "odd_struct": "STRUCT<a b: INT>",
}  # fmt: skip
PLANES: Columns = {"tailnum": "STRING", "maker": "STRING", "a": "INT"}
INPUTS: dict[Input, Columns] = {
    TableRef("decoded", "flights"): FLIGHTS,
    TableRef("decoded", "my-topic.x"): FLIGHTS,
    TableRef("raw", "planes"): PLANES,
}


def found(sql: str, by: Mapping[str, str] = WINDOW) -> Analysis:
    return analysed(query.parsed(DerivedDeclaration(DerivedRef("x"), by, sql)), by, INPUTS)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT Window, A FROM decoded.flights WHERE CARRIER = 'x' AND `odd name` = 'y' AND odd_struct['a b'] > 1",
        "SELECT f.window, p.maker FROM decoded.flights f JOIN raw.planes p USING (tailnum)",
        "SELECT window, f._metadata.file_name, _metadata.file_path FROM decoded.flights f",
        "SELECT window, a AS b, b + 1 AS c, c * 2 AS d FROM decoded.flights",
        "SELECT window, f.customer.id, customer.zip, part FROM decoded.flights f LATERAL VIEW explode(parts) p AS part",
        "SELECT window, e.k, v FROM decoded.flights LATERAL VIEW explode(m) e AS k, v",
        "SELECT window, key, value FROM decoded.flights LATERAL VIEW explode(m) e",
        "SELECT window, transform(parts, x -> upper(x)) AS t, aggregate(parts, 0, (acc, y) -> acc + 1) FROM decoded.flights",
        "SELECT window, m.anything, m['k'] AS k FROM decoded.flights",
        "SELECT window, count(*) AS total FROM decoded.flights GROUP BY 1 HAVING total > 2 ORDER BY total",
        "SELECT window, (SELECT max(p.a) FROM raw.planes p WHERE p.tailnum = flights.tailnum) AS x FROM decoded.flights",
        "WITH w AS (SELECT *, a + 1 AS d FROM decoded.flights) SELECT window, max(d) AS m FROM w GROUP BY window",
        "SELECT window, posexplode(parts) AS (i, w) FROM decoded.flights",
        "SELECT window, struct(a, carrier) AS s, s.carrier FROM decoded.flights",
        "SELECT window, timestampdiff(DAY, time_hour, time_hour) AS d, timestampadd(HOUR, 1, time_hour) AS e FROM decoded.flights",
        "SELECT window, dateadd(DAY, 1, time_hour) AS e, extract(YEAR FROM time_hour) AS y FROM decoded.flights",
        "SELECT window, j.x FROM decoded.flights LATERAL VIEW inline(from_json(carrier, 'ARRAY<STRUCT<x: INT>>')) j",
        "SELECT window, x FROM decoded.flights LATERAL VIEW inline(from_json(carrier, 'ARRAY<STRUCT<x: INT>>')) j",
        "SELECT window, c0 FROM decoded.flights LATERAL VIEW json_tuple(carrier, 'a') j",
        "SELECT a, window FROM decoded.flights LEFT ANTI JOIN raw.planes USING (tailnum)",
        "SELECT window, v.col1 FROM decoded.flights CROSS JOIN (VALUES (1), (2)) v",
        "SELECT window, v.z FROM decoded.flights CROSS JOIN (VALUES (1), (2)) AS v(z)",
        "SELECT `my-topic.x`.window, a FROM decoded.`my-topic.x`",
        "SELECT window, sum(n) AS n FROM (SELECT window, count(*) AS n FROM decoded.flights GROUP BY window) GROUP BY window",
        "SELECT window, max(a) FILTER (WHERE carrier = 'x') AS m, max_by(carrier, a) AS b FROM decoded.flights GROUP BY ALL",
        "SELECT window, CASE WHEN a BETWEEN 1 AND 2 THEN carrier ELSE tailnum END AS c FROM decoded.flights",
        "SELECT f.* FROM decoded.flights f JOIN decoded.`my-topic.x` g ON f.a = g.a AND f.odd_struct = g.odd_struct",
        "SELECT f.window, u.o FROM decoded.flights f JOIN (SELECT maker AS o, tailnum FROM raw.planes UNION ALL SELECT 'b', 'c') u "
        "USING (tailnum)",
    ],
)  # fmt: skip
def test_a_query_that_spark_accepts_has_no_mistake(sql: str) -> None:
    assert found(sql).mistakes == ()


@pytest.mark.parametrize(
    ("sql", "line", "message"),
    [
        ("SELECT window,\n carrierr FROM decoded.flights", 2, "did you mean carrier"),
        ("SELECT f.window\nFROM decoded.flights f JOIN raw.planes p USING (tailnum)\nWHERE f.maker = 'x'", 3,
         "decoded/flights has no column 'maker'"),
        ("SELECT window FROM decoded.flights f LEFT ANTI JOIN raw.planes p\nON f.tailnum = p.tailnumm", 2, "did you mean tailnum"),
        ("SELECT window FROM decoded.flights\nWHERE EXISTS (SELECT 1 FROM raw.planes q WHERE q.tailnum = bad)", 2, "'bad'"),
        ("WITH w AS (SELECT window,\n delay FROM decoded.flights) SELECT window FROM w", 2, "'delay'"),
        ("WITH w AS (SELECT window FROM decoded.flights) SELECT window,\n w.delay FROM w", 2, "'delay'"),
        ("SELECT window, count(*) AS total FROM decoded.flights\nWHERE zzz > 1 GROUP BY 1\n", 2, "'zzz'"),
    ],
)  # fmt: skip
def test_an_unknown_column_is_a_mistake_with_its_line(sql: str, line: int, message: str) -> None:
    (mistake,) = found(sql).mistakes
    assert mistake.line == line
    assert message in mistake.message


@pytest.mark.parametrize(
    ("by", "message"), [("date(timehour)", "did you mean time_hour"), ("m", "cannot divide rows into groups")]
)
def test_by_needs_columns_that_can_divide_the_driving_table(by: str, message: str) -> None:
    (mistake,) = found(f"SELECT {by} AS k FROM decoded.flights", {"k": by}).mistakes
    assert mistake.line is None
    assert message in mistake.message


@pytest.mark.parametrize(
    ("select", "warned"),
    [("sum(dep_delay)", True), ("avg(f.dep_delay * 2)", True), ("sum(a)", False), ("sum(price)", False),
     ("sum(CAST(dep_delay AS DECIMAL(20, 2)))", False), ("max(dep_delay)", False),
     ("sum(a * 1.5)", False), ("sum(price * 1.5)", False), ("sum(CASE WHEN dep_delay > 1.5 THEN 1 ELSE 0 END)", False)],
)  # fmt: skip
def test_a_sum_of_a_floating_column_is_a_warning_with_its_line(select: str, warned: bool) -> None:
    warnings = found(f"SELECT window,\n {select} AS s FROM decoded.flights f GROUP BY window").warnings
    assert [w.line for w in warnings] == [2] * warned
    assert all("floating-point" in w.message for w in warnings)


def test_types_that_spark_decides_otherwise_do_not_warn() -> None:
    averages = "SELECT window, carrier, avg(price) AS x FROM decoded.flights GROUP BY ALL"
    assert found(f"SELECT window, sum(x) AS s FROM ({averages}) GROUP BY window").warnings == ()
    columns = found(averages).columns
    assert columns is not None
    assert columns["x"] == ""


def test_a_sum_of_a_floating_column_of_a_nested_query_is_a_warning() -> None:
    nested = "SELECT window, sum(x) AS s FROM (SELECT window, max(dep_delay) AS x FROM decoded.flights GROUP BY ALL) GROUP BY window"
    assert len(found(nested).warnings) == 1


def test_the_columns_of_the_result_are_known_with_their_types() -> None:
    sql = (
        "SELECT date(f.time_hour) AS Day, p.maker, sum(f.a) AS s, hash(f.a) AS h FROM decoded.flights f JOIN raw.planes p "
        "USING (tailnum) GROUP BY ALL"
    )
    columns = found(sql, {"day": "date(time_hour)"})
    assert columns.mistakes == ()
    assert columns.columns is not None
    assert list(columns.columns) == ["day", "maker", "s", "h"]
    assert [columns.columns[name] for name in ("day", "maker", "s")] == ["DATE", "STRING", "BIGINT"]


def test_a_table_with_unknown_columns_hides_what_cannot_be_known() -> None:
    sql = "SELECT f.window, o.anything, thing FROM decoded.flights f JOIN derived.o o ON f.a = o.a"
    assert found(sql) == Analysis(None)
    (mistake,) = found(sql.replace("f.a", "f.aa")).mistakes
    assert "decoded/flights has no column 'aa'" in mistake.message
