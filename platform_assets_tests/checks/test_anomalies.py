"""Each named anomaly is introduced into a real table. Exactly the checks that should find the anomaly report it,
together with its offsets.

One table is loaded once and copied for each case. It has three windows of a topic with two partitions. The second
window has transactions, so its offsets have holes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.findings import Finding
from platform_assets.checks.registry import CHECKS, DEEP_AUDIT
from platform_assets.lake import holdings
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from platform_assets.orchestration import dagster_records
from platform_assets.orchestration.events import of_receipt
from platform_assets.orchestration.names import table_key, topic_key
from platform_assets_tests.support.variants import long_after
from testbed.loads import Record, TopicLake

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from platform_assets_tests.conftest import Broker

pytestmark = pytest.mark.broker

DENSE, HOLEY, LAST = "2026-03-01-00:00", "2026-03-01-00:01", "2026-03-01-00:02"
# Findings as (kind, window, partition, ranges of offsets with exclusive ends).
Found = set[tuple[str, str, int | None, tuple[tuple[int, int], ...]]]


@pytest.fixture(scope="module")
def loaded(
    broker: Broker, connection: Callable[[], SparkSession], tmp_path_factory: pytest.TempPathFactory
) -> TopicLake:
    """Return the sound table. The windows of partition 0 have the offsets [0, 20), [20, 27) and [27, 37); those of
    partition 1 have [0, 20), [20, 20) and [20, 30).

    In the second window, partition 0 has records at 20, 21 and 22, a commit marker, aborted records at 24 and 25, and
    an abort marker.
    """
    from confluent_kafka.admin import NewTopic

    name = "anomalies"
    broker.admin.create_topics([NewTopic(name, num_partitions=2, replication_factor=-1)])[name].result(30)
    lk = TopicLake(broker.bootstrap, name, tmp_path_factory.mktemp("lake"), connection)
    keys = [lk.window_of(Record(b"a%d" % i, b"k", i % 2) for i in range(40))]
    lk.commit([Record(b"b%d" % i) for i in range(3)])
    lk.abort([Record(b"x%d" % i) for i in range(2)])
    keys.append(lk.close_window())
    keys.append(lk.window_of(Record(b"c%d" % i, b"k", i % 2) for i in range(20)))
    assert keys == [DENSE, HOLEY, LAST]
    for key in keys:
        lk.load(key)
    return lk


@dataclass
class Case:
    """A copy of the table, with its ledger and the orchestrator's records."""

    lake: TopicLake
    instance: dg.DagsterInstance

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.lake.table)

    def files(self, key: str) -> list[Path]:
        """Return the data files that the table's log lists for a window."""
        return [self.lake.table / unquote(name) for name in holdings.files_of(Folder.at(self.lake.table), key).paths]

    def rows(self, where: str) -> pa.Table:
        found = self.table.to_pyarrow_table()
        window, partition, *offsets = where.split()
        mask = pc.and_(pc.equal(found["window"], window), pc.equal(found["kafka_partition"], int(partition)))
        wanted = pc.is_in(found["kafka_offset"], pa.array([int(o) for o in offsets], pa.int64()))
        return found.filter(pc.and_(mask, wanted))

    def report(self, key: str, **changes: Any) -> None:
        receipt = self.lake.ledger.receipts(self.lake.declaration.raw_table)[key]
        self.instance.report_runless_asset_event(
            dg.AssetMaterialization(
                table_key(TableRef.raw(self.lake.topic)),
                partition=key,
                metadata=of_receipt(replace(receipt, **changes), "loaded", ""),
            )
        )

    def evaluate(self) -> dict[str, list[Finding]]:
        """Return the findings, by check name."""
        found: dict[str, list[Finding]] = {}
        for check in (*CHECKS.values(), DEEP_AUDIT):
            evaluation = Evaluation(
                self.lake.declaration,
                Ledger(Lake.at(self.lake.root)),
                dagster_records.DagsterRecords(self.instance, TableRef.raw(self.lake.topic)),
                lambda: self.lake.settings,
                lambda: self.lake.cluster,
                self.lake.engine,
            )
            found[check.name] = list(check.evaluate(evaluation).findings)
        return found


@pytest.fixture
def case(loaded: TopicLake, tmp_path: Path) -> Iterator[Case]:
    shutil.copytree(loaded.root, tmp_path / "lake")
    lk = TopicLake(loaded.bootstrap, loaded.topic, tmp_path / "lake", loaded.spark, closed=loaded.closed)
    with dg.DagsterInstance.ephemeral() as instance:
        made = Case(lk, instance)
        for key in (DENSE, HOLEY, LAST):
            made.report(key)
            instance.report_runless_asset_event(dg.AssetMaterialization(topic_key(lk.topic), partition=key))
        yield made


# --- the seeds -------------------------------------------------------------------------------------------------


def nothing(case: Case) -> None:
    """Leave the table unchanged."""


def lost_row(case: Case) -> None:
    case.table.delete(f"window = '{DENSE}' and kafka_partition = 0 and kafka_offset = 3")


def lost_range(case: Case) -> None:
    case.table.delete(f"window = '{DENSE}' and kafka_partition = 1 and kafka_offset >= 5 and kafka_offset < 9")


def lost_row_between_holes(case: Case) -> None:
    case.table.delete(f"window = '{HOLEY}' and kafka_offset = 21")


def lost_window(case: Case) -> None:
    case.table.delete(f"window = '{HOLEY}'")


def duplicate_row_in_a_file(case: Case) -> None:
    window = case.table.to_pyarrow_table(filters=[("window", "=", DENSE)])
    rows = pa.concat_tables([window, case.rows(f"{DENSE} 0 3")])
    write_deltalake(case.table, rows, mode="overwrite", predicate=f"window = '{DENSE}'")


def duplicate_across_files(case: Case) -> None:
    write_deltalake(case.table, case.rows(f"{DENSE} 0 3 4"), mode="append")


def duplicate_across_windows(case: Case) -> None:
    rows = case.rows(f"{DENSE} 0 3")
    moved = rows.set_column(rows.column_names.index("window"), "window", pa.array([LAST]))
    write_deltalake(case.table, moved, mode="append")


def duplicate_that_hides_a_loss(case: Case) -> None:
    lost_row(case)
    write_deltalake(case.table, case.rows(f"{DENSE} 0 4"), mode="append")


def at_offset(rows: pa.Table, offset: int) -> pa.Table:
    return rows.set_column(rows.column_names.index("kafka_offset"), "kafka_offset", pa.array([offset], pa.int64()))


def foreign_row(case: Case) -> None:
    write_deltalake(case.table, at_offset(case.rows(f"{DENSE} 0 3"), 999), mode="append")


def foreign_row_in_a_hole(case: Case) -> None:
    write_deltalake(case.table, at_offset(case.rows(f"{HOLEY} 0 21"), 24), mode="append")


def altered_value(case: Case) -> None:
    where = f"window = '{LAST}' and kafka_partition = 1 and kafka_offset = 22"
    case.table.update({"value": "arrow_cast('changed', 'Binary')"}, predicate=where)


def altered_in_place(case: Case) -> None:
    """Damage the file on disk. Neither the log nor the statistics show the damage."""
    path, values = page_of(case, "value")
    flip(path, values.data_page_offset)


def topic_id_altered_in_place(case: Case) -> None:
    """Change one byte of a column that no digest covers. The checksum of the Parquet page reveals the change."""
    path, ids = page_of(case, "topic_id")
    at = path.read_bytes().index(
        case.lake.ledger.receipts(case.lake.declaration.raw_table)[LAST].topic_id.encode(), ids.dictionary_page_offset
    )
    assert at < ids.data_page_offset, "the id itself, in the dictionary page"
    flip(path, at + 3)


def page_of(case: Case, column: str) -> tuple[Path, Any]:
    """Return a file of the last window, and the position of this column's data in the file."""
    path = case.files(LAST)[0]
    columns = pq.ParquetFile(path).metadata.row_group(0)
    (found,) = (c for c in map(columns.column, range(columns.num_columns)) if c.path_in_schema == column)
    return path, found


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x01
    path.write_bytes(bytes(data))


def files_removed(case: Case) -> None:
    for path in case.files(LAST):
        path.unlink()


def ledger_behind(case: Case) -> None:
    DeltaTable(case.lake.root / "_ledger" / "commits").delete(f"\"window\" = '{DENSE}'")


def ledger_ahead(case: Case) -> None:
    """Add a receipt to the ledger for a load that the table does not have."""
    receipt = case.lake.ledger.receipts(case.lake.declaration.raw_table)[DENSE]
    forged = replace(receipt, load_id="f" * 36, table_version=case.lake.version() + 7)
    case.lake.ledger.record_receipts([forged])


def edited_digest(case: Case) -> None:
    """Edit the ledger so that the receipt of a dense window has different offsets, but the same number of offsets."""
    receipt = case.lake.ledger.receipts(case.lake.declaration.raw_table)[DENSE]
    case.lake.ledger.record_receipts([replace(receipt, offsets_digest=receipt.offsets_digest + 1)])


def edited_digest_of_an_open_window(case: Case) -> None:
    """Edit the receipt of a window with holes, for which the brokers are queried in any case."""
    receipt = case.lake.ledger.receipts(case.lake.declaration.raw_table)[HOLEY]
    case.lake.ledger.record_receipts([replace(receipt, offsets_digest=receipt.offsets_digest + 1)])


def dropped_commit(case: Case) -> None:
    """Remove the newest commit of the table, as if the table's folder had been restored from a backup."""
    newest = max((case.lake.table / "_delta_log").glob("*.json"))
    added = [json.loads(line) for line in newest.read_text().splitlines()]
    assert any("add" in action for action in added)
    newest.unlink()
    # The checksums of that version and of its file are removed too.
    for checksum in (case.lake.table / "_delta_log").glob(f"*{newest.stem}*.crc"):
        checksum.unlink()


def orchestrator_behind(case: Case) -> None:
    """Remove the second of the three materializations that the fixture reported."""
    case.instance.wipe_assets([table_key(TableRef.raw(case.lake.topic))])
    case.report(DENSE)
    case.report(LAST)


def orchestrator_ahead(case: Case) -> None:
    case.report(LAST, load_id="e" * 36)


NOTHING: Mapping[str, Found] = {}

CASES: list[tuple[Callable[[Case], None], Mapping[str, Found]]] = [
    (nothing, NOTHING),
    (lost_row, {
        "no_gaps": {("rows missing", DENSE, 0, ((3, 4),))},
        "every_offset_accounted_for": {("record not in the table", DENSE, 0, ((3, 4),))},
        "deep_audit": {("record not in the table", DENSE, 0, ((3, 4),))},
    }),
    (lost_range, {
        "no_gaps": {("rows missing", DENSE, 1, ((5, 9),))},
        "every_offset_accounted_for": {("record not in the table", DENSE, 1, ((5, 9),))},
        "deep_audit": {("record not in the table", DENSE, 1, ((5, 9),))},
    }),
    (lost_row_between_holes, {
        "no_gaps": {("rows missing", HOLEY, 0, ())},
        "every_offset_accounted_for": {("record not in the table", HOLEY, 0, ((21, 22),))},
        "deep_audit": {("record not in the table", HOLEY, 0, ((21, 22),))},
    }),
    (lost_window, {
        "no_gaps": {("rows missing", HOLEY, 0, ())},
        "every_offset_accounted_for": {("record not in the table", HOLEY, 0, ((20, 23),))},
        "deep_audit": {("record not in the table", HOLEY, 0, ((20, 23),))},
    }),
    (duplicate_row_in_a_file, {
        "no_duplicates": {("duplicate in a window", DENSE, 0, ((3, 4),))},
        "deep_audit": {("duplicate in a window", DENSE, 0, ((3, 4),))},
    }),
    (duplicate_across_files, {
        "no_duplicates": {("duplicate in a window", DENSE, 0, ((3, 5),))},
        "deep_audit": {("duplicate in a window", DENSE, 0, ((3, 5),))},
    }),
    (duplicate_across_windows, {
        "no_gaps": {("rows outside the window", LAST, 0, ((3, 4),))},
        "no_duplicates": {("duplicate across windows", LAST, 0, ((3, 4),))},
        "every_offset_accounted_for": {("row without a record", LAST, 0, ((3, 4),))},
        "deep_audit": {("row without a record", LAST, 0, ((3, 4),))},
    }),
    (duplicate_that_hides_a_loss, {
        "no_gaps": {("rows missing", DENSE, 0, ((3, 4),))},
        "no_duplicates": {("duplicate in a window", DENSE, 0, ((4, 5),))},
        "every_offset_accounted_for": {("record not in the table", DENSE, 0, ((3, 4),))},
        "deep_audit": {
            ("record not in the table", DENSE, 0, ((3, 4),)), ("duplicate in a window", DENSE, 0, ((4, 5),)),
        },
    }),
    (foreign_row, {
        "no_gaps": {("rows outside the window", DENSE, 0, ((999, 1000),))},
        "every_offset_accounted_for": {("row without a record", DENSE, 0, ((999, 1000),))},
        "deep_audit": {("row without a record", DENSE, 0, ((999, 1000),))},
    }),
    (foreign_row_in_a_hole, {
        "every_offset_accounted_for": {("row without a record", HOLEY, 0, ((24, 25),))},
        "deep_audit": {("row without a record", HOLEY, 0, ((24, 25),))},
    }),
    (altered_value, {
        "every_offset_accounted_for": {("altered value", LAST, None, ())},
        "deep_audit": {("altered value", LAST, None, ())},
    }),
    (altered_in_place, {"deep_audit": {("files lost", LAST, None, ())}}),
    (topic_id_altered_in_place, {"deep_audit": {("files lost", LAST, None, ())}}),
    (files_removed, {"deep_audit": {("files lost", LAST, None, ())}}),
    (ledger_behind, {"agrees_with_ledger": {("ledger behind", DENSE, None, ())}}),
    (ledger_ahead, {"agrees_with_ledger": {("ledger ahead", DENSE, None, ())}}),
    (edited_digest, {
        "every_offset_accounted_for": {("ledger edited", DENSE, None, ())},
        "deep_audit": {("ledger edited", DENSE, None, ())},
    }),
    (edited_digest_of_an_open_window, {
        "every_offset_accounted_for": {("ledger edited", HOLEY, None, ())},
        "deep_audit": {("ledger edited", HOLEY, None, ())},
    }),
    (dropped_commit, {
        "no_gaps": {("rows missing", LAST, 0, ((27, 37),)), ("rows missing", LAST, 1, ((20, 30),))},
        "every_offset_accounted_for": {
            ("record not in the table", LAST, 0, ((27, 37),)), ("record not in the table", LAST, 1, ((20, 30),)),
        },
        "deep_audit": {
            ("record not in the table", LAST, 0, ((27, 37),)), ("record not in the table", LAST, 1, ((20, 30),)),
        },
        "agrees_with_ledger": {("ledger ahead", LAST, None, ())},
    }),
    (orchestrator_behind, {"agrees_with_ledger": {("orchestrator behind", HOLEY, None, ())}}),
    (orchestrator_ahead, {"agrees_with_ledger": {("orchestrator ahead", LAST, None, ())}}),
]  # fmt: skip
FOUND_BY_SPARK = (altered_in_place, topic_id_altered_in_place, files_removed)
"""Anomalies that Spark finds while it reads the files: by the checksums of pages, or because a file is missing."""
IN_SPARK = pytest.mark.spark


@pytest.mark.parametrize(
    ("seed", "expected"),
    [pytest.param(*case, marks=IN_SPARK if case[0] in FOUND_BY_SPARK else ()) for case in CASES],
    ids=[s.__name__ for s, _ in CASES],
)
def test_anomaly_is_found_by_its_checks_and_by_no_other(
    case: Case, seed: Callable[[Case], None], expected: Mapping[str, Found]
) -> None:
    seed(case)
    found = case.evaluate()
    named = {
        name: {(f.kind, f.window, f.partition, tuple((r.start, r.end) for r in f.ranges)) for f in findings}
        for name, findings in found.items()
        if findings
    }
    assert named == dict(expected)
    for finding in (f for findings in found.values() for f in findings):
        assert finding.window in finding.sentence()
        assert finding.remedy


@pytest.mark.parametrize(
    "seed",
    long_after(6, [
        lost_row, duplicate_that_hides_a_loss, foreign_row_in_a_hole, altered_value, ledger_behind, dropped_commit,
        lost_window, duplicate_across_windows, pytest.param(altered_in_place, marks=IN_SPARK),
        pytest.param(files_removed, marks=IN_SPARK),
    ]),
)  # fmt: skip
def test_loading_the_windows_again_mends_it(case: Case, seed: Callable[[Case], None]) -> None:
    """The remedy in the message works: after it, every digest equals the digest that was recorded first."""
    first = case.lake.ledger.receipts(case.lake.declaration.raw_table)
    seed(case)
    windows = {f.window for findings in case.evaluate().values() for f in findings}
    for key in sorted(windows):
        assert case.lake.load(key).outcome in {"healed", "unchanged"}
        case.report(key)
    assert {name: findings for name, findings in case.evaluate().items() if findings} == {}
    now = case.lake.ledger.receipts(case.lake.declaration.raw_table)
    assert {k: (r.offsets, r.content) for k, r in now.items()} == {k: (r.offsets, r.content) for k, r in first.items()}
