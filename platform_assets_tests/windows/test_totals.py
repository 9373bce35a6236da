"""Derived tables that keep totals by their difference. DuckDB computes the expected totals from the source rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from platform_assets.engines import totals as queries
from platform_assets.errors import ConfigurationError
from platform_assets.lake.location import Folder
from platform_assets.model.derived import DerivedDeclaration, DerivedRef, Totals
from platform_assets.windows.derive import checking, totals
from platform_assets.windows.derive.deriving import Derived, Updater
from platform_assets_tests.conftest import SEED
from platform_assets_tests.support.derived_lake import Flights, Planes, flights, judged, key, planes, rows_of

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

Connection = Callable[[], "SparkSession"]

PAIRS = DerivedDeclaration(
    DerivedRef("pairs"),
    {"tailnum": "tailnum"},
    """
    SELECT tailnum, item, explode(items) AS other
    FROM (
      SELECT tailnum, item, collect_set(item) OVER (PARTITION BY tailnum) AS items
      FROM (SELECT tailnum, coalesce(carrier, 'none') AS item FROM decoded.flights GROUP BY ALL) AS kept
    ) AS both
    """,
    totals=Totals("planes"),
)
EXPECTED_PAIRS = """
    WITH kept AS (SELECT DISTINCT tailnum, coalesce(carrier, 'none') AS item FROM flights)
    SELECT a.item, b.item, count(*) FROM kept a JOIN kept b ON a.tailnum IS NOT DISTINCT FROM b.tailnum GROUP BY ALL
"""
DELAYS = DerivedDeclaration(
    DerivedRef("delays"),
    {"window": "window"},
    "SELECT window, date(time_hour) AS day, carrier, dep_delay, CAST(dep_delay AS DECIMAL(5, 2)) / CAST(4 AS DECIMAL(1)) AS quarters\n"
    "FROM decoded.flights",
    totals=Totals("flights", ("dep_delay", "quarters")),
)
EXPECTED_DELAYS = """
    SELECT CAST(time_hour AS DATE), carrier, count(*), CAST(coalesce(sum(dep_delay), 0) AS BIGINT),
      coalesce(sum(dep_delay), 0) / 4
    FROM flights GROUP BY ALL
"""
MAKERS = DerivedDeclaration(
    DerivedRef("makers"),
    {"window": "window"},
    "SELECT f.window, p.maker, p.seats FROM decoded.flights f LEFT JOIN state.planes p USING (tailnum)",
    totals=Totals("flights", ("seats",)),
)
EXPECTED_MAKERS = """
    SELECT maker, count(*), CAST(coalesce(sum(seats), 0) AS BIGINT) FROM flights LEFT JOIN planes USING (tailnum) GROUP BY ALL
"""


def run(lake: Flights, declared: DerivedDeclaration, connection: Connection, **more: Any) -> Derived:
    return Updater(lake.lake, declared, connection).run("run", **more)


def plain(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows whose numbers have one type."""
    return sorted((tuple(float(v) if isinstance(v, Decimal) else v for v in row) for row in rows), key=repr)


@pytest.mark.spark
def test_totals_change_by_what_the_changed_groups_add(tmp_path: Path, connection: Connection) -> None:
    seed, lake = random.Random(SEED), Flights(tmp_path)
    for number in range(2):
        lake.load(number, flights(seed, 12))
    assert run(lake, PAIRS, connection).made.derivation.because == "the table is new"
    assert rows_of(lake.lake, "pairs") == judged(EXPECTED_PAIRS, flights=lake.table())

    lake.load(
        2, [row | {"tailnum": "N1"} for row in flights(seed, 9)] + [row | {"tailnum": "N9"} for row in flights(seed, 9)]
    )
    lake.load(1, [row | {"tailnum": "N1"} for row in lake.windows[key(1)][:2]])
    done = run(lake, PAIRS, connection).made
    assert done.derivation.extent == "groups", done.derivation.because
    assert rows_of(lake.lake, "pairs") == judged(EXPECTED_PAIRS, flights=lake.table()), SEED
    assert run(lake, PAIRS, connection).made == done
    assert checking.compare(lake.lake, PAIRS, connection, done, seed="seed").is_equal


@pytest.mark.long
@pytest.mark.spark
def test_a_row_is_gone_with_the_last_row_that_it_counts(
    tmp_path: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed, lake = random.Random(SEED), Flights(tmp_path)
    for number in range(3):
        lake.load(number, flights(seed, 12))
    run(lake, PAIRS, connection)
    for number in range(3):
        lake.load(number, [])
    assert run(lake, PAIRS, connection).made.derivation.extent == "groups"
    assert rows_of(lake.lake, "pairs") == []
    monkeypatch.setattr(checking, "MOST_REBUILT", -1)
    made = checking.newest(lake.lake, PAIRS)
    assert made is not None
    found = checking.compare(lake.lake, PAIRS, connection, made, seed="seed")
    assert (found.is_equal, found.is_rebuilt) == (True, False)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("name", ["pairs", "delays", "makers"])
def test_incremental_totals_equal_a_full_rebuild(tmp_path: Path, connection: Connection, name: str) -> None:
    declared, judge = {
        "pairs": (PAIRS, EXPECTED_PAIRS),
        "delays": (DELAYS, EXPECTED_DELAYS),
        "makers": (MAKERS, EXPECTED_MAKERS),
    }[name]
    seed, lake, fleet, extents = random.Random(SEED), Flights(tmp_path), Planes(tmp_path), list[str]()
    for number in range(10):
        if number in (0, 4):
            fleet.fold(planes(seed, fleet.rows))
        for _ in range(seed.randrange(1, 3)):
            step, at = seed.choice(["load", "load", "load", "erase", "expire", "compact"]), seed.randrange(4)
            if step == "compact":
                lake.compact()
            elif step == "expire" and key(at) in lake.windows:
                lake.expire([at])
            elif step == "erase" and key(at) in lake.windows:
                lake.erase(at, lake.windows[key(at)][1:])
            else:
                lake.load(at, flights(seed, seed.randrange(9)))
        done = run(lake, declared, connection).made
        extents.append(done.derivation.because or done.derivation.extent)
        assert plain(rows_of(lake.lake, declared.table.short)) == plain(
            judged(judge, flights=lake.table(), planes=fleet.table())
        ), (SEED, number, extents)
    assert "groups" in extents, SEED
    assert checking.compare(lake.lake, declared, connection, done, seed=None).is_equal
    assert run(lake, declared, connection, whole=True).made.derivation.whole == done.derivation.whole


@pytest.mark.long
@pytest.mark.spark
def test_totals_that_do_not_balance_are_computed_again(
    tmp_path: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed, lake = random.Random(1), Flights(tmp_path)
    lake.load(0, flights(seed, 9))
    run(lake, PAIRS, connection)
    lake.load(1, flights(seed, 9))
    changed = queries.TotalsQueries.changed
    monkeypatch.setattr(
        queries.TotalsQueries, "changed", lambda self, held, differences: changed(self, held, differences.limit(1))
    )
    done = run(lake, PAIRS, connection).made.derivation
    assert done.because == "the totals before and after do not differ by what the changed groups added"
    assert rows_of(lake.lake, "pairs") == judged(EXPECTED_PAIRS, flights=lake.table())


@pytest.mark.long
@pytest.mark.spark
def test_all_totals_are_computed_if_too_many_change_or_an_old_version_is_gone(
    tmp_path: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed, lake = random.Random(1), Flights(tmp_path)
    lake.load(0, flights(seed, 9))
    run(lake, DELAYS, connection)
    lake.load(0, flights(seed, 9))
    before = DeltaTable(lake.path, version=lake.version - 1).file_uris()
    for name in before:
        Path(name).unlink()
    assert "can no longer be computed" in run(lake, DELAYS, connection).made.derivation.because
    lake.load(1, flights(seed, 9))
    with monkeypatch.context() as patch:
        patch.setattr(queries, "MOST_DIFFERENCES", 1)
        assert run(lake, DELAYS, connection).made.derivation.because == "more than 1 rows of the table changed"
    assert plain(rows_of(lake.lake, "delays")) == plain(judged(EXPECTED_DELAYS, flights=lake.table()))


@pytest.mark.long
@pytest.mark.spark
def test_totals_that_are_wrong_or_cannot_be_computed_again_are_found(
    tmp_path: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed, lake = random.Random(1), Flights(tmp_path)
    lake.load(0, flights(seed, 9))
    run(lake, DELAYS, connection)
    lake.load(0, flights(seed, 9))
    differences = queries.TotalsQueries.differences
    with monkeypatch.context() as patch:
        patch.setattr(
            queries.TotalsQueries, "differences", lambda self, then, now: differences(self, then.limit(0), now)
        )
        done = run(lake, DELAYS, connection).made
    assert done.derivation.extent == "groups"
    for each in ("seed", None):
        assert "flights" in checking.compare(lake.lake, DELAYS, connection, done, seed=each).columns
    lake.load(1, flights(seed, 9))
    DeltaTable(lake.path).create_checkpoint()
    for number in range(lake.version):
        (lake.path / f"_delta_log/{number:020}.json").unlink()
    monkeypatch.setattr(checking, "MOST_REBUILT", -1)
    assert checking.compare(lake.lake, DELAYS, connection, done, seed="seed").unknown


@pytest.mark.spark
@pytest.mark.parametrize("value", [str(2**62), f"CAST('{'9' * 38}' AS DECIMAL(38))"])
def test_a_sum_that_is_too_large_is_an_error_without_ansi_mode_too(connection: Connection, value: str) -> None:
    from pyspark.errors import PySparkException

    spark = connection()
    frame = spark.sql(f"SELECT 'a' AS window, 1 AS carrier, {value} AS late FROM range(2)")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with pytest.raises(PySparkException, match="the sum of 'late' has too many digits"):
            queries.TotalsQueries(Totals("n", ("late",)), ["window"]).of(frame).collect()
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("select", "given", "message"),
    [
        ("carrier, CAST(dep_delay AS DOUBLE) AS late", Totals("n", ("late",)), "'late' has the type double: cast it to BIGINT"),
        ("CAST(dep_delay AS DOUBLE) AS late", Totals("n"), "rows cannot be equal in 'late'"),
        ("carrier", Totals("n", ("late",)), "the query has no column 'late'"),
        ("carrier AS n", Totals("n"), "has a column 'n', which is the name for the number of rows"),
        ("dep_delay", Totals("n", ("dep_delay",)), "needs a column in addition to those in `by` and `sum`"),
    ],
)  # fmt: skip
def test_a_query_without_exact_totals_is_refused(
    connection: Connection, select: str, given: Totals, message: str
) -> None:
    frame = connection().createDataFrame([], "window string, carrier string, dep_delay int")
    with pytest.raises(ConfigurationError, match=message):
        queries.TotalsQueries(given, ["window"]).of(frame.selectExpr("window", *select.split(", ")))


@pytest.mark.parametrize("kind", ["float", "double", "string", "date"])
def test_a_sum_of_a_column_in_by_is_refused_too_unless_it_is_exact(kind: str) -> None:
    given = queries.TotalsQueries(Totals("n", ("Late",)), ["late"])
    with pytest.raises(ConfigurationError, match=f"'late' has the type {kind}: cast it to BIGINT"):
        given.keys(frame_of(late=kind, carrier="string"))
    for exact in ("long", "decimal(5,2)"):
        assert given.keys(frame_of(late=exact, carrier="string")) == ["carrier"]


def frame_of(**columns: str) -> Any:
    """Return something that has only the schema of a frame, so that no server is needed."""
    from pyspark.sql.types import StructType

    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    return SimpleNamespace(schema=StructType.fromJson({"type": "struct", "fields": fields}))


def test_files_balance_if_their_sums_differ_by_the_differences(tmp_path: Path) -> None:
    kind, given = pa.decimal128(38, 2), Totals("n", ("late",))

    def file(name: str, n: list[int], late: list[str]) -> str:
        pq.write_table(pa.table({"n": n, "late": pa.array(map(Decimal, late), kind)}), tmp_path / name)
        return name

    old, new = file("old", [1, 2], ["0.10", "9" * 33 + ".10"]), file("new", [4], ["9" * 33 + ".30"])
    due = pa.table({"n": [1], "late": pa.array([Decimal("0.10")], kind)})
    folder = Folder.at(tmp_path)
    assert totals.is_balanced(folder, given, [old], [new], due)
    assert not totals.is_balanced(folder, given, [], [new], due)
    gone = file("gone", [0, 4], ["0.00", "9" * 33 + ".30"])
    assert not totals.is_balanced(folder, given, [old], [gone], due)


def test_names_of_totals_are_checked() -> None:
    for names in (("a b",), ("n", ("N",))):
        with pytest.raises(ConfigurationError):
            Totals(*names)
    assert DerivedDeclaration(PAIRS.table, PAIRS.by, PAIRS.sql).digest != PAIRS.digest
