"""Files that may have rows with some values: no file with such a row is left out, whatever the log and the footers say."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from platform_assets.errors import LakeUnavailableError
from platform_assets.lake import location, pinned_files
from platform_assets.lake.location import Folder
from platform_assets.lake.pinned_files import Bounds, Function, Wanted
from platform_assets_tests.conftest import SEED

AT = datetime(2026, 3, 28, 22, 30, tzinfo=UTC)
COLUMNS = pa.schema(
    [
        ("n", pa.int64()),
        ("name", pa.string()),
        ("day", pa.date32()),
        ("At", pa.timestamp("us", "UTC")),
        ("x", pa.float64()),
    ]
)
NO_STATISTICS = {"delta.dataSkippingNumIndexedCols": "0"}


def kept(folder: Path, *wanted: Wanted | None, is_utc: bool = True) -> set[str]:
    found = pinned_files.with_values(
        Folder.at(folder), DeltaTable(folder).version(), [each for each in wanted if each], is_utc=is_utc
    )
    assert found is not None
    return set(found.rows_of)


def image(function: Function, value: Any, zone: ZoneInfo) -> Any:
    """The function, computed for one value in a time zone."""
    if value is None or function == "same":
        return value
    if function == "date":
        return value.astimezone(zone).date() if isinstance(value, datetime) else value
    parts = {"second": {}, "minute": {"second": 0}, "hour": {"second": 0, "minute": 0}}
    at = value.astimezone(zone)
    return at.replace(microsecond=0, **parts.get(function, {"second": 0, "minute": 0, "hour": 0})).astimezone(UTC)


def row(seed: random.Random) -> dict[str, Any]:
    at = AT + timedelta(microseconds=seed.choice([seed.randrange(10**12), seed.randrange(5), 999_999, 3_600 * 10**6]))
    full = {
        "n": seed.randrange(-3, 300),
        "name": seed.choice(["", "é", "a" * 31, "a" * 32, "a" * 70, "a" * 70 + "b", "\U0010ffff" * 40, "b"]),
        "day": at.date(),
        "At": at,
        "x": seed.choice([0.0, -0.0, float("nan"), 7.5]),
    }
    return {name: None if seed.random() < 0.1 else value for name, value in full.items()}


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/St_Johns"])
def test_no_file_with_a_wanted_row_is_left_out(tmp_path: Path, statistics: bool, zone: str) -> None:
    seed, left_out = random.Random(f"{SEED}{zone}"), 0
    for _ in range(2):
        rows: list[dict[str, Any]] = []
        write_deltalake(
            tmp_path,
            pa.Table.from_pylist([], COLUMNS),
            mode="overwrite",
            configuration=None if statistics else NO_STATISTICS,
        )
        for _ in range(6):
            some = sorted((row(seed) for _ in range(seed.randrange(1, 6))), key=lambda each: str(each["At"]))
            write_deltalake(tmp_path, pa.Table.from_pylist(some, COLUMNS), mode="append")
            rows += some
        held = {path: pq.read_table(tmp_path / path).to_pylist() for path in kept(tmp_path)}
        assert sum(map(len, held.values())) == len(rows)
        cases: list[tuple[str, Function]] = [
            ("n", "same"), ("name", "same"), ("day", "same"), ("at", "same"), ("x", "same"), ("day", "date"), ("at", "date"),
            ("at", "second"), ("AT", "minute"), ("at", "hour"), ("at", "day"), ("day", "hour"), ("name", "date"),
        ]  # fmt: skip
        for column, function in cases:
            name = next(each for each in COLUMNS.names if each.lower() == column.lower())
            if (name, function) in (("day", "hour"), ("name", "date")):
                # Spark converts the values first, so nothing is known about their order.
                assert kept(tmp_path, Wanted.of(column, function, [AT])) == set(held)
                continue
            images = {path: [image(function, r[name], ZoneInfo(zone)) for r in some] for path, some in held.items()}
            every = [value for values in images.values() for value in values]
            values = seed.sample(every, min(len(every), seed.randrange(1, 3)))
            found = kept(tmp_path, Wanted.of(column, function, values), is_utc=zone == "UTC")
            needed = {path for path, some in images.items() if set(map(str, some)) & set(map(str, values))}
            assert found >= needed, (SEED, column, function, values)
            left_out += len(held) - len(found)
    assert left_out > 5


def test_values_in_two_columns_have_to_be_in_the_same_file(tmp_path: Path) -> None:
    for n, day in ((1, 1), (1, 2), (2, 1)):
        one = pa.table({"n": [n], "day": [date(2026, 1, day)]})
        write_deltalake(tmp_path, one, mode="append")
    found = kept(tmp_path, Wanted.of("n", "same", [1]), Wanted.of("day", "date", [date(2026, 1, 2)]))
    assert [pq.read_table(tmp_path / path).to_pylist() for path in found] == [[{"n": 1, "day": date(2026, 1, 2)}]]


def test_a_time_is_found_that_the_log_cut_off(tmp_path: Path) -> None:
    at = datetime(2026, 1, 1, 23, 59, 59, 999_999, tzinfo=UTC)
    write_deltalake(tmp_path, pa.table({"at": pa.array([at], pa.timestamp("us", "UTC"))}))
    (path,) = kept(tmp_path)
    assert "59.999Z" in (tmp_path / "_delta_log" / f"{0:020}.json").read_text()
    assert kept(tmp_path, Wanted.of("at", "same", [at])) == {path}
    assert kept(tmp_path, Wanted.of("at", "same", [at - timedelta(seconds=1)])) == set()


def test_a_column_named_like_a_field_of_a_struct_has_no_bounds(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"a": [{"n": 1}], "a.n": [2]}))
    assert len(kept(tmp_path, Wanted.of("a.n", "same", [2]))) == 1
    assert len(kept(tmp_path, Wanted.of("a.n", "same", [1]))) == 1


def test_a_text_that_the_log_may_have_cut_off_has_no_upper_bound(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"name": ["b" * 40]}))
    (path,) = kept(tmp_path)
    log = tmp_path / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace("b" * 40, "b" * 32))
    (tmp_path / path).write_bytes(b"without a footer")
    assert kept(tmp_path, Wanted.of("name", "same", ["b" * 40])) == {path}


def test_files_of_tables_that_need_delta_s_own_reader_are_not_listed(tmp_path: Path) -> None:
    rows = pa.table({"n": [1], "window": ["a"]})
    write_deltalake(tmp_path / "parts", rows, partition_by=["window"])
    assert pinned_files.with_values(Folder.at(tmp_path / "parts"), 0, [], is_utc=True) is None
    write_deltalake(tmp_path / "a{1}", rows)
    assert pinned_files.with_values(Folder.at(tmp_path / "a{1}"), 0, [], is_utc=True) is None
    log = tmp_path / "newer" / "_delta_log" / f"{0:020}.json"
    write_deltalake(tmp_path / "newer", rows)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "protocol" in line:
            line["protocol"] |= {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": [],
                "writerFeatures": [],
            }
    log.write_text("\n".join(map(json.dumps, lines)))
    assert pinned_files.with_values(Folder.at(tmp_path / "newer"), 0, [], is_utc=True) is None


def test_a_file_with_a_name_that_spark_ignores_is_not_listed(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    (path,) = kept(tmp_path)
    log = tmp_path / "_delta_log" / f"{0:020}.json"
    for name in (f"_{path}", f"a/.{path}", f"/{path}", f"file:///{path}"):
        log.write_text(log.read_text().replace(f'"path":"{path}"', f'"path":"{name}"'))
        assert pinned_files.with_values(Folder.at(tmp_path), 0, [], is_utc=True) is None
        path = name


def test_a_text_that_is_no_date_gives_null_without_being_null(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"name": ["neither", "nor"], "n": [1, 2]}))
    (path,) = kept(tmp_path)
    for function in ("date", "hour"):
        assert kept(tmp_path, Wanted.of("name", function, [None])) == {path}
    assert kept(tmp_path, Wanted.of("name", "same", [None])) == set()


def test_a_column_of_structs_or_arrays_has_no_bounds(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"a": [{"b": 1}, None], "c": [[1], None]}))
    (path,) = kept(tmp_path)
    for name in ("a", "c"):
        assert kept(tmp_path, Wanted.of(name, "same", [None])) == {path}


def test_dates_after_the_year_9999_in_the_log_are_no_bounds(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"day": pa.array([0, 1 << 24], pa.int32()).cast(pa.date32())}))
    (path,) = kept(tmp_path)
    assert kept(tmp_path, Wanted.of("day", "date", [date(2026, 1, 1)])) == {path}


def test_both_hours_in_autumn_are_wanted() -> None:
    berlin, hours = ZoneInfo("Europe/Berlin"), [datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1)]
    given = Wanted.of("at", "same", [hour.astimezone(berlin) for hour in hours])
    assert given is not None
    assert all(given.may_be_in(Bounds(hour, hour, has_null=False), is_utc=False) for hour in hours)


@pytest.mark.parametrize("values", [[1.5], [True], [b"a"], [1, "a"], [datetime(2026, 1, 1)], [{"a": 1}]])
def test_values_without_a_known_order_are_not_looked_for(values: list[Any]) -> None:
    assert Wanted.of("a", "same", values) is None


def test_null_is_wanted_only_if_it_is_among_the_values() -> None:
    some, none = Bounds(1, 5, has_null=True), Bounds(1, 5, has_null=False)
    for values, expected in (
        ([9], (False, False)),
        ([9, None], (True, False)),
        ([], (False, False)),
        ([5], (True, True)),
    ):
        given = Wanted.of("n", "same", values)
        assert given is not None
        assert (given.may_be_in(some, is_utc=True), given.may_be_in(none, is_utc=True)) == expected
        assert given.may_be_in(None, is_utc=True)


def test_a_version_that_the_log_no_longer_has_is_left_to_deltas_reader_and_other_errors_are_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        write_deltalake(tmp_path, pa.table({"n": [number]}), mode="append")
    DeltaTable(tmp_path, version=3).create_checkpoint()
    folder = Folder.at(tmp_path)
    for number in (0, 1):
        (tmp_path / f"_delta_log/{number:020}.json").unlink()
    found = [pinned_files.with_values(folder, number, [], is_utc=True) for number in range(5)]
    assert [each is None for each in found] == [True, True, True, False, False]

    def unavailable(*_: object, **__: object) -> None:
        raise TimeoutError("no answer")

    monkeypatch.setattr(location, "DeltaTable", unavailable)
    with pytest.raises(LakeUnavailableError):
        pinned_files.with_values(folder, 4, [], is_utc=True)


def test_the_schema_of_a_version_is_the_same_text_each_time(tmp_path: Path) -> None:
    """Versions with equal schemas are read together, and Delta's library gives the metadata of a field in any order."""
    column = pa.field("n", pa.int64(), metadata={f"key {number}": "value" for number in range(5)})
    write_deltalake(tmp_path, pa.table([pa.array([1])], schema=pa.schema([column])))
    found = [pinned_files.with_values(Folder.at(tmp_path), 0, (), is_utc=True) for _ in range(20)]
    assert len({each.schema for each in found if each is not None}) == 1
    assert None not in found
