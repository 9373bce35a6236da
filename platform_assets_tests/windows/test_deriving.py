"""Derived tables, with a real Spark server. DuckDB computes the expected rows from the source rows."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from platform_assets.engines.deriving import AllRowsNeededError, DerivingEngine, PinnedInput
from platform_assets.errors import ConcurrentDerivationError, ConfigurationError, DerivedQueryError, InputMissingError
from platform_assets.lake import derived_table
from platform_assets.lake.location import Folder
from platform_assets.ledger import decisions
from platform_assets.ledger.decisions import Decision
from platform_assets.model.derived import DerivedDeclaration, DerivedRef
from platform_assets.model.expectations import Expectation
from platform_assets.windows.derive import checking, erased, touched
from platform_assets.windows.derive.deriving import Derived, Updater
from platform_assets.windows.derive.freshness import up_to_date
from platform_assets_tests.conftest import SEED
from platform_assets_tests.support.derived_lake import START, Flights, flights, judged, key, rows_of

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

Connection = Callable[[], "SparkSession"]

BY_DAY = DerivedDeclaration(
    DerivedRef("delays_by_day"),
    {"day": "date(time_hour)"},
    "SELECT date(f.time_hour) AS day, f.carrier, count(*) AS flights, sum(f.dep_delay) AS minutes_late\n"
    "FROM decoded.flights f GROUP BY ALL",
)
JUDGE_BY_DAY = (
    "SELECT CAST(time_hour AS DATE), carrier, count(*), CAST(sum(dep_delay) AS BIGINT) FROM flights GROUP BY ALL"
)


def run(lake: Flights, declared: DerivedDeclaration, connection: Connection, **more: Any) -> Derived:
    return Updater(lake.lake, declared, connection).run("run", **more)


def expected(lake: Flights) -> list[tuple[Any, ...]]:
    return judged(JUDGE_BY_DAY, flights=lake.table())


@pytest.mark.spark
def test_a_run_replaces_only_the_groups_that_changed_windows_touch(tmp_path: Path, connection: Connection) -> None:
    seed, lake = random.Random(1), Flights(tmp_path)
    for number in range(3):
        lake.load(number, flights(seed, 40))
    first = run(lake, BY_DAY, connection)
    assert first.made.derivation.because == "the table is new"
    assert rows_of(lake.lake, "delays_by_day") == expected(lake)

    again = run(lake, BY_DAY, connection)
    assert not again.is_new
    assert again.made == first.made

    changed = lake.load(1, lake.windows[key(1)][:3])
    second = run(lake, BY_DAY, connection)
    assert rows_of(lake.lake, "delays_by_day") == expected(lake)
    done = second.made.derivation
    assert done.extent == "groups"
    assert [load[0] for load in done.loads["values"]] == [changed]
    assert done.inputs["decoded/flights"].version == lake.version

    # No file of the table can have rows of a day after all others.
    lake.load(3, [{**row, "time_hour": START + timedelta(days=99)} for row in flights(seed, 3)])
    done = run(lake, BY_DAY, connection).made.derivation
    assert (done.groups["count"], done.replaced.rows) == (1, 0)
    assert rows_of(lake.lake, "delays_by_day") == expected(lake)

    whole = run(lake, BY_DAY, connection, whole=True)
    assert whole.made.derivation.whole == done.whole
    assert rows_of(lake.lake, "delays_by_day") == expected(lake)


def test_a_server_that_fails_is_reported_as_an_error_of_the_table(tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    class Failing:
        @property
        def conf(self) -> Any:
            raise PySparkException("the session has ended")

    lake, failing = Flights(tmp_path), cast("Connection", Failing)
    engine = DerivingEngine(failing, "delays_by_day", BY_DAY.by)
    table = PinnedInput("decoded/flights", Folder.at(lake.path), lake.version)
    uses: list[Callable[[], object]] = [lambda: engine.records(table, ()), lambda: engine.prepare(0)]
    for use in uses:
        with pytest.raises(DerivedQueryError, match="the session has ended"):
            use()


def test_a_group_column_can_have_the_name_of_a_function() -> None:
    groups = pa.table({"user": ["a", None], "current_date": [1, 2]})
    assert [(each.column, each.values, each.has_null) for each in touched.wanted_columns(groups)] == [
        ("user", ("a",), True),
        ("current_date", (1, 2), False),
    ]


@pytest.mark.long
@pytest.mark.spark
def test_groups_of_any_name_type_and_time_are_replaced(tmp_path: Path, connection: Connection) -> None:
    seed, lake = random.Random(11), Flights(tmp_path)
    by_parts = DerivedDeclaration(
        DerivedRef("by_parts"),
        {"user": "carrier", "parts": "split(tailnum, 'N')"},
        "SELECT carrier AS user, split(tailnum, 'N') AS parts, count(*) AS n FROM decoded.flights GROUP BY ALL",
    )
    lake.load(0, flights(seed, 30))
    for declared in (by_parts, BY_DAY):
        run(lake, declared, connection)
    far = 253_402_300_800_000_000 * 2
    for rows in (flights(seed, 10), [{**each, "tailnum": None} for each in flights(seed, 3)]):
        lake.load(1, rows)
        done = run(lake, by_parts, connection)
        assert done.made.derivation.extent == "groups"
        found = checking.compare(lake.lake, by_parts, connection, done.made, seed="a", replaced=done.groups)
        assert found.is_equal
    lake.load(2, [{**each, "time_hour": far} for each in flights(seed, 3)])
    done = run(lake, BY_DAY, connection)
    assert done.made.derivation.because == "a changed group has a date outside the years 1 to 9999"
    lake.load(3, flights(seed, 3))
    done = run(lake, BY_DAY, connection)
    assert done.made.derivation.extent == "groups"
    for sample in ("a", None):
        assert checking.compare(lake.lake, BY_DAY, connection, done.made, seed=sample, replaced=done.groups).is_equal


@pytest.mark.long
@pytest.mark.spark
def test_rows_of_one_day_leave_other_days_in_their_files(tmp_path: Path, connection: Connection) -> None:
    lake = Flights(tmp_path)
    rows = flights(random.Random(2), 60)
    days = sorted({r["time_hour"].date() for r in rows if r["time_hour"]})
    for number, day in enumerate(days):
        lake.load(number, [r for r in rows if r["time_hour"] and r["time_hour"].date() == day])
    run(lake, BY_DAY, connection)
    lake.load(0, lake.windows[key(0)][:1])
    done = run(lake, BY_DAY, connection).made.derivation
    assert done.groups["count"] == 1
    assert rows_of(lake.lake, "delays_by_day") == expected(lake)
    before = set(DeltaTable(tmp_path / "derived" / "delays_by_day").file_uris())
    lake.load(0, lake.windows[key(0)] * 2)
    run(lake, BY_DAY, connection)
    # The first run separated this day from the others, so the file of the others stays.
    assert before & set(DeltaTable(tmp_path / "derived" / "delays_by_day").file_uris())
    assert rows_of(lake.lake, "delays_by_day") == expected(lake)


@pytest.mark.spark
@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.long)])
def test_incremental_runs_equal_a_full_rebuild(tmp_path: Path, connection: Connection, rounds: int) -> None:
    seed = random.Random(SEED)
    lake = Flights(tmp_path)
    lake.load(0, flights(seed, 20))
    run(lake, BY_DAY, connection)
    lake.load(1, [row for row in flights(seed, 15) if row["time_hour"]])
    extents = [run(lake, BY_DAY, connection).made.derivation.extent]
    assert extents == ["groups"], SEED
    for _ in range(rounds):
        for _ in range(seed.randrange(1, 3)):
            what, number = seed.choice(["new", "reload", "erase", "expire", "compact"]), seed.randrange(6)
            held = lake.windows.get(key(number), [])
            if what in ("new", "reload"):
                lake.load(number, flights(seed, seed.randrange(15)))
            elif what == "erase":
                lake.erase(number, [row for row in held if seed.random() < 0.5])
            elif what == "expire":
                lake.expire([number, (number + 1) % 6])
            else:
                lake.compact()
        done = run(lake, BY_DAY, connection)
        extents.append(done.made.derivation.extent)
        assert rows_of(lake.lake, "delays_by_day") == expected(lake), (SEED, extents)
    whole = run(lake, BY_DAY, connection, whole=True)
    assert whole.made.derivation.whole == done.made.derivation.whole


@pytest.mark.long
@pytest.mark.spark
def test_all_rows_are_computed_if_the_old_version_can_no_longer_be_read(tmp_path: Path, connection: Connection) -> None:
    lake = Flights(tmp_path)
    lake.load(0, flights(random.Random(3), 20))
    run(lake, BY_DAY, connection)
    lake.erase(0, lake.windows[key(0)][:5])
    done = run(lake, BY_DAY, connection).made.derivation
    assert done.because == f"version {lake.version - 1} of decoded/flights can no longer be read"
    assert rows_of(lake.lake, "delays_by_day") == expected(lake)


@pytest.mark.long
@pytest.mark.spark
def test_all_rows_are_computed_if_a_joined_table_changed(tmp_path: Path, connection: Connection) -> None:
    lake, planes = Flights(tmp_path), tmp_path / "raw" / "planes"
    lake.load(0, flights(random.Random(4), 20))
    declared = DerivedDeclaration(
        DerivedRef("makers"),
        BY_DAY.by,
        "SELECT date(time_hour) AS day, maker, count(*) AS n FROM decoded.flights\nLEFT JOIN raw.planes USING (tailnum) GROUP BY ALL",
    )
    with pytest.raises(InputMissingError, match="raw/planes"):
        run(lake, declared, connection)
    known = pa.table({"tailnum": ["N1", "N2"], "maker": ["BOEING", "AIRBUS"]})
    write_deltalake(planes, known)
    run(lake, declared, connection)
    sql = "SELECT CAST(time_hour AS DATE), maker, count(*) FROM flights LEFT JOIN planes USING (tailnum) GROUP BY ALL"
    assert rows_of(lake.lake, "makers") == judged(sql, flights=lake.table(), planes=known)
    more = pa.table({"tailnum": ["N3"], "maker": ["EMBRAER"]})
    write_deltalake(planes, more, mode="append")
    lake.load(1, flights(random.Random(5), 20))
    done = run(lake, declared, connection).made.derivation
    assert done.because == "raw/planes, which is joined, changed"
    assert rows_of(lake.lake, "makers") == judged(sql, flights=lake.table(), planes=pa.concat_tables([known, more]))


@pytest.mark.long
@pytest.mark.spark
def test_by_window_gives_a_result_per_window(tmp_path: Path, connection: Connection) -> None:
    lake = Flights(tmp_path)
    for number in range(3):
        lake.load(number, flights(random.Random(number), 10))
    declared = DerivedDeclaration(
        DerivedRef("late"),
        {"window": "window"},
        "SELECT window, carrier, tailnum FROM decoded.flights WHERE dep_delay > 0",
    )
    sql = 'SELECT "window", carrier, tailnum FROM flights WHERE dep_delay > 0'
    run(lake, declared, connection)
    lake.erase(1, [])
    lake.load(3, flights(random.Random(9), 10))
    done = run(lake, declared, connection).made.derivation
    # The old rows are not needed to know the groups.
    assert done.groups["count"] == 2
    assert [pair[0] for pair in done.loads["values"]] == [key(1), key(3)]
    assert rows_of(lake.lake, "late") == judged(sql, flights=lake.table())


@pytest.mark.long
@pytest.mark.spark
def test_a_new_query_replaces_rows_and_columns(tmp_path: Path, connection: Connection) -> None:
    lake = Flights(tmp_path)
    lake.load(0, flights(random.Random(6), 20))
    run(lake, BY_DAY, connection)
    other = DerivedDeclaration(
        BY_DAY.table,
        BY_DAY.by,
        "SELECT date(time_hour) AS day, max(dep_delay) AS worst FROM decoded.flights GROUP BY 1",
    )
    done = run(lake, other, connection).made.derivation
    assert done.because == "`sql` or `by` changed"
    sql = "SELECT CAST(time_hour AS DATE), max(dep_delay) FROM flights GROUP BY 1"
    assert rows_of(lake.lake, "delays_by_day") == judged(sql, flights=lake.table())


@pytest.mark.long
@pytest.mark.spark
def test_another_writers_rows_are_replaced(tmp_path: Path, connection: Connection) -> None:
    lake = Flights(tmp_path)
    lake.load(0, flights(random.Random(7), 20))
    run(lake, BY_DAY, connection)
    table = DeltaTable(tmp_path / "derived" / "delays_by_day")
    write_deltalake(table, pa.table(table.to_pyarrow_table().slice(0, 1)), mode="append")
    lake.append(flights(random.Random(8), 3), key(0))
    lake.load(1, flights(random.Random(8), 3))
    assert run(lake, BY_DAY, connection).made.derivation.because == "another writer changed the table"
    assert rows_of(lake.lake, "delays_by_day") == expected(lake)
    lake.append(flights(random.Random(8), 3), key(0))
    assert "another writer made version" in run(lake, BY_DAY, connection).made.derivation.because
    assert rows_of(lake.lake, "delays_by_day") == expected(lake)


@pytest.mark.long
@pytest.mark.spark
def test_only_one_of_two_runs_at_once_commits(
    tmp_path: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Flights(tmp_path)
    lake.load(0, flights(random.Random(6), 20))
    run(lake, BY_DAY, connection)
    lake.load(0, flights(random.Random(7), 20))
    slow = Updater(lake.lake, BY_DAY, connection)
    compute = slow.rows

    def overtaken(*args: Any) -> Any:
        found = compute(*args)
        run(lake, BY_DAY, connection)
        return found

    monkeypatch.setattr(slow, "rows", overtaken)
    with pytest.raises(ConcurrentDerivationError):
        slow.run("slow")
    assert rows_of(lake.lake, "delays_by_day") == expected(lake)
    assert not run(lake, BY_DAY, connection).is_new


@pytest.mark.spark
@pytest.mark.parametrize(
    ("select", "message"),
    [
        ("date(time_hour) AS day, nothing", "nothing.*cannot be resolved"),
        ("date(time_hour) AS day, count(*) OVER (PARTITION BY date(time_hour))", "needs a name"),
        ("date(time_hour) AS day, NULL AS n", "type void"),
    ],
)
def test_a_query_that_cannot_make_a_table_is_refused(
    tmp_path: Path, connection: Connection, select: str, message: str
) -> None:
    lake = Flights(tmp_path)
    lake.load(0, flights(random.Random(6), 5))
    declared = DerivedDeclaration(BY_DAY.table, BY_DAY.by, f"SELECT {select} FROM decoded.flights")
    with pytest.raises((DerivedQueryError, ConfigurationError), match=message) as refused:
        run(lake, declared, connection)
    assert "__derived" not in str(refused.value)


@pytest.mark.long
@pytest.mark.spark
def test_metadata_is_bounded(tmp_path: Path, connection: Connection) -> None:
    lake = Flights(tmp_path)
    for number in range(3):
        lake.load(number, flights(random.Random(number), 10))
    declared = DerivedDeclaration(
        DerivedRef("offsets"), {"n": "kafka_offset * 100 + hour(time_hour)"},
        "SELECT kafka_offset * 100 + hour(time_hour) AS n, carrier FROM decoded.flights",
    )  # fmt: skip
    run(lake, declared, connection)
    lake.load(1, flights(random.Random(1), 400))
    made = run(lake, declared, connection).made
    assert made.derivation.groups["count"] > 200
    assert set(made.derivation.groups) == {"count", "digest"}
    log = (tmp_path / "derived" / "offsets" / "_delta_log" / f"{made.version:020}.json").read_text()
    assert len(json.dumps(json.loads(log.splitlines()[-1]))) < 4_000


@pytest.mark.long
@pytest.mark.spark
def test_all_rows_are_computed_after_an_input_was_restored(tmp_path: Path, connection: Connection) -> None:
    lake, seed, kept = Flights(tmp_path / "lake"), random.Random(7), tmp_path / "kept"
    lake.load(0, flights(seed, 20))
    shutil.copytree(lake.path, kept)
    before = dict(lake.windows)
    lake.load(1, flights(seed, 20))
    run(lake, BY_DAY, connection)
    shutil.rmtree(lake.path)
    shutil.copytree(kept, lake.path)
    lake.windows = before
    lake.load(2, flights(seed, 20))
    # It has the version of the last run again.
    assert up_to_date(lake.lake, BY_DAY)[1] == ("decoded/flights",)
    assert "the table was replaced" in run(lake, BY_DAY, connection).made.derivation.because
    assert rows_of(lake.lake, "delays_by_day") == expected(lake)


@pytest.mark.spark
def test_all_rows_are_computed_again_if_an_input_was_created_again_during_the_run(
    tmp_path: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, seed, compute = Flights(tmp_path), random.Random(7), Updater.rows
    lake.load(0, flights(seed, 5))

    def replaced_meanwhile(*given: Any) -> Any:
        found = compute(*given)
        shutil.rmtree(lake.path)
        Flights(tmp_path).load(0, flights(random.Random(8), 7))
        return found

    before = str(DeltaTable(lake.path).metadata().id)
    with monkeypatch.context() as patch:
        patch.setattr(Updater, "rows", replaced_meanwhile)
        made = run(lake, BY_DAY, connection).made
    assert made.derivation.inputs["decoded/flights"].table_id == before
    assert rows_of(lake.lake, "delays_by_day") == expected(lake)
    assert run(lake, BY_DAY, connection).made.derivation.because == "decoded/flights was created again"
    lake.windows[key(0)] = flights(random.Random(8), 7)
    assert rows_of(lake.lake, "delays_by_day") == expected(lake)


@pytest.mark.spark
def test_names_of_columns_may_have_dots(tmp_path: Path, connection: Connection) -> None:
    lake, rows = Flights(tmp_path), flights(random.Random(7), 9)
    lake.load(0, rows)
    several: list[tuple[str, ...]] = [("the.carrier",), ("hour", "the.carrier")]
    for columns in several:
        declared = DerivedDeclaration(
            DerivedRef("dotted"),
            {"hour": "hour(time_hour)"},
            "SELECT hour(time_hour) AS hour, carrier AS `the.carrier` FROM decoded.flights",
            (Expectation("unique", "unique", columns),),
        )
        done = run(lake, declared, connection).made
        assert checking.compare(lake.lake, declared, connection, done, seed=None).is_equal
        assert checking.compare(lake.lake, declared, connection, done, seed="seed").is_equal
        places = [(row["time_hour"] and row["time_hour"].hour, row["carrier"])[2 - len(columns) :] for row in rows]
        known = [place for place in places if len(columns) > 1 or place[0] is not None]
        (found,) = checking.expected(lake.lake, declared, connection)
        assert (found.problem, found.rows, found.failing) == (None, 9, len(known) - len(set(known)))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (pa.array([b"\xff"]).view(pa.string()), "a changed group has a text that is not valid UTF-8"),
        (
            pa.array([2**40], pa.int64()).cast(pa.timestamp("s")),
            "a changed group has a date outside the years 1 to 9999",
        ),
    ],
)
def test_a_group_that_python_cannot_read_is_named(values: pa.Array, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = DerivingEngine(_never, "delays", {"carrier": "carrier"})
    monkeypatch.setattr(engine, "groups_of", lambda *_: pa.table({"carrier": values}))
    with pytest.raises(AllRowsNeededError, match=why):
        touched._found(engine, PinnedInput("decoded/flights", Folder("x"), 1), list)


def _never() -> NoReturn:
    raise AssertionError


@pytest.mark.long
@pytest.mark.spark
def test_all_rows_are_computed_if_the_log_does_not_count_a_files_rows(tmp_path: Path, connection: Connection) -> None:
    lake = Flights(tmp_path)
    lake.load(0, flights(random.Random(7), 20))
    made = run(lake, BY_DAY, connection).made
    log = tmp_path / "derived" / "delays_by_day" / "_delta_log" / f"{made.version:020}.json"
    text = log.read_text()
    assert "numRecords" in text
    log.write_text(text.replace("numRecords", "otherRecords"))
    lake.load(1, flights(random.Random(8), 20))
    assert "numbers of rows" in run(lake, BY_DAY, connection).made.derivation.because
    assert rows_of(lake.lake, "delays_by_day") == expected(lake)


@pytest.mark.spark
def test_a_run_that_fails_leaves_no_files_and_changed_columns_need_all_rows(
    tmp_path: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, folders = Flights(tmp_path), tmp_path / "derived" / "delays_by_day" / "groups"
    lake.load(0, flights(random.Random(7), 20))
    run(lake, BY_DAY, connection)
    lake.load(1, flights(random.Random(8), 20))
    before = sorted(folders.iterdir())

    def fails(*_: Any) -> Any:
        raise OSError("disk")

    with monkeypatch.context() as patch:
        patch.setattr(derived_table, "written_files", fails)
        for whole in (False, True):
            with pytest.raises(OSError, match="disk"):
                run(lake, BY_DAY, connection, whole=whole)
            assert sorted(folders.iterdir()) == before

    def other(*_: Any) -> Any:
        raise AllRowsNeededError("the query has other columns now")

    with monkeypatch.context() as patch:
        patch.setattr(DerivingEngine, "nullable_like", other)
        done = run(lake, BY_DAY, connection).made.derivation
    assert (done.extent, done.because) == ("whole", "the query has other columns now")
    assert rows_of(lake.lake, "delays_by_day") == expected(lake)


@pytest.mark.spark
def test_the_log_has_no_values_of_text_groups(tmp_path: Path, connection: Connection) -> None:
    lake = Flights(tmp_path)
    declared = DerivedDeclaration(
        DerivedRef("carriers"), {"carrier": "carrier"}, "SELECT carrier, count(*) AS n FROM decoded.flights GROUP BY 1"
    )
    for number in range(2):
        lake.load(number, [{**row, "carrier": "Jane Doe"} for row in flights(random.Random(number), 5)])
        made = run(lake, declared, connection).made
        log = (tmp_path / "derived" / "carriers" / "_delta_log" / f"{made.version:020}.json").read_text()
        assert "numRecords" in log
        assert "Jane" not in log


def files_with(folder: Path, value: str) -> list[Path]:
    """Return all Parquet files below a folder, used by a version or not, that have a text."""
    return [
        path
        for path in folder.rglob("*.parquet")
        if "_delta_log" not in path.parts and value in str(pq.read_table(path).to_pylist())
    ]


def completed(lake: Flights) -> None:
    """Record in the ledger that an erasure is complete."""
    decisions.record(
        lake.lake, Decision(lake.topic, "erased", (key(0),), "somebody", "asked for it", {}, lake.lake.root.time())
    )


NAMES = DerivedDeclaration(
    DerivedRef("names"), {"hour": "hour(time_hour)"}, "SELECT hour(time_hour) AS hour, carrier FROM decoded.flights"
)
NAMES_AGAIN = DerivedDeclaration(
    DerivedRef("names_again"), {"hour": "hour"}, "SELECT hour, carrier AS who FROM derived.names"
)


@pytest.mark.spark
def test_an_erasure_reaches_rows_and_past_files_also_through_another_derived_table(
    tmp_path: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, seed = Flights(tmp_path), random.Random(1)
    tables = [tmp_path / "derived" / d.table.short for d in (NAMES, NAMES_AGAIN)]
    rows = flights(seed, 20)
    lake.load(0, [*rows, {**rows[0], "carrier": "Jane Doe"}])
    for number in range(2):
        lake.load(1, flights(seed, 20 + number))
        done = [run(lake, declared, connection).made.derivation for declared in (NAMES, NAMES_AGAIN)]
    assert [derivation.extent for derivation in done] == ["groups", "groups"]
    assert all(files_with(table, "Jane") for table in tables)
    assert erased.left(lake.lake, "flights") == []

    lake.erase(0, rows)
    completed(lake)
    assert erased.left(lake.lake, "flights") == [NAMES.table, NAMES_AGAIN.table]
    assert up_to_date(lake.lake, NAMES)[1] == ("decoded/flights",)

    with monkeypatch.context() as patch:
        # As if the run had been killed right after its commit.
        patch.setattr(Updater, "_delete_past", lambda *_, **__: None)
        run(lake, NAMES, connection)
    assert "Jane" not in str(rows_of(lake.lake, "names"))
    assert files_with(tables[0], "Jane")
    assert erased.left(lake.lake, "flights") == [NAMES.table, NAMES_AGAIN.table]

    assert not run(lake, NAMES, connection).is_new
    assert files_with(tables[0], "Jane") == []
    assert erased.left(lake.lake, "flights") == [NAMES_AGAIN.table]
    run(lake, NAMES_AGAIN, connection)
    assert files_with(tables[1], "Jane") == []
    assert erased.left(lake.lake, "flights") == []
    assert rows_of(lake.lake, "names_again") == rows_of(lake.lake, "names")
    assert up_to_date(lake.lake, NAMES_AGAIN)[1] == ()


@pytest.mark.long
@pytest.mark.spark
def test_an_erasure_that_changed_no_input_still_deletes_past_files(tmp_path: Path, connection: Connection) -> None:
    lake, rows = Flights(tmp_path), flights(random.Random(1), 20)
    lake.load(0, [*rows, {**rows[0], "carrier": "Jane Doe"}])
    run(lake, NAMES, connection)
    # The row is gone before the erasure is complete, as if the run had come in between.
    lake.load(0, rows)
    run(lake, NAMES, connection)
    table = tmp_path / "derived" / "names"
    assert files_with(table, "Jane")
    completed(lake)
    assert up_to_date(lake.lake, NAMES)[1] == ("decoded/flights",)
    assert run(lake, NAMES, connection).made.derivation.extent == "nothing"
    assert files_with(table, "Jane") == []
    assert up_to_date(lake.lake, NAMES)[1] == ()
    assert rows_of(lake.lake, "names") == judged("SELECT hour(time_hour), carrier FROM flights", flights=lake.table())


@pytest.mark.long
@pytest.mark.spark
def test_folders_of_runs_that_died_are_deleted_and_those_of_running_ones_stay(
    tmp_path: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, folders = Flights(tmp_path), tmp_path / "derived" / "delays_by_day" / "groups"
    lake.load(0, flights(random.Random(1), 20))
    run(lake, BY_DAY, connection)

    def begin(name: str) -> Path:
        # As Spark leaves them if it is killed while a task writes.
        shutil.copytree(next(folders.iterdir()), folders / name / "_temporary" / "0")
        return folders / name

    dead = begin("dead-0")
    assert not run(lake, BY_DAY, connection).is_new
    # Its run could still commit on the newest version.
    assert dead.exists()
    lake.load(1, flights(random.Random(2), 20))
    planned = Updater._plan

    def overlapping(*args: Any) -> Any:
        begin("live-1")
        return planned(*args)

    monkeypatch.setattr(Updater, "_plan", overlapping)
    run(lake, BY_DAY, connection)
    assert not dead.exists()
    assert (folders / "live-1").exists()
    assert rows_of(lake.lake, "delays_by_day") == expected(lake)


@pytest.mark.long
@pytest.mark.spark
def test_all_rows_are_computed_if_a_changed_windows_rows_are_in_no_group(
    tmp_path: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Flights(tmp_path)
    lake.load(0, flights(random.Random(1), 20))
    run(lake, BY_DAY, connection)
    lake.load(1, flights(random.Random(2), 20))
    found = DerivingEngine.groups_of
    monkeypatch.setattr(DerivingEngine, "groups_of", lambda *args: found(*args).slice(1))  # type: ignore[union-attr]
    done = run(lake, BY_DAY, connection).made.derivation
    assert done.because == "rows of changed windows are in none of the groups that were found"
    assert rows_of(lake.lake, "delays_by_day") == expected(lake)
