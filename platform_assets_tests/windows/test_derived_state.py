"""Derived tables that read state tables. Without Spark, DuckDB proves the rule by which groups are found; with it, whole runs."""

from __future__ import annotations

import functools
import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import duckdb
import pyarrow as pa
import pytest
import sqlglot

from platform_assets.engines.deriving import DerivingEngine, PinnedInput
from platform_assets.errors import InputMissingError
from platform_assets.lake import state_table
from platform_assets.lake.location import Folder
from platform_assets.ledger import decisions
from platform_assets.ledger.decisions import Decision
from platform_assets.model.derived import DerivedDeclaration, DerivedRef
from platform_assets.model.tables import StateRef, TableRef
from platform_assets.windows.derive import erased, joins, query, touched
from platform_assets.windows.derive.deriving import Updater
from platform_assets.windows.derive.freshness import input_versions, up_to_date
from platform_assets.windows.derive.query import Input, Query
from platform_assets_tests.conftest import SEED
from platform_assets_tests.support.derived_lake import PLANES as STATE
from platform_assets_tests.support.derived_lake import (
    Flights,
    Planes,
    flights,
    judged,
    key,
    planes,
    rows_of,
    sorted_rows,
)
from platform_assets_tests.support.made_changes import DAYS, MadeChanges, change

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

Connection = Callable[[], "SparkSession"]
PLANES, FLIGHTS = StateRef("state", "planes"), TableRef("decoded", "flights")
DAY, WINDOW = {"day": "CAST(time_hour AS DATE)"}, {"window": "window"}
_DAY = "CAST(f.time_hour AS DATE) AS day"
QUERIES = {
    "left": (DAY, f"SELECT {_DAY}, p.maker, count(*) AS n FROM decoded.flights f LEFT JOIN state.planes p USING (tailnum) "
             "GROUP BY ALL"),
    "inner": (DAY, f"SELECT {_DAY}, f.carrier, sum(p.seats) AS seats FROM decoded.flights f "
              "JOIN state.planes p ON p.seats > f.dep_delay AND (f.tailnum = p.tailnum) GROUP BY ALL"),
    "anti": (DAY, f"SELECT {_DAY}, f.tailnum FROM decoded.flights f LEFT ANTI JOIN state.planes p ON f.tailnum = p.tailnum"),
    "null safe": (DAY, f"SELECT {_DAY}, p.maker FROM decoded.flights f JOIN state.planes p ON f.dep_delay <=> p.seats"),
    "two": (DAY, f"SELECT {_DAY}, p.maker, q.tailnum AS other FROM decoded.flights f LEFT JOIN state.planes p USING (tailnum) "
            "LEFT JOIN state.planes q ON f.dep_delay = q.seats"),
    "nested": (DAY, f"SELECT day, max(n) AS n FROM (SELECT {_DAY}, p.maker, count(*) AS n FROM decoded.flights f "
               "JOIN state.planes p ON f.tailnum = p.tailnum GROUP BY ALL) GROUP BY day"),
    "ranked": (DAY, f"SELECT {_DAY}, p.seats, rank() OVER (PARTITION BY CAST(f.time_hour AS DATE) ORDER BY p.seats) AS r "
               "FROM decoded.flights f LEFT JOIN state.planes p ON f.tailnum = p.tailnum"),
    "window": (WINDOW, "SELECT f.window, p.maker FROM decoded.flights f LEFT JOIN state.planes p ON f.tailnum = p.tailnum"),
    "all columns": (DAY, f"SELECT {_DAY}, p.* FROM decoded.flights f JOIN state.planes p ON f.tailnum = p.tailnum"),
    "driving": ({"maker": "maker"}, "SELECT maker, count(*) AS n, max(seats) AS m FROM state.planes GROUP BY maker"),
}  # fmt: skip


def declared(name: str, table: str = "x") -> DerivedDeclaration:
    by, sql = QUERIES[name]
    return DerivedDeclaration(DerivedRef(table), by, sql)


@dataclass
class Judge:
    """DuckDB with two versions of both inputs: `flights_0` and `flights_1`, `planes_0` and `planes_1`. The groups that
    changes touch are found as in a run, by what the parser says about the query."""

    parsed: Query
    by: Mapping[str, str]
    tables: Mapping[str, pa.Table]

    def __post_init__(self) -> None:
        self.connection = duckdb.connect(config={"threads": 1})
        self.connection.execute("SET TimeZone = 'UTC'")
        for name, table in self.tables.items():
            self.connection.register(name, table)

    def rows(self, version: int, *, among: str = "true") -> list[tuple[Any, ...]]:
        """Return the query's rows, from the driving table's rows for which `among` is true."""
        names: dict[Input, str] = {
            ref: f"{ref.topic}_{version}" for ref in self.parsed.inputs if not isinstance(ref, DerivedRef)
        }
        driving = names[self.parsed.driving]
        self.connection.execute(f"CREATE OR REPLACE TEMP VIEW d AS SELECT * FROM {driving} WHERE {among}")
        (text,) = sqlglot.transpile(
            self.parsed.with_views({**names, self.parsed.driving: "d"}), read="spark", write="duckdb", identify=True
        )
        return sorted_rows(self.connection.execute(text).fetchall())

    def touched(self, windows: set[str]) -> set[tuple[Any, ...]]:
        """Return the groups that the changed windows, and the rows of planes that differ, touch."""
        by = ", ".join(f"{text.replace('window', chr(34) + 'window' + chr(34))}" for text in self.by.values())
        listed = ", ".join(f"'{each}'" for each in windows) or "''"
        texts = (self.parsed.text, *self.by.values())
        names = [
            name
            for name in self.tables["planes_0"].column_names
            if self.parsed.reads_all or joins.is_named(name, *texts)
        ]
        one, other = (f"(SELECT {', '.join(names)} FROM planes_{n})" for n in (0, 1))
        self.connection.execute(
            f"CREATE OR REPLACE TEMP TABLE changed AS ({one} EXCEPT ALL {other}) UNION ALL ({other} EXCEPT ALL {one})"
        )
        if self.parsed.driving == PLANES:
            return set(self.connection.execute(f"SELECT DISTINCT {by} FROM changed").fetchall())
        found = [f'SELECT {by} FROM flights_{n} WHERE "window" IN ({listed})' for n in (0, 1)]
        for pairs in self.parsed.keyed[PLANES]:
            equal = " AND ".join(f"f.{mine} IS NOT DISTINCT FROM changed.{theirs}" for mine, theirs in pairs)
            found.append(f"SELECT {by} FROM flights_1 f WHERE EXISTS (FROM changed WHERE {equal})")
        return set(self.connection.execute(" UNION ".join(found)).fetchall())

    def incremental(self, windows: set[str]) -> list[tuple[Any, ...]]:
        """Return the old version's rows of other groups, and the new version's rows of the groups that changes touch."""
        touched = self.touched(windows)
        # Each query has the columns of its groups first.
        kept = [row for row in self.rows(0) if row[: len(self.by)] not in touched]
        return sorted_rows([*kept, *self.rows(1, among=self._among(touched))])

    def incremental_totals(self, windows: set[str]) -> Counter[str]:
        """Return the numbers of equal rows, without their groups: those of the old version, less the old version's rows of the groups
        that changes touch, and with the new version's."""
        among = self._among(self.touched(windows))
        found = Counter(self.totals(self.rows(0)))
        found.subtract(self.totals(self.rows(0, among=among)))
        found.update(self.totals(self.rows(1, among=among)))
        return Counter({row: count for row, count in found.items() if count})

    def totals(self, rows: list[tuple[Any, ...]]) -> Counter[str]:
        """Return the numbers of equal rows, without their groups."""
        return Counter(repr(row[len(self.by) :]) for row in rows)

    def _among(self, touched: set[tuple[Any, ...]]) -> str:
        """Return the condition of rows of these groups."""
        # Other names than those of columns, which the condition would mean otherwise.
        names = [f"group_{number}" for number in range(len(self.by))]
        schema = pa.schema(list(zip(names, map(self._type, self.by.values()), strict=True)))
        rows = [dict(zip(names, row, strict=True)) for row in touched]
        self.connection.register("touched", pa.Table.from_pylist(rows, schema))
        equal = " AND ".join(
            f"{self._own(text)} IS NOT DISTINCT FROM {name}" for name, text in zip(names, self.by.values(), strict=True)
        )
        return f"EXISTS (FROM touched WHERE {equal})"

    def _own(self, text: str) -> str:
        """Return a `by` expression in DuckDB's SQL, in which WINDOW is a keyword."""
        return text.replace("window", '"window"')

    def _type(self, text: str) -> pa.DataType:
        return pa.date32() if "DATE" in text else pa.string()


def changed(seed: random.Random, before: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the rows of each window after up to two windows were loaded, loaded again, or expired."""
    now = dict(before)
    for _ in range(seed.randrange(3)):
        number = seed.randrange(4)
        now[key(number)] = flights(seed, seed.randrange(5))
        if seed.random() < 0.2:
            del now[key(number)]
    return now


@pytest.mark.parametrize("histories", [6, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", QUERIES)
def test_replacing_the_groups_that_changes_touch_gives_all_rows(tmp_path: Path, name: str, histories: int) -> None:
    by, sql = QUERIES[name]
    parsed = query.parsed(declared(name))
    lake, fleet, replaced = Flights(tmp_path), Planes(tmp_path), 0
    for number in range(histories):
        seed = random.Random(f"{SEED} {number}")
        tables, versions = dict[str, pa.Table](), list[dict[str, list[Any]]]()
        for version in (0, 1):
            lake.windows = changed(seed, versions[0]) if versions else {key(n): flights(seed, 6) for n in range(3)}
            fleet.rows = planes(seed, fleet.rows if version else [])
            versions.append(dict(lake.windows))
            tables |= {f"flights_{version}": lake.table(), f"planes_{version}": fleet.table()}
        windows = {each for each in {*versions[0], *versions[1]} if versions[0].get(each) != versions[1].get(each)}
        judge = Judge(parsed, by, tables)
        full = judge.rows(1)
        assert judge.incremental(windows) == full, (SEED, number, sql)
        assert judge.incremental_totals(windows) == judge.totals(full), (SEED, number, sql)
        replaced += full != judge.rows(0)
    # Few histories may have no change that matters.
    assert replaced > histories / 10 or histories < 100, SEED


def run(lake: Flights, name: str, connection: Connection, **more: Any) -> Any:
    return Updater(lake.lake, declared(name), connection).run("run", **more).made.derivation


LEFT = """
    SELECT CAST(time_hour AS DATE), maker, count(*) FROM flights LEFT JOIN planes USING (tailnum) GROUP BY ALL
"""


def expected(lake: Flights, fleet: Planes) -> list[tuple[Any, ...]]:
    return judged(LEFT, flights=lake.table(), planes=fleet.table())


@pytest.mark.spark
def test_a_changed_row_of_a_state_replaces_only_the_groups_that_see_it(tmp_path: Path, connection: Connection) -> None:
    lake, fleet = Flights(tmp_path), Planes(tmp_path)
    row = flights(random.Random(1), 1)[0]
    days = [row | {"time_hour": flight["time_hour"], "tailnum": name} for flight, name in zip(
        [each for each in flights(random.Random(2), 60) if each["time_hour"]], ["N1", "N2"] * 30, strict=False
    )]  # fmt: skip
    first = days[0]["time_hour"].date()
    # Only the first day has the plane N1.
    lake.load(0, [each | {"tailnum": "N1" if each["time_hour"].date() == first else "N2"} for each in days])
    with pytest.raises(InputMissingError, match="fold planes"):
        run(lake, "left", connection)
    both = [
        {"tailnum": name, "maker": "A", "seats": 1, "kafka_offset": number} for number, name in enumerate(("N1", "N2"))
    ]
    fleet.fold(both)
    run(lake, "left", connection)
    fleet.fold([both[0] | {"maker": "B"}, both[1]])
    assert up_to_date(lake.lake, declared("left"))[1] == ("state/planes",)
    done = run(lake, "left", connection)
    assert (done.extent, done.groups["count"], done.because) == ("groups", 1, "")
    assert rows_of(lake.lake, "x") == expected(lake, fleet)

    # A fold with the same values in the columns that the query reads, from newer records.
    fleet.fold([each | {"kafka_offset": 100, "seats": 9} for each in fleet.rows])
    assert run(lake, "left", connection).extent == "nothing"
    assert rows_of(lake.lake, "x") == expected(lake, fleet)


def test_changes_of_several_inputs_may_touch_no_group() -> None:
    none = pa.table({"day": pa.array([], pa.date32())})
    found = touched.together([none, none])
    assert found is not None
    assert found.equals(none)


@pytest.mark.spark
def test_rows_of_two_versions_differ_whatever_the_order_of_their_columns(connection: Connection) -> None:
    """A table that started over may have its columns in another order. A zero may have got a sign."""
    spark = connection()
    before = spark.createDataFrame(
        [("N1", "A", "B", 0.0), ("N2", "C", "D", 1.0)], "tailnum string, x string, y string, z double"
    )
    swapped = spark.createDataFrame(
        [("N1", "A", "B", 0.0), ("N2", "C", "D", 1.0)], "tailnum string, y string, x string, z double"
    )
    signed = spark.createDataFrame([("N1", "A", "B", -0.0), ("N2", "C", "D", 1.0)], before.schema)
    sql = (
        "SELECT f.window, p.x, p.y, CAST(p.z AS STRING) AS z FROM decoded.flights f JOIN state.planes p USING (tailnum)"
    )
    parsed = query.parsed(DerivedDeclaration(DerivedRef("x"), WINDOW, sql))
    for now, differing in ((before, set()), (swapped, {"N1", "N2"}), (signed, {"N1"})):
        versions: Any = SimpleNamespace(
            read_both=lambda old, new, frames=(before, now): (frames[old.version], frames[new.version]),
            differing=functools.partial(DerivingEngine.differing, cast("DerivingEngine", None)),
        )
        old, new = (PinnedInput("state/planes", Folder("x"), version) for version in (0, 1))
        assert {row["tailnum"] for row in touched._changed(versions, parsed, old, new).collect()} == differing


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("name", QUERIES)
def test_incremental_runs_with_a_state_equal_a_full_rebuild(tmp_path: Path, connection: Connection, name: str) -> None:
    seed, lake, fleet = random.Random(SEED), Flights(tmp_path), Planes(tmp_path)
    parsed, extents = query.parsed(declared(name)), list[str]()
    for number in range(8):
        for each, rows in changed(seed, lake.windows).items() if number else [(key(0), flights(seed, 20))]:
            if rows != lake.windows.get(each):
                lake.load(next(n for n in range(4) if key(n) == each), rows)
        if number == 0 or seed.random() < 0.8:
            fleet.fold(planes(seed, fleet.rows))
        done = run(lake, name, connection)
        extents.append(done.because or done.extent)
        tables = {"flights_1": lake.table(), "planes_1": fleet.table()}
        assert rows_of(lake.lake, "x") == Judge(parsed, QUERIES[name][0], tables).rows(1), (SEED, extents)
    # No reason to compute all rows but that the table was new.
    assert set(extents) <= {"the table is new", "groups", "nothing"}, SEED
    assert run(lake, name, connection, whole=True).whole == done.whole


@pytest.mark.long
@pytest.mark.spark
def test_all_rows_are_computed_if_a_states_change_is_not_known(tmp_path: Path, connection: Connection) -> None:
    seed, lake, fleet = random.Random(SEED), Flights(tmp_path), Planes(tmp_path)
    lake.load(0, flights(seed, 20))
    fleet.fold([{"tailnum": "N1", "maker": "old", "seats": 1, "kafka_offset": 6}])
    run(lake, "left", connection)
    fleet.fold([{"tailnum": "N1", "maker": "new", "seats": 1, "kafka_offset": 7}])
    fleet.forget()
    assert run(lake, "left", connection).because == "version 0 of state/planes can no longer be read"
    assert rows_of(lake.lake, "x") == expected(lake, fleet)
    other = DerivedDeclaration(
        DerivedRef("x"), DAY, "SELECT CAST(time_hour AS DATE) AS day, maker, count(*) AS n FROM decoded.flights f "
        "LEFT JOIN (SELECT * FROM state.planes) p ON f.tailnum = p.tailnum GROUP BY ALL",
    )  # fmt: skip
    Updater(lake.lake, other, connection).run("run")
    fleet.fold([row | {"maker": "newest"} for row in fleet.rows])
    done = Updater(lake.lake, other, connection).run("run").made.derivation
    assert done.because == "state/planes, which is joined, changed"
    assert rows_of(lake.lake, "x") == expected(lake, fleet)


@pytest.mark.long
@pytest.mark.spark
def test_folds_and_erasures_of_a_real_state_reach_a_derived_table(tmp_path: Path, connection: Connection) -> None:
    made = MadeChanges(tmp_path)
    both = DerivedDeclaration(
        DerivedRef("names"), {"name": "name"}, "SELECT name, count(*) AS n, max(id) AS newest FROM state.orders GROUP BY name"
    )  # fmt: skip

    def check(extent: str) -> None:
        made.state().fold()
        done = Updater(made.lake, both, connection).run("run").made.derivation
        rows = pa.table({n: [row[n] for row in made.live().values()] for n in ("id", "name")})
        assert done.extent == extent
        assert rows_of(made.lake, "names") == judged("SELECT name, count(*), max(id) FROM rows GROUP BY 1", rows=rows)

    made.load(DAYS[0], [change(number, DAYS[0], number, f"name {number % 3}") for number in range(9)])
    check("whole")
    made.load(DAYS[1], [change(1, DAYS[1], 9, "name 2"), change(3, DAYS[1], 10, None), change(20, DAYS[1], 11, "Jane")])
    check("groups")
    made.load(DAYS[1], [change(1, DAYS[1], 9, "name 2"), change(3, DAYS[1], 10, None)], erased=11)
    made.state().fold()
    now = made.lake.root.time()
    decisions.record(made.lake, Decision("orders", "erased", (DAYS[1],), "somebody", "asked for it", {}, now))
    assert erased.left(made.lake, "orders") == [both.table]
    assert up_to_date(made.lake, both)[1] == ("state/orders",)
    check("whole")
    assert erased.left(made.lake, "orders") == []
    assert not [path for path in (tmp_path / "derived").rglob("*.parquet") if b"Jane" in path.read_bytes()]


def test_an_erasure_of_a_states_topic_reaches_its_derived_tables(tmp_path: Path) -> None:
    assert erased.seen(Flights(tmp_path).lake, [PLANES, FLIGHTS]) == {}


def test_an_input_that_was_only_created_is_waited_for(tmp_path: Path) -> None:
    lake, fleet = Flights(tmp_path), Planes(tmp_path)
    lake.load(0, flights(random.Random(1), 3))
    fleet.fold([{"tailnum": "N1", "maker": "A", "seats": 1, "kafka_offset": 1}])
    each = Updater(lake.lake, declared("left"), not_needed)
    assert input_versions(lake.lake, each.query)[PLANES.name] == each.pinned()[PLANES].version == 0
    shutil.rmtree(fleet.path)
    # What a fold commits first. Its rows may follow hours later.
    state_table.create(lake.lake.table(PLANES), STATE, name="state_planes", description="")
    assert input_versions(lake.lake, each.query)[PLANES.name] is None
    with pytest.raises(InputMissingError, match="fold planes"):
        each.pinned()


def not_needed() -> SparkSession:
    raise AssertionError
