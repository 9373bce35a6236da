"""Derived tables in YAML: each mistake is named with its line, and a right one becomes an asset with checks and a sensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from platform_assets.components import query_columns, yaml_check
from platform_assets.components.derived_table import DerivedTable
from platform_assets.model.derived import DerivedRef, Totals

TOPIC = """type: platform_assets.components.TopicTable
attributes:
  topic: flights
  window: "0 * * * *"
  start: "2026-01-01T00:00Z"
"""
DERIVED = """type: platform_assets.components.DerivedTable
attributes:
  table: by_day
  by: {day: "date(kafka_timestamp)"}
  sql: |
    SELECT date(f.kafka_timestamp) AS day, count(*) AS n
    FROM raw.flights f
    GROUP BY ALL
  expect:
    - {column: n, range: {min: 1}, severity: error}
"""

Declare = Callable[..., Path]


@pytest.fixture
def declare(tmp_path: Path) -> Declare:
    """Write the topic `flights` and derived tables, each in a folder of its own; return the definitions folder."""

    def write(*derived: str) -> Path:
        for number, text in enumerate((TOPIC, *derived)):
            folder = tmp_path / "defs" / f"d{number}"
            folder.mkdir(parents=True)
            (folder / "defs.yaml").write_text(text)
        return tmp_path / "defs"

    return write


def mistakes(folder: Path) -> list[tuple[int, str]]:
    judged = yaml_check.judge(folder)
    wrong, _ = query_columns.examined(judged.derived, judged.declared)
    return [(m.line, m.message) for m in (*judged.mistakes, *wrong)]


def test_a_right_declaration_has_no_mistakes(declare: Declare) -> None:
    judged = yaml_check.judge(
        declare(
            DERIVED,
            DERIVED.replace("by_day", "other")
            .replace("raw.flights", "derived.by_day")
            .replace("kafka_timestamp", "day"),
        )
    )
    assert judged.mistakes == ()
    assert query_columns.examined(judged.derived, judged.declared) == ((), ())
    assert [d.declaration.table for d in judged.derived] == [DerivedRef("by_day"), DerivedRef("other")]


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("table: by_day", "table: By-Day", 3, "cannot be the name of a derived table"),
        ("table: by_day", "tables: by_day", 3, "did you mean 'table'?"),
        ('by: {day: "date(kafka_timestamp)"}', "by: day", 4, "neither `window` nor a mapping"),
        ('"date(kafka_timestamp)"', '"count(*)"', 4, "over one row"),
        (
            '"date(kafka_timestamp)"',
            '"date(window)"',
            6,
            "GROUP BY must contain all expressions in `by`; missing: day (`",
        ),
        ("count(*) AS n", "rand() AS n", 6, "rand"),
        ("raw.flights", "raw.fligths", 7, "did you mean raw/flights?"),
        ("raw.flights", "decoded.flights", 7, "decoded/flights is not a table of this project"),
        ("raw.flights", "flights", 7, "is not a table of the lake"),
        ("raw.flights", "derived.by_day", 7, "reads derived/by_day itself"),
        ("f.kafka_timestamp) AS", "f.kafka_timestmp) AS", 6, "GROUP BY must contain"),
        ("count(*) AS n", "max(f.offset) AS n", 6, "did you mean kafka_offset?"),
        ("count(*) AS n", "max(zzz) AS n", 6, "no table of the query has a column 'zzz'"),
        ("kafka_timestamp", "timestamp", 4, "raw/flights has no column 'timestamp': did you mean kafka_timestamp?"),
        ("GROUP BY ALL", "GROUP BY key", 8, "GROUP BY must contain"),
        ("severity: error", "severity: high", 9, "severity: must be one of"),
        ("column: n,", "column: nn,", 9, "expect: derived/by_day has no column 'nn': did you mean 'n'?"),
    ],
)
def test_each_mistake_is_named_with_its_line(declare: Declare, old: str, new: str, line: int, message: str) -> None:
    (found,) = [m for m in mistakes(declare(DERIVED.replace(old, new))) if "it is missing" not in m[1]]
    assert message in found[1]
    assert found[0] == line


TOTALS = """type: platform_assets.components.DerivedTable
attributes:
  table: per_key
  by: {part: kafka_partition}
  sql: |
    SELECT kafka_partition AS part, key, kafka_offset AS offsets FROM raw.flights
  totals: {count: n, sum: [offsets]}
  expect:
    - {column: n, range: {min: 1}, severity: error}
"""


def test_totals_have_the_columns_of_the_query_without_those_of_groups(declare: Declare) -> None:
    reader = DERIVED.replace("raw.flights", "derived.per_key").replace('"date(f', '"(f').replace("count(*)", "max(n)")
    reader = reader.replace('{day: "date(kafka_timestamp)"}', "{key: key}").replace(
        "date(f.kafka_timestamp) AS day", "key"
    )
    judged = yaml_check.judge(declare(TOTALS, reader))
    assert judged.mistakes == ()
    assert query_columns.examined(judged.derived, judged.declared) == ((), ())
    assert judged.derived[0].declaration.totals == Totals("n", ("offsets",))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("count: n, ", "", "`count` must be the name of the column"),
        ("count: n", "count: n, other: 1", "unknown field 'other'"),
        ("[offsets]", "offsets", "`sum` must be a list of columns"),
        ("[offsets]", "[n]", "two columns have the same name"),
        ("count: n", "count: n-1", "'n-1' cannot be a column"),
        ("[offsets]", "[offset]", "the query has no column 'offset': did you mean 'offsets'?"),
        ("column: n,", "column: part,", "derived/per_key has no column 'part'"),
    ],
)
def test_each_mistake_in_totals_is_named(declare: Declare, old: str, new: str, message: str) -> None:
    found = mistakes(declare(TOTALS.replace(old, new)))
    assert [message in text for _, text in found] == [True], found


def test_a_name_that_is_declared_twice_is_a_mistake(declare: Declare) -> None:
    (found,) = mistakes(declare(DERIVED, DERIVED))
    assert "derived/by_day is declared twice" in found[1]


DECODED = """  decode:
    value: {format: json, schema: "carrier STRING, delay DOUBLE"}
"""


def test_columns_follow_from_decoded_tables_through_derived_tables(declare: Declare) -> None:
    first = DERIVED.replace("raw.flights", "decoded.flights").replace("count(*) AS n", "sum(delay) AS n")
    second = (
        DERIVED.replace("by_day", "other").replace("raw.flights", "derived.by_day").replace("kafka_timestamp", "day")
    ).replace("count(*)", "\n    sum(f.m)")
    folder = declare(first, second)
    (folder / "d0" / "defs.yaml").write_text(TOPIC + DECODED)
    judged = yaml_check.judge(folder)
    (mistake,), (warning,) = query_columns.examined(judged.derived, judged.declared)
    assert (mistake.line, "derived/by_day has no column 'm'" in mistake.message) == (7, True)
    # Other commands are not refused, because Spark decides whether a column exists.
    assert judged.mistakes == ()
    assert (warning.file.parent.name, warning.line) == ("d1", 6)
    assert "floating-point" in warning.message


STATE = """    key: {format: string}
  state:
    key: [key]
    order: delay
    deletes: none
"""


def test_columns_of_a_state_are_known(declare: Declare) -> None:
    first = DERIVED.replace(
        "raw.flights f", "raw.flights f\n    JOIN state.flights s ON f.kafka_offset = s.kafka_offset"
    )
    folder = declare(
        first,
        DERIVED.replace("by_day", "other")
        .replace("raw.flights f", "state.flights f")
        .replace("count(*)", "max(f.deleted)"),
    )
    assert [text for _, text in mistakes(folder) if "state/flights is not a table of this project" in text]
    (folder / "d0" / "defs.yaml").write_text(TOPIC + DECODED.replace("DOUBLE", "BIGINT") + STATE)
    judged = yaml_check.judge(folder)
    assert judged.mistakes == ()
    (mistake,), warnings = query_columns.examined(judged.derived, judged.declared)
    assert (mistake.line, "state/flights has no column 'deleted'" in mistake.message, warnings) == (6, True, ())


def test_tables_made_from_each_other_are_a_mistake(declare: Declare) -> None:
    one = DERIVED.replace("raw.flights", "derived.other")
    other = DERIVED.replace("by_day", "other").replace("raw.flights", "derived.by_day")
    found = mistakes(declare(one, other))
    assert len(found) == 2
    assert all("made from itself" in message for _, message in found)


def test_the_asset_has_its_inputs_checks_and_a_sensor(tmp_path: Path) -> None:
    table = DerivedTable(
        table="by_day",
        by="window",
        sql="SELECT window, maker FROM raw.flights JOIN raw.planes USING (key)",
        expect=[{"column": "maker", "not_null": True, "severity": "error"}],
    )
    defs = table.build_defs(dg.ComponentTree.for_test().load_context)
    (asset,) = defs.assets or ()
    assert isinstance(asset, dg.AssetsDefinition)
    assert asset.key == dg.AssetKey(["derived", "by_day"])
    assert asset.asset_deps[asset.key] == {dg.AssetKey(["raw", "flights"]), dg.AssetKey(["raw", "planes"])}
    assert {spec.name: spec.blocking for spec in asset.check_specs} == {"equals_rebuild": True, "maker_not_null": True}
    (sensor,) = defs.sensors or ()
    assert sensor.name == "derived__by_day_inputs"
